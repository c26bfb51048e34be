"""PyPI langchain-mcp-adapters, on version 1 of the Python SDK: no way to send `_meta`, so a header names the
conversation.  Prints one JSON line."""

import asyncio
import json
import sys
from typing import Any

from langchain_mcp_adapters.client import MultiServerMCPClient

JOB = json.loads(sys.argv[1])


async def main() -> None:
    headers = {**JOB["headers"], "X-Chappie-Conversation": JOB["meta"]["openai/session"]}
    client = MultiServerMCPClient(
        {"bridge": {"transport": "streamable_http", "url": JOB["url"], "headers": headers}}
    )
    tools = {tool.name: tool for tool in await client.get_tools()}

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        return await tools[name].ainvoke({"type": "tool_call", "id": "1", "name": name, "args": arguments})

    def texts(message: Any) -> list[str]:
        return [block["text"] for block in message.content]

    session = {"sessionId": JOB["session"]}
    init = await call("init", session)
    batch = await call("call", {**session, "calls": JOB["calls"]})
    newest = await call("history", {**session, "limit": 1})
    after = json.loads(texts(newest)[1])["entry"]
    waiting = asyncio.create_task(call("history", {**session, "after": after, "wait": True}))
    await asyncio.sleep(JOB["pauseMs"] / 1000)  # the wait is very likely under way
    await call("call", {**session, "calls": JOB["later"]})
    waited = await waiting
    refused = await call("init", {**session, "sesionId": "misspelt"})
    told = {
        "tools": list(tools),
        "init": texts(init),
        "batch": texts(batch),
        "waited": texts(waited),
        "refused": {"isError": refused.status == "error", "texts": texts(refused)},
    }
    print(json.dumps(told))


asyncio.run(main())
