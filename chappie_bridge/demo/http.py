"""HTTP/1.1 for peers that play a part on this machine: one request a connection, both ends.  Knows no MCP.

h11 parses; the sockets are anyio's, so that a cancelled request closes its connection as a client does that
hangs up.  No TLS, no keep-alive: not for the product's own front door.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

import anyio
import h11
from anyio.abc import ByteStream, SocketAttribute

MAX_BODY = 16 * 1024 * 1024
MAX_CONNECTIONS = 256

_CHUNK = 64 * 1024


class HttpError(Exception):
    """The other end is not there, left before the end, or does not speak HTTP."""


class Request(NamedTuple):
    """`headers` by name in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Response(NamedTuple):
    """`headers` by name in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


async def post(url: str, headers: Mapping[str, str], body: bytes) -> Response:
    """Send and wait for the whole answer; the caller bounds the time.  :raises HttpError: no answer came."""
    target = urlsplit(url)
    fields = {**headers, "Host": target.netloc, "Content-Length": str(len(body)), "Connection": "close"}
    wire = h11.Connection(h11.CLIENT)
    try:
        async with await anyio.connect_tcp(target.hostname or "", target.port or 80) as stream:
            start = h11.Request(method="POST", target=target.path or "/", headers=list(fields.items()))
            await _send(stream, wire, start, body)
            response = await _start(stream, wire)
            if not isinstance(response, h11.Response):
                raise HttpError(f"{url}: no answer but {response!r}")
            return Response(response.status_code, _headers(response), await _body(stream, wire))
    except (OSError, anyio.BrokenResourceError, h11.ProtocolError) as error:
        raise HttpError(f"{url}: {error or type(error).__name__}") from None


@asynccontextmanager
async def serve(answer: Callable[[Request], Awaitable[Response]]) -> AsyncGenerator[int]:
    """Listen on a free port of 127.0.0.1, which is given; on the way out every connection is closed."""
    limit = anyio.CapacityLimiter(MAX_CONNECTIONS)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, partial(_connection, answer, limit))
        yield listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
        tasks.cancel_scope.cancel()


async def _connection(
    answer: Callable[[Request], Awaitable[Response]], limit: anyio.CapacityLimiter, stream: ByteStream
) -> None:
    wire = h11.Connection(h11.SERVER)
    async with limit, stream:
        try:
            start = await _start(stream, wire)
            if not isinstance(start, h11.Request):
                return
            body = await _body(stream, wire)
            path = start.target.decode("ascii")
            response = await answer(Request(start.method.decode("ascii"), path, _headers(start), body))
            fields = {**response.headers, "content-length": str(len(response.body)), "connection": "close"}
            head = h11.Response(status_code=response.status, headers=list(fields.items()))
            await _send(stream, wire, head, response.body)
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, h11.ProtocolError, HttpError):
            return  # whoever asked has left, or spoke no HTTP


async def _send(
    stream: ByteStream, wire: h11.Connection, start: h11.Request | h11.Response, body: bytes
) -> None:
    await stream.send((wire.send(start) or b"") + (wire.send(h11.Data(data=body)) or b""))
    if rest := wire.send(h11.EndOfMessage()):
        await stream.send(rest)


async def _next(stream: ByteStream, wire: h11.Connection) -> h11.Event:
    while True:
        event = wire.next_event()
        if event is h11.NEED_DATA:
            try:
                wire.receive_data(await stream.receive(_CHUNK))
            except anyio.EndOfStream:
                wire.receive_data(b"")
        elif isinstance(event, h11.Event):
            return event
        else:
            raise HttpError("the connection is paused")


async def _start(stream: ByteStream, wire: h11.Connection) -> h11.Event:
    while isinstance(event := await _next(stream, wire), h11.InformationalResponse):
        continue
    return event


async def _body(stream: ByteStream, wire: h11.Connection) -> bytes:
    body = bytearray()
    while not isinstance(event := await _next(stream, wire), h11.EndOfMessage):
        if not isinstance(event, h11.Data):
            raise HttpError("the other end left before the end of its message")
        body += event.data
        if len(body) > MAX_BODY:
            raise HttpError(f"a message has more than {MAX_BODY} bytes")
    return bytes(body)


def _headers(start: h11.Request | h11.Response) -> dict[str, str]:
    return {name.decode("ascii"): value.decode("latin-1") for name, value in start.headers}
