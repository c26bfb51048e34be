"""The tool `write`: a whole text file, in one step.  Never leaves half a file behind."""

from typing import Annotated

from anyio import to_thread
from pydantic import Field

from chappie_agents.resolved import replace
from chappie_agents.tools.tool import (
    Arguments,
    GivenPath,
    ToolContext,
    Writable,
    shown,
    speaking_of,
    status,
    tool,
)
from chappie_bridge.wire.blocks import Content


class Write(Arguments):
    path: Annotated[
        GivenPath, Field(description="The file: relative to the working directory, absolute or ~/.")
    ]
    content: Annotated[Writable, Field(description="The whole new content.")]


async def _write(arguments: Write, context: ToolContext) -> Content:
    path = await context.permit("write", arguments.path, writing=True)
    data = arguments.content.encode()
    with speaking_of(path):
        created = await to_thread.run_sync(replace, path, data)
    return (status(path=shown(path), bytes=len(data), created=created),)


WRITE = tool(
    "write",
    """Write a whole text file: a new one (parents are made) or in place of an existing one, whose mode
    stays. Where the path is a link, the file it leads to is written.""",
    Write,
    _write,
    parallel=False,
)
