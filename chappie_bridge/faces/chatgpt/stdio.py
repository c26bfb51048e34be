"""The stdio entry: one JSON-RPC message a line in UTF-8, nothing but answers out.  Opens nothing: it is given
both descriptors."""

import asyncio
import contextlib
import os
import re
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from queue import SimpleQueue

import anyio
import mcp_types as types
import pydantic_core
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.dispatcher import as_request_id, coerce_request_id
from mcp_types import PROTOCOL_VERSION_META_KEY
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from chappie_bridge.codec.unicode import clean_json_bytes
from chappie_bridge.faces.chatgpt.exchange import Exchange
from chappie_bridge.faces.chatgpt.kernel import Json, Kernel, decode, failed
from chappie_bridge.wire.errors import BridgeError, Overloaded, TooLarge
from chappie_bridge.wire.ports import WITHDRAWAL, Switchboard, Withdrawal

LINE_MAX = 4 * 1024 * 1024
"""Bytes of one line."""

MAX_REQUESTS = 256
"""Requests under way at once; one more is refused, to be sent again."""

FAREWELL = 1.5
"""Seconds for what is under way when the input ends."""

_CHUNK = 256 * 1024
_ENDS = 4096
_LAST_ID = re.compile(
    rb'"id"\s*:\s*("(?:[^"\\]|\\.){0,1000}"|-?\d{1,30})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$'
)


class LongLine(bytes):
    """The first and last bytes of a line that was longer than `LINE_MAX`."""


