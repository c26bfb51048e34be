"""How an answer leaves over HTTP: whole or as events, refused or not, and whether the client was there to its
last byte.  Decides nothing and reads no request.
"""

import asyncio

import anyio
import mcp_types as types
from starlette.types import Message, Receive, Send

from chappie_bridge.faces.chatgpt.admission import Refusal
from chappie_bridge.faces.chatgpt.kernel import failed
from chappie_bridge.wire.errors import Internal, Timeout, Unsupported

SEND_SECONDS = 30.0
"""How long a client may take to read an answer that does not fit the socket's buffers."""

_AT_ONCE = 64 * 1024
"""Bytes of an answer that one `send` hands to the socket; of more, the end waits until it drained."""

_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

_ALLOWED = (
    b"Authorization, Content-Type, X-Chappie-Key, X-Chappie-Conversation, MCP-Protocol-Version, Mcp-Method,"
    b" Mcp-Name, Mcp-Session-Id, Last-Event-ID"
)
"""Headers that a page may send."""


class Client:
    """Watches whether the client is still there, from the end of its request to the end of the answer."""

    def __init__(self, receive: Receive, scope: anyio.CancelScope) -> None:
        """`scope` is cancelled when the client leaves."""
        self._receive = receive
        self._scope = scope
        self._watch = asyncio.get_running_loop().create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._scope.cancel()

    async def gone(self) -> bool:
        """Before it is judged, the loop gets the turns that it takes to see a disconnect that is there."""
        for _ in range(4):
            await asyncio.sleep(0)
        return self.left

    @property
    def left(self) -> bool:
        return self._watch.done()

    def forget(self) -> None:
        self._watch.cancel()


class Events:
    """An answer as server-sent events: what the first word ahead of it makes of it."""

    def __init__(self, send: Send) -> None:
        self.begun = False
        self._send = send

    async def tell(self, message: bytes) -> None:
        """One message ahead of the answer."""
        if not self.begun:
            self.begun = True
            headers = [(b"content-type", b"text/event-stream"), *_HEADERS]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": _event(message), "more_body": True})

    async def end(self, client: Client, message: bytes) -> bool:
        """The answer; was the client there until its last byte was handed over?"""
        with anyio.move_on_after(SEND_SECONDS):
            await self.tell(message)
            await self._send({"type": "http.response.body", "body": b""})
            return not client.left
        return False


def _event(message: bytes) -> bytes:
    return b"event: message\ndata: " + message + b"\n\n"


async def deliver(send: Send, client: Client, status: int, body: bytes) -> bool:
    """Send the answer; was the client there until its last byte was handed over?"""
    await _start(send, status, len(body))
    if len(body) <= _AT_ONCE:
        await send({"type": "http.response.body", "body": body})
        return not client.left
    with anyio.move_on_after(SEND_SECONDS):
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})  # returns when the buffers have drained
        return not client.left
    return False


async def _start(
    send: Send,
    status: int,
    size: int,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    kind: bytes = b"application/json",
) -> None:
    fields = [(b"content-type", kind), *_HEADERS, *headers, (b"content-length", b"%d" % size)]
    await send({"type": "http.response.start", "status": status, "headers": fields})


async def reply(
    send: Send,
    status: int,
    body: bytes,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    kind: bytes = b"application/json",
) -> None:
    """A short body of the content type `kind`."""
    await _start(send, status, len(body), headers, kind)
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, refusal: Refusal, challenge: str = "") -> None:
    """`challenge` takes the place of the refusal's own."""
    failure = refusal.error.failure()
    code = types.INTERNAL_ERROR if isinstance(refusal.error, Internal | Timeout) else types.INVALID_REQUEST
    data = failure.model_dump(mode="json", exclude_none=True, exclude={"message"})
    headers = ((b"www-authenticate", challenge.encode()),) if challenge else refusal.headers
    await reply(send, refusal.status, failed(None, code, failure.message, data), headers)


def readable(send: Send, origin: str) -> Send:
    """Lets a page of `origin`, which is allowed here, read the answer.  No cookie ever comes with it."""
    fields = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"WWW-Authenticate, Mcp-Session-Id"),
        (b"vary", b"Origin"),
    ]

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *fields]}
        await send(message)

    return sent


async def preflight(send: Send) -> None:
    fields = [
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-allow-headers", _ALLOWED),
        (b"access-control-max-age", b"600"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": fields})
    await send({"type": "http.response.body", "body": b""})


def only(methods: str) -> Refusal:
    error = Unsupported(f"Only {methods} is answered here.")
    return Refusal(405, error, ((b"allow", methods.encode()),))
