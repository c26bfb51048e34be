"""The skills that a program tells its model of, from its system text.  Pure."""

import html
import re

from chappie_bridge.codec.turn import Program
from chappie_bridge.codec.unicode import clean_text, display
from chappie_bridge.wire.values import Skill

MAX_SKILLS = 100
DESCRIPTION = 1000
"""Characters of a description that are kept."""

_BLOCK = re.compile(
    r"<skill>\s*<name>([^<]+)</name>\s*<description>([^<]*)</description>"
    r"(?:\s*<location>([^<]+)</location>)?"
)
_LINE = re.compile(r"^- ([\w:.-]+): (.+?) \(file: (.+?)\)$", re.MULTILINE)
_FORMS: dict[Program, re.Pattern[str]] = {"pi": _BLOCK, "opencode": _BLOCK, "codex": _LINE}


def skills_of(program: Program, system: str) -> tuple[Skill, ...]:
    """In the program's order; none where its text names none."""
    form = _FORMS.get(program)
    found = form.finditer(system) if form is not None else ()
    return tuple(_skill(match) for match, _ in zip(found, range(MAX_SKILLS), strict=False))


def _skill(match: re.Match[str]) -> Skill:
    name, about, path = (html.unescape(part) if part else "" for part in match.groups())
    # Codex shortens paths to `r0/…`, which only it can follow.
    where = clean_text(path)[0] if path.startswith(("/", "~", "file:")) else None
    return Skill(name=display(name, 64), description=display(about, DESCRIPTION), path=where)
