"""The floor: the SDK's low-level server with an empty echo tool, and nothing else.  Prints its port."""

import asyncio
import json
import socket
import sys
from typing import Any

import anyio
import mcp_types as t
import uvicorn
from mcp.server.lowlevel import Server

TOOL = t.Tool(
    name="echo",
    description="Echo.",
    input_schema={"type": "object", "properties": {"text": {"type": "string"}}},
)


async def list_tools(ctx: Any, params: Any) -> t.ListToolsResult:
    return t.ListToolsResult(tools=[TOOL])


async def call_tool(ctx: Any, params: Any) -> t.CallToolResult:
    arguments = params.arguments or {}
    if params.name == "run":  # the bare SDK running a command, for bench/tools.py
        process = await asyncio.create_subprocess_exec(
            *arguments["argv"], stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        out, _ = await process.communicate()
        return t.CallToolResult(content=[t.TextContent(type="text", text=out.decode("utf-8", "replace"))])
    if params.name == "read":
        text = await anyio.Path(arguments["path"]).read_text(encoding="utf-8")
        return t.CallToolResult(content=[t.TextContent(type="text", text=text)])
    return t.CallToolResult(content=[t.TextContent(type="text", text=arguments.get("text", ""))])


async def main() -> None:
    server = Server("floor", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    app = server.streamable_http_app(streamable_http_path="/mcp", json_response=True, stateless_http=True)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"}), flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).serve([listener])


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
