"""The built-in agent's session: found again or made, alone on its files, with what lies around it."""

import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from chappie_agents.attendant import AgentHost
from chappie_agents.hosts.builtin import Opened, look_around, open_session, scrubbed, slug

from chappie_bridge.wire.messages import CallResult, Describe, Description, Register, Registered, RunBatch
from tests.agents.stage import ORIGIN, FakeLink, call, operation, texts

pytestmark = pytest.mark.anyio


def opened(directory: Path, state: Path, **more: object) -> Opened:
    configuration = state / "configuration"
    return open_session(directory, state, configuration=configuration, **more)


def close(session: Opened) -> None:
    """As if its process ended without a word."""
    session.session._transcript.close()
    session.session._outbox.close()
    session.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "my project"
    directory.mkdir()
    return directory


def test_the_newest_ended_session_of_a_directory_is_resumed(tmp_path: Path, project: Path) -> None:
    """B35: a session that this process did not start is found by its directory."""
    first = opened(project, tmp_path)
    assert not first.resumed
    close(first)
    second = opened(project, tmp_path, new=True)
    assert second.session.info.id != first.session.info.id
    close(second)
    (first.directory / "transcript.jsonl").touch()
    third = opened(project, tmp_path)
    assert (third.resumed, third.session.info.id) == (True, first.session.info.id)
    fourth = opened(project, tmp_path)
    assert (fourth.resumed, fourth.session.info.id) == (True, second.session.info.id)
    fifth = opened(project, tmp_path)
    assert not fifth.resumed
    for each in (third, fourth, fifth):
        close(each)


def test_two_directories_of_the_same_name_have_sessions_of_their_own(tmp_path: Path) -> None:
    one, two = tmp_path / "a" / "project", tmp_path / "b" / "project"
    for directory in (one, two):
        directory.mkdir(parents=True)
    assert slug(one) != slug(two)
    assert slug(one).startswith("project-")
    sessions = [opened(one, tmp_path), opened(two, tmp_path)]
    assert sessions[0].directory.parent != sessions[1].directory.parent
    for each in sessions:
        close(each)


def test_a_stale_id_in_the_environment_names_no_session(tmp_path: Path, project: Path) -> None:
    """B34: two agents with the same inherited variables are two fresh sessions."""
    stale = {"CHAPPIE_SESSION": "s_aaaaaaaaaaaaaaaa", "CHAPPIE_TOKEN": "secret", "PATH": "/bin"}
    sessions = [opened(project, tmp_path, environment=stale, new=True) for _ in range(2)]
    names = {each.session.info.id for each in sessions}
    assert len(names) == 2
    assert "s_aaaaaaaaaaaaaaaa" not in names
    assert scrubbed(stale) == {"PATH": "/bin"}
    for each in sessions:
        close(each)


def test_files_of_a_session_are_for_its_owner_only(tmp_path: Path, project: Path) -> None:
    session = opened(project, tmp_path)
    for path in session.directory.parent.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    close(session)


def test_the_session_is_held_by_one_process_at_a_time(tmp_path: Path, project: Path) -> None:
    """B41: an agent that is started again while the old one still runs gets a session of its own."""
    code = (
        "import sys; from pathlib import Path; from chappie_agents.hosts.builtin import open_session;"
        "opened = open_session(Path(sys.argv[1]), Path(sys.argv[2]));"
        "print(opened.session.info.id, flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", code, str(project), str(tmp_path)]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
    assert child.stdout is not None
    held = child.stdout.readline().strip()
    mine = opened(project, tmp_path)
    assert mine.session.info.id != held
    close(mine)
    child.kill()
    child.communicate()
    (mine.directory.parent / held / "transcript.jsonl").touch()
    again = opened(project, tmp_path)
    assert again.session.info.id == held
    close(again)


def test_an_agent_process_loads_no_face_and_no_rich() -> None:
    code = (
        "import sys, chappie_agents.hosts.builtin, chappie_agents.terminal, chappie_agents.attendant;"
        "loaded = {name.split('.')[0] for name in sys.modules};"
        "print(sorted(loaded & {'mcp', 'starlette', 'uvicorn', 'rich'}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert run.stdout.strip() == "[]"


def test_instructions_and_skills_of_directory_and_user_are_found(tmp_path: Path, project: Path) -> None:
    configuration = tmp_path / "configuration"
    own, mine = project / ".chappie" / "skills" / "release", configuration / "skills" / "notes"
    for directory in (own, mine):
        directory.mkdir(parents=True)
    assert look_around(project, configuration) == ((), None)
    (own / "SKILL.md").write_text(
        "---\nname: release\ndescription: >-\n  Make a release\n  \x1b[31mwith care\nother: x\n---\nbody\n",
        encoding="utf-8",
    )
    (mine / "SKILL.md").write_text("no front matter", encoding="utf-8")
    (project / "CLAUDE.md").write_text("x", encoding="utf-8")
    (configuration / "AGENTS.md").write_text("x", encoding="utf-8")
    around = look_around(project, configuration)
    assert [each.name for each in around.skills] == ["CLAUDE.md", "release", "notes"]
    assert around.skills[0].path == str(project / "CLAUDE.md")
    assert around.skills[1].description == "Make a release \\x1b[31mwith care"
    assert around.global_agents == str(configuration / "AGENTS.md")


async def test_the_built_in_agent_runs_its_tools_and_describes_itself(tmp_path: Path, project: Path) -> None:
    (project / "AGENTS.md").write_text("x", encoding="utf-8")
    (project / "file.txt").write_text("hello\n", encoding="utf-8")
    session = opened(project, tmp_path, device="desk", name="mine")
    host, link = AgentHost(), FakeLink()
    async with anyio.create_task_group() as group:
        await group.start(host.run)
        await host.add(session.session)
        host.link_up(link)
        (register,) = link.all(Register)
        info = register.session
        assert (info.device, info.name, info.cwd) == ("desk", "mine", str(project))
        host.received(link, Registered(request=register.request, session=info.id))
        message = RunBatch(
            operation=operation(), session=info.id, origin=ORIGIN, calls=(call("read", path="file.txt"),)
        )
        host.received(link, message)
        await link.finished(message.operation)
        (told,) = link.all(CallResult)
        assert "hello" in texts(told.result.content)
        host.received(link, Describe(request=5, session=info.id))
        described = await link.reply(Description, 5)
        assert described.tools[0].name == "read"
        assert described.skills[0].name == "AGENTS.md"
        group.cancel_scope.cancel()
    session.close()
    resumed = opened(project, tmp_path)
    assert resumed.resumed
    resumed.close()
