"""The floor: the SDK's low-level server over stdio with one empty tool, and nothing else."""

import asyncio
from typing import Any

import mcp_types as t
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

TOOL = t.Tool(name="echo", description="Echo.", input_schema={"type": "object"})


async def list_tools(ctx: Any, params: Any) -> t.ListToolsResult:
    return t.ListToolsResult(tools=[TOOL])


async def main() -> None:
    server = Server("floor", version="1", on_list_tools=list_tools)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


asyncio.run(main())
