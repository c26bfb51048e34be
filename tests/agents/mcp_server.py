"""A server for tests, on the SDK: `python mcp_server.py COUNTER`.  Each start adds a line to COUNTER."""

import os
import sys
from pathlib import Path

from mcp.server import MCPServer
from mcp_types import ImageContent, ResourceLink, TextContent, ToolAnnotations

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

server = MCPServer("for-tests")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> str:
    """Adds."""
    return str(a + b)


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("it would not")


@server.tool()
def show() -> list[TextContent | ImageContent | ResourceLink]:
    """Shows."""
    return [
        TextContent(type="text", text="see"),
        ImageContent(type="image", data=PIXEL, mime_type="image/png"),
        ResourceLink(type="resource_link", uri="note://one", name="one", mime_type="text/plain"),
    ]


@server.tool()
def die() -> str:
    """Ends the process."""
    os._exit(1)


@server.resource("note://one")
def one() -> str:
    """A note."""
    return "the note"


if __name__ == "__main__":
    with Path(sys.argv[1]).open("a", encoding="utf-8") as counter:
        counter.write("started\n")
    server.run("stdio")
