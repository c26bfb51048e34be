"""The tool `ls`: the names in one directory.  Follows no link."""

import heapq
import os
from pathlib import Path
from typing import Annotated

from anyio import to_thread
from pydantic import Field

from chappie_agents.tools.tool import (
    Arguments,
    GivenPath,
    ToolContext,
    shown,
    speaking_of,
    status,
    tool,
)
from chappie_bridge.wire.blocks import Content, Text

LIMIT_MAX = 10_000


class Ls(Arguments):
    path: Annotated[GivenPath, Field(description="The directory; the working directory by default.")] = "."
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAX, description="Most entries to list.")] = 1000


async def _ls(arguments: Ls, context: ToolContext) -> Content:
    path = await context.permit("ls", arguments.path)
    with speaking_of(path):
        return await to_thread.run_sync(_entries, path, arguments.limit)


def _entries(path: Path, limit: int) -> Content:
    with os.scandir(path) as entries:
        everything = list(entries)
    chosen = heapq.nsmallest(limit, everything, key=lambda entry: os.fsencode(entry.name))
    lines = "".join(_line(entry) + "\n" for entry in chosen)
    said = status(entries=len(chosen), more=len(everything) - len(chosen) or None)
    return (Text(text=lines), said) if lines else (said,)


def _line(entry: "os.DirEntry[str]") -> str:
    if entry.is_symlink():
        try:
            return f"{shown(entry.name)} -> {shown(Path(entry).readlink())}"
        except OSError:
            return shown(entry.name)
    return shown(entry.name) + ("/" if entry.is_dir(follow_symlinks=False) else "")


LS = tool(
    "ls",
    """List a directory: one name a line in byte order, `/` after directories, `-> target` after links.
    A JSON line says how many there are and how many more.""",
    Ls,
    _ls,
    parallel=True,
)