class Lines:
    """Cuts bytes into lines; at most one line and one chunk are kept."""

    def __init__(self, limit: int = LINE_MAX) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that `chunk` ends, without their ends; blank ones are skipped."""
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._take(piece)
            yield from self.end()
        self._take(rest)

    def end(self) -> Iterator[bytes]:
        """The line so far, as if it ended here."""
        line = b"".join(self._parts)
        long, self._parts, self._size = self._size > self._limit, [], 0
        if long:
            yield LongLine(line)
        elif line := line.strip():
            yield line

    def _take(self, piece: bytes) -> None:
        self._size += len(piece)
        self._parts.append(piece)
        if self._size > self._limit:
            whole = b"".join(self._parts)
            self._parts = [whole[:_ENDS], whole[-_ENDS:] if len(whole) > _ENDS else b""]


class Pipe:
    """Serves one client until its input ends."""

    def __init__(
        self, kernel: Kernel, switchboard: Switchboard, source: int, sink: int, principal: str = "owner"
    ) -> None:
        """`source` and `sink` are descriptors."""
        self._kernel = kernel
        self._switchboard = switchboard
        self._source = source
        self._sink = sink
        self._principal = principal
        self._process = secrets.token_hex(16)
        self._version = LATEST_HANDSHAKE_VERSION
        self._client = ""
        self._scopes: dict[types.RequestId, tuple[anyio.CancelScope, Withdrawal]] = {}
        self._under_way = 0
        self._outgoing: SimpleQueue[tuple[bytes, asyncio.Future[bool]] | None] = SimpleQueue()
        self._everything = anyio.CancelScope()

    async def serve(self) -> None:
        """Until the input ends or nobody reads the output; at most 2 s longer."""
        self._loop = asyncio.get_running_loop()
        arriving, chunks = anyio.create_memory_object_stream[bytes](0)
        # Threads of our own: they may stand in `read` or `write` for ever, and must not keep the process.
        threading.Thread(target=self._read, args=(arriving,), name="stdin", daemon=True).start()
        threading.Thread(target=self._drain, name="stdout", daemon=True).start()
        lines = Lines()
        try:
            with self._everything:
                async with chunks, anyio.create_task_group() as group:
                    async for chunk in chunks:
                        for line in lines.feed(chunk):
                            await self._take(line, group)
                    for line in lines.end():
                        await self._take(line, group)
                    self._everything.deadline = anyio.current_time() + FAREWELL
        finally:
            arriving.close()
            self._outgoing.put(None)

    def _read(self, arriving: MemoryObjectSendStream[bytes]) -> None:
        over = (OSError, RuntimeError, CancelledError, anyio.BrokenResourceError, anyio.ClosedResourceError)
        with contextlib.suppress(*over):
            while chunk := os.read(self._source, _CHUNK):
                asyncio.run_coroutine_threadsafe(arriving.send(chunk), self._loop).result()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(arriving.close)

    def _drain(self) -> None:
        written = True
        while written and (item := self._outgoing.get()) is not None:
            line, done = item
            try:
                rest = memoryview(line)
                while rest:
                    rest = rest[os.write(self._sink, rest) :]
            except OSError:  # nobody reads any more
                written = False
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_resolve, done, written)

    async def _write(self, message: bytes) -> bool:
        """Was the line handed over whole?  When nobody reads any more, everything ends."""
        done: asyncio.Future[bool] = self._loop.create_future()
        self._outgoing.put((message + b"\n", done))
        written = await done
        if not written:
            self._everything.cancel()
        return written

    async def _tell(self, message: bytes) -> None:
        """A message ahead of an answer."""
        await self._write(message)

    async def _take(self, line: bytes, group: TaskGroup) -> None:
        """Start one line's request; what is no request is done with here."""
        refusal: tuple[int, str, Json | None] | None = None
        message: object = None
        replaced = 0
        if isinstance(line, LongLine):
            text = f"A line may have {LINE_MAX} bytes. Send it in parts."
            refusal = types.INVALID_REQUEST, text, _facts(TooLarge())
        elif self._under_way >= MAX_REQUESTS:
            refusal = types.INTERNAL_ERROR, "Too many requests are under way.", _facts(Overloaded())
        else:
            cleaned, replaced = clean_json_bytes(line)
            try:
                message = decode(cleaned)
            except ValueError:
                refusal = types.PARSE_ERROR, "The line is not JSON in UTF-8.", None
        if refusal is not None:
            await self._write(failed(_identifier(line), *refusal))
        elif isinstance(message, dict) and message.get("method") == "notifications/cancelled":
            self._cancel(message)
        else:
            self._under_way += 1
            group.start_soon(self._serve, message, replaced)

    async def _serve(self, message: object, replaced: int) -> None:
        exchange = Exchange(self._principal, self._loop.time, process=self._process, client=self._client)
        exchange.replaced = replaced
        exchange.tell = self._tell
        key, scope, sent = _key(message), anyio.CancelScope(), False
        withdrawal = Withdrawal()
        WITHDRAWAL.set(withdrawal)
        if key is not None:
            self._scopes[key] = scope, withdrawal
        try:
            answer = b""
            with scope:
                answer = (await self._kernel.answer(message, exchange, version=self._era(message))).body
            if answer:  # written outside the scope: a line once begun is ended
                self._learn(message, answer)
                sent = await self._write(answer)
        finally:
            self._under_way -= 1
            if key is not None and self._scopes.get(key) == (scope, withdrawal):
                del self._scopes[key]
            exchange.settle(self._switchboard, sent=sent)

    def _cancel(self, message: Json) -> None:
        """A cancelled request is not answered, and what it started stops."""
        params = message.get("params")
        key = _key({"id": params.get("requestId")}) if isinstance(params, dict) else None
        if key is not None and (found := self._scopes.get(key)):
            scope, withdrawal = found
            withdrawal.stop = True
            scope.cancel()

    def _era(self, message: object) -> str:
        """The version in the message's own envelope, else the one agreed on at the handshake."""
        if isinstance(message, dict) and message.get("method") != "initialize":
            params = message.get("params")
            meta = params.get("_meta") if isinstance(params, dict) else None
            if isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta:
                return str(meta[PROTOCOL_VERSION_META_KEY])
        return self._version

    def _learn(self, message: object, answer: bytes) -> None:
        """What the handshake agreed on."""
        if isinstance(message, dict) and message.get("method") == "initialize":
            result = pydantic_core.from_json(answer).get("result")
            if result is not None:
                self._version = result["protocolVersion"]
                self._client = message["params"]["clientInfo"]["name"]


def _facts(error: BridgeError) -> Json:
    return {"code": error.code, "retryable": error.retryable, "executed": str(error.executed)}


def _resolve(done: asyncio.Future[bool], written: bool) -> None:
    if not done.done():
        done.set_result(written)


def _key(message: object) -> types.RequestId | None:
    identifier = as_request_id(message.get("id")) if isinstance(message, dict) else None
    return None if identifier is None else coerce_request_id(identifier)


def _identifier(line: bytes) -> types.RequestId | None:
    """The id of a request that cannot be parsed as a whole, from its beginning or its end."""
    start = line[:_ENDS] if isinstance(line, LongLine) else line
    with contextlib.suppress(ValueError):
        message = pydantic_core.from_json(start.decode("utf-8", "replace"), allow_partial=True)
        if isinstance(message, dict) and (found := as_request_id(message.get("id"))) is not None:
            return found
    with contextlib.suppress(ValueError):
        if end := _LAST_ID.search(line):
            return as_request_id(pydantic_core.from_json(end[1]))
    return None
