"""Thirty-two clients on one session over real HTTP, every request with the same JSON-RPC id."""

import asyncio
import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.story.bridge import Home

pytestmark = pytest.mark.anyio

CLIENTS = 32
CALLS = 313
"""Of each client: 10,016 in all."""


class Connection:
    """One keep-alive connection of one conversation; every request has the id 1."""

    def __init__(self, port: int, headers: dict[str, str], name: str) -> None:
        self._port, self._headers, self._name = port, headers, name

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**22)

    async def call(self, session: str, path: str) -> tuple[dict[str, Any], list[str]]:
        """The head and the texts of a `read`."""
        arguments = {"sessionId": session, "calls": [{"name": "read", "arguments": {"path": path}}]}
        meta = {"openai/session": self._name}
        params = {"name": "call", "arguments": arguments, "_meta": meta}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        lines = ["POST /mcp HTTP/1.1", f"Host: 127.0.0.1:{self._port}", f"Content-Length: {len(body)}"]
        lines += ["Content-Type: application/json", "Accept: application/json, text/event-stream"]
        lines += ["MCP-Protocol-Version: 2025-11-25", *(f"{k}: {v}" for k, v in self._headers.items())]
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:"))
        answer = json.loads(await self._reader.readexactly(length))
        texts = [block["text"] for block in answer["result"]["content"]]
        return json.loads(texts[0]), texts[1:]

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def test_ten_thousand_calls_with_equal_ids_never_cross_and_keep_their_order(tmp_path: Path) -> None:
    """B04 B05 S07"""
    home = Home(tmp_path)
    for number in range(CLIENTS):
        (home.work / f"{number}.txt").write_text(f"for client {number} alone\n", encoding="utf-8")
    with home.up() as running:
        port = int(running.ready["mcp"].split(":")[2].split("/")[0])
        done: list[int] = []

        async def work(number: int) -> None:
            connection = Connection(port, running.ready["headers"], f"chat {number}")
            await connection.open()
            before = 0
            for _ in range(CALLS):
                head, texts = await connection.call(running.ready["session"], f"{number}.txt")
                assert head["status"] == "done"
                assert head["seq"] > before
                before = head["seq"]
                others = [n for n in range(CLIENTS) if any(f"for client {n} alone" in text for text in texts)]
                assert others == [number]
                done.append(number)
            await connection.close()

        async with anyio.create_task_group() as tasks:
            for number in range(CLIENTS):
                tasks.start_soon(work, number)
        # Nobody starved: when half was done, every client had between a third and two thirds of its share.
        half = done[: len(done) // 2]
        assert all(CALLS // 3 <= half.count(number) <= 2 * CALLS // 3 for number in range(CLIENTS))
