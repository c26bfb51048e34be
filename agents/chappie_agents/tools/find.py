"""The tool `find`: files by name.  Follows no link."""

from typing import Annotated

from pydantic import Field

from chappie_agents.tools.search import prefix, ripgrep, ripgrep_argv, search, stand_in_argv, too_late
from chappie_agents.tools.tool import (
    Arguments,
    GivenPath,
    ToolContext,
    ToolFailed,
    Word,
    shown,
    status,
    tool,
)
from chappie_bridge.wire.blocks import Content, Text

LIMIT_MAX = 10_000


class Find(Arguments):
    pattern: Annotated[
        Word,
        Field(
            max_length=1024,
            description="Glob: `*.py` matches the name at any depth, `src/**/*.py` the path from there.",
        ),
    ]
    path: Annotated[GivenPath, Field(description="Where to search; the working directory by default.")] = "."
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX, description="Most files to list.")] = 1000


async def _find(arguments: Find, context: ToolContext) -> Content:
    path = await context.permit("find", arguments.path)
    if not path.is_dir():
        raise ToolFailed(f"{shown(path)}: no such directory")
    program = ripgrep(context)
    argv = (
        [*ripgrep_argv(program, [arguments.pattern]), "--files", "--null"]
        if program
        else stand_in_argv("files", arguments.pattern)
    )
    found = await search(argv, path, context, separator=b"\0", most=arguments.limit + 1)
    names = [record.decode("utf-8", "surrogateescape") for record in found.records[: arguments.limit]]
    text = Text(text="".join(shown(prefix(arguments.path) + name) + "\n" for name in names))
    more = found.more or len(found.records) > arguments.limit
    said = status(files=len(names), more=more or None, stopped=too_late(found))
    content = (text, said) if names else (said,)
    if found.late:
        raise ToolFailed(content)
    return content


FIND = tool(
    "find",
    """Find files by a glob on their names, sorted by path. `.git`, `node_modules` and `.venv` are left
    out, and what .gitignore names where ripgrep is installed, unless the glob itself names it.""",
    Find,
    _find,
    parallel=True,
)
