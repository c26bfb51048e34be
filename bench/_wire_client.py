"""The leanest MCP client over HTTP that is still correct: one keep-alive connection, prepared bodies.

It measures servers, so it does as little as it can: no schema, no retries."""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit


class WireClient:
    """`headers` carry the credential.  One request at a time."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._url = urlsplit(url)
        self._headers = dict(headers or {})
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._used = 0.0

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(
            self._url.hostname, self._url.port, limit=64 * 1024 * 1024
        )

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def prepared(self, tool: str, arguments: Mapping[str, Any], conversation: str, number: int = 1) -> bytes:
        """The bytes of a `tools/call`."""
        body = json.dumps(
            {
                "jsonrpc": "2.0",
                "id": number,
                "method": "tools/call",
                "params": {"name": tool, "arguments": arguments, "_meta": {"openai/session": conversation}},
            },
            separators=(",", ":"),
        ).encode()
        head = [
            f"POST {self._url.path} HTTP/1.1",
            f"Host: {self._url.netloc}",
            "Content-Type: application/json",
            "Accept: application/json, text/event-stream",
            "MCP-Protocol-Version: 2025-11-25",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in self._headers.items()),
        ]
        return "\r\n".join(head).encode() + b"\r\n\r\n" + body

    async def exchange(self, request: bytes) -> bytes:
        """Send, read the whole answer; its body.  Servers close what was idle for 5 s: so does this."""
        if time.monotonic() - self._used > 3:
            self.close()
            await self.open()
        self._used = time.monotonic()
        assert self._reader is not None
        assert self._writer is not None
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line[15:])
        body = await self._reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head[:100]!r} {body[:300]!r}")
        return body

    async def call(
        self, tool: str, arguments: Mapping[str, Any], conversation: str = "bench"
    ) -> dict[str, Any]:
        """The result of one call.  Raises when it is an error."""
        answer = json.loads(await self.exchange(self.prepared(tool, arguments, conversation)))
        if "result" not in answer or answer["result"].get("isError"):
            raise RuntimeError(json.dumps(answer)[:500])
        return dict(answer["result"])

    async def timed(self, request: bytes, count: int) -> list[float]:
        """Seconds of `count` sequential exchanges."""
        await self.exchange(request)
        samples = []
        for _ in range(count):
            began = time.perf_counter()
            await self.exchange(request)
            samples.append(time.perf_counter() - began)
        return samples
