"""PyPI openai-agents: its MCP client called directly, without a model.  Prints one JSON line."""

import asyncio
import json
import sys
from typing import Any

from agents.mcp import MCPServerStreamableHttp

JOB = json.loads(sys.argv[1])


def connection() -> MCPServerStreamableHttp:
    return MCPServerStreamableHttp(
        params={"url": JOB["url"], "headers": JOB["headers"], "timeout": 45},
        client_session_timeout_seconds=45,  # its default of 5 s is shorter than a wait of ours
    )


async def main() -> None:
    # One server object sends one request at a time, so whoever waits for history needs a second one.
    server, follower = connection(), connection()

    async def call(name: str, arguments: dict[str, Any], by: MCPServerStreamableHttp = server) -> Any:
        return await by.call_tool(name, arguments, meta=JOB["meta"])

    def texts(result: Any) -> list[str]:
        return [block.text for block in result.content]

    session = {"sessionId": JOB["session"]}
    async with server, follower:
        tools = [tool.name for tool in await server.list_tools()]
        init = await call("init", session)
        batch = await call("call", {**session, "calls": JOB["calls"]})
        newest = await call("history", {**session, "limit": 1})
        after = json.loads(texts(newest)[1])["entry"]
        waiting = asyncio.create_task(call("history", {**session, "after": after, "wait": True}, follower))
        await asyncio.sleep(JOB["pauseMs"] / 1000)  # the wait is very likely under way
        await call("call", {**session, "calls": JOB["later"]})
        waited = await waiting
        refused = await call("init", {**session, "sesionId": "misspelt"})
    told = {
        "tools": tools,
        "init": texts(init),
        "batch": texts(batch),
        "waited": texts(waited),
        "refused": {"isError": bool(refused.is_error), "texts": texts(refused)},
    }
    print(json.dumps(told))


asyncio.run(main())
