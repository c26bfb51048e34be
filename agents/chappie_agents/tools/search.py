"""Runs ripgrep, or its stand-in, and reads what it prints.  Bounded in time, lines and bytes."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chappie_agents.tools import process, standin
from chappie_agents.tools.tool import MAX_NAME, ToolContext, ToolFailed

DEADLINE = 30.0
"""Seconds a search may take."""

WIDTH = 500
"""Bytes of a line that are shown."""

RECORDS_MAX = 4 * 1024 * 1024
"""Bytes of records kept in memory."""

_RECORD = MAX_NAME + WIDTH + 64
"""Bytes of one record that are kept: a path, a number, the beginning of a line."""


@dataclass
class Records:
    """Cuts a stream into records; keeps at most `most` of them and the beginning of each."""

    separator: bytes
    most: int
    kept: list[bytes] = field(default_factory=list)
    rest: bytes = b""
    size: int = 0

    async def keep(self, chunk: bytes) -> bool:
        """False once there are enough."""
        *whole, rest = (self.rest + chunk).split(self.separator, self.most - len(self.kept))
        self.kept += (record[:_RECORD] for record in whole)
        self.size += sum(min(len(record), _RECORD) for record in whole)
        self.rest = rest[:_RECORD]
        return len(self.kept) < self.most and self.size < RECORDS_MAX


@dataclass(frozen=True)
class Found:
    """`more`: there were enough before the end.  `late`: the deadline came first."""

    records: Sequence[bytes]
    more: bool
    late: bool


def ripgrep(context: ToolContext) -> str | None:
    """Where ripgrep is on this device."""
    return shutil.which("rg", path=context.environment.get("PATH"))


def ripgrep_argv(program: str, globs: Sequence[str]) -> list[str]:
    """What both kinds of search ask of ripgrep: no surprises, the same order each time."""
    return [
        program,
        "--no-config",
        "--no-messages",
        "--hidden",
        "--no-require-git",
        "--sort=path",
        *(f"--glob={glob}" for glob in globs),
        *(f"--glob=!{name}" for name in standin.SKIPPED),
    ]


def stand_in_argv(*arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-X", "utf8", standin.__file__, *arguments]


async def search(
    argv: Sequence[str], directory: Path, context: ToolContext, *, separator: bytes, most: int
) -> Found:
    """The records `argv` prints, at most `most`.  Raises `ToolFailed` with what it says of wrong use."""
    records = Records(separator, most)
    try:
        ending = await process.run(
            argv, cwd=directory, environment=context.environment, keep=records.keep, timeout=DEADLINE
        )
    except OSError as error:
        raise ToolFailed(f"The search did not start: {error.strerror or error}") from error
    results = [record for record in records.kept if separator == b"\0" or b"\0" in record]
    if ending.code == 2 and not results:
        said = b"\n".join((*records.kept, records.rest)).decode(errors="replace").strip()
        raise ToolFailed(said or "The search failed.")
    return Found(records.kept, ending.stopped == "enough", ending.stopped == "timeout")


def prefix(path: str) -> str:
    """What to put before a name found under `path`, so that it is a path from the working directory."""
    shorter = path.rstrip("/")
    return "" if shorter == "." else shorter + "/"


def too_late(found: Found) -> str | None:
    """What to say of a search that the deadline ended."""
    return f"Stopped after {DEADLINE:g} s: narrow the path or the pattern." if found.late else None
