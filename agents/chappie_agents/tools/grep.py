"""The tool `grep`: lines by a regular expression.  Follows no link, reads no binary file."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from anyio import to_thread
from pydantic import Field

from chappie_agents.resolved import reading
from chappie_agents.tools.read import SNIFF, is_text
from chappie_agents.tools.search import (
    WIDTH,
    prefix,
    ripgrep,
    ripgrep_argv,
    search,
    stand_in_argv,
    too_late,
)
from chappie_agents.tools.tool import (
    Arguments,
    GivenPath,
    ToolContext,
    ToolFailed,
    Word,
    shown,
    speaking_of,
    status,
    tool,
)
from chappie_bridge.wire.blocks import Content, Text

LIMIT_MAX = 10_000
CONTEXT_MAX = 20

_LINE = re.compile(rb"([^\0]+)\0(\d+)([:-])(.*)", re.DOTALL)


class Grep(Arguments):
    pattern: Annotated[Word, Field(max_length=4096, description="Regular expression, matched line by line.")]
    path: Annotated[
        GivenPath, Field(description="Directory or file to search; the working directory by default.")
    ] = "."
    glob: Annotated[
        Word | None,
        Field(max_length=1024, description="Only files whose name matches, as in `*.py` or `src/**/*.py`."),
    ] = None
    ignore_case: Annotated[
        bool, Field(alias="ignoreCase", description="Do not tell capitals from small letters.")
    ] = False
    literal: Annotated[bool, Field(description="The pattern is plain text.")] = False
    context: Annotated[int, Field(ge=0, le=CONTEXT_MAX, description="Lines around each match.")] = 0
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX, description="Most matching lines.")] = 200


class _Shown(NamedTuple):
    text: str
    matches: int
    more: bool
    cut_lines: int


async def _grep(arguments: Grep, context: ToolContext) -> Content:
    path = await context.permit("grep", arguments.path)
    if path.is_dir():
        directory, files, before = path, [], prefix(arguments.path)
    else:
        await to_thread.run_sync(_refuse_binary, path)
        directory, files, before = path.parent, [path.name], None
    program = ripgrep(context)
    argv = _ripgrep(program, arguments, files) if program else _stand_in(arguments, files)
    most = (arguments.limit + 1) * (2 * arguments.context + 2)
    found = await search(argv, directory, context, separator=b"\n", most=most)
    result = _show(found.records, arguments, before)
    said = status(
        matches=result.matches,
        more=(result.more or found.more) or None,
        cutLines=result.cut_lines or None,
        stopped=too_late(found),
    )
    content = (Text(text=result.text), said) if result.text else (said,)
    if found.late:
        raise ToolFailed(content)
    return content


def _ripgrep(program: str, arguments: Grep, files: Sequence[str]) -> list[str]:
    return [
        *ripgrep_argv(program, [arguments.glob] if arguments.glob else []),
        "--color=never",
        "--no-heading",
        "--with-filename",
        "--line-number",
        "--null",
        "--crlf",
        f"--context={arguments.context}",
        *(["--ignore-case"] if arguments.ignore_case else []),
        *(["--fixed-strings"] if arguments.literal else []),
        f"--regexp={arguments.pattern}",
        "--",
        *(files or ["./"]),
    ]


def _stand_in(arguments: Grep, files: Sequence[str]) -> list[str]:
    flags = ("i" if arguments.ignore_case else "") + ("f" if arguments.literal else "")
    return stand_in_argv(
        "lines", arguments.pattern, flags, str(arguments.context), arguments.glob or "*", *files
    )


def _refuse_binary(path: Path) -> None:
    with speaking_of(path), reading(path) as descriptor:
        if not is_text(os.read(descriptor, SNIFF)):
            raise ToolFailed(f"{shown(path)} is binary; grep searches text.")


def _show(records: Sequence[bytes], arguments: Grep, before: str | None) -> _Shown:
    """The result as text; `before` is what the names found are relative to, None for one named file."""
    lines: list[str] = []
    matches = cut = 0
    torn = b""
    for line in records:
        record = line.removesuffix(b"\r")  # of a line that ends with CRLF; ripgrep's separator has it too
        if record == b"--":
            lines.append("--\n")
            continue
        found = _LINE.fullmatch(torn + record)
        if found is None:
            torn += record + b"\n"  # the beginning of a file name with a line break in it
            continue
        torn = b""
        name, number, mark, data = found.groups()
        if mark == b":":
            if matches == arguments.limit:
                return _Shown("".join(lines), matches, True, cut)
            matches += 1
        where = name.removeprefix(b"./").decode("utf-8", "surrogateescape")
        path = shown(arguments.path if before is None else before + where)
        cut += len(data) > WIDTH
        sign = mark.decode()
        lines.append(f"{path}{sign}{number.decode()}{sign} {_words(data)}\n")
    return _Shown("".join(lines), matches, False, cut)


def _words(data: bytes) -> str:
    if len(data) <= WIDTH:
        return data.decode(errors="replace")
    return data[:WIDTH].decode(errors="ignore")


GREP = tool(
    "grep",
    f"""Search the lines of text files: `path:line: text` for each match, `path-line- text` for lines
    around it. Lines are shown up to {WIDTH} bytes. `.git`, `node_modules` and `.venv` are left out, and
    what .gitignore names where ripgrep is installed, unless the glob itself names it. The dialect is
    ripgrep's, or Python's where that is missing.""",
    Grep,
    _grep,
    parallel=True,
)
