"""Skills as the programs tell them."""

from chappie_agents.hosts.model.skills import MAX_SKILLS, skills_of

PI = """<available_skills>
  <skill>
    <name>release</name>
    <description>Tags &amp; publishes.</description>
    <location>/home/user/.pi/agent/skills/release/SKILL.md</location>
  </skill>
</available_skills>"""

CODEX = """<skills_instructions>
## Skills
- plan: Makes a plan: in steps (short). (file: r0/plan/SKILL.md)
- tidy:up: Tidies. (file: /opt/skills/tidy/SKILL.md)
</skills_instructions>"""


def test_pis_skills_have_name_description_and_path() -> None:
    (skill,) = skills_of("pi", PI)
    assert (skill.name, skill.description) == ("release", "Tags & publishes.")
    assert skill.path == "/home/user/.pi/agent/skills/release/SKILL.md"


def test_a_path_that_only_codex_can_follow_is_left_out() -> None:
    told = [(skill.name, skill.description, skill.path) for skill in skills_of("codex", CODEX)]
    assert told == [
        ("plan", "Makes a plan: in steps (short).", None),
        ("tidy:up", "Tidies.", "/opt/skills/tidy/SKILL.md"),
    ]


def test_their_number_is_bounded_and_a_text_without_any_has_none() -> None:
    assert len(skills_of("pi", PI * 500)) == MAX_SKILLS
    assert skills_of("claude", PI) == ()
    assert skills_of("pi", "nothing") == ()
