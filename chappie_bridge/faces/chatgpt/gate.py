"""The HTTP entry: owns `receive` and `send` from the first header to the last byte, and says what was sent.

ASGI without a framework, because each layer costs time on every call.  It refuses, bounds and cleans what
comes in, hands single messages to the kernel, and tells the Switchboard which answers left towards a client
that was there: a server's `send` succeeds towards one that is long gone, only `receive` knows.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import anyio
import mcp_types as types
from mcp_types import DEFAULT_NEGOTIATED_VERSION
from starlette.types import Receive, Scope, Send

from chappie_bridge.codec.unicode import clean_json_bytes
from chappie_bridge.faces.chatgpt.admission import Admission, Refusal
from chappie_bridge.faces.chatgpt.answers import (
    Client,
    Events,
    deliver,
    only,
    preflight,
    readable,
    refuse,
    reply,
)
from chappie_bridge.faces.chatgpt.exchange import Exchange
from chappie_bridge.faces.chatgpt.exposition import CONTENT_TYPE, DoorCount, exposition
from chappie_bridge.faces.chatgpt.kernel import VERSION_HEADER, Answer, Kernel, decode, failed, logged
from chappie_bridge.faces.chatgpt.oauth import metadata
from chappie_bridge.faces.chatgpt.oauth.routes import Door
from chappie_bridge.faces.dashboard import AT as DASHBOARD
from chappie_bridge.faces.dashboard import Dashboard
from chappie_bridge.wire.access import Held
from chappie_bridge.wire.errors import (
    BadArguments,
    BridgeError,
    Overloaded,
    Timeout,
    TooLarge,
    Unsupported,
)
from chappie_bridge.wire.owner import TakeMeasures
from chappie_bridge.wire.ports import Office, Switchboard
from chappie_bridge.wire.requests import BrokerStatus

MAX_REQUESTS = 11_000
"""Requests under way at once; one more is `overloaded`."""

OVERDUE = 55.0
"""Seconds after which a request is given up, whatever it waits for.  Tools answer within 50."""

READY_SECONDS = 2.0

_OFFERED = {b"application/json", b"application/*", b"*/*"}
_READING = ("GET", "HEAD")
_CLOSE = ((b"connection", b"close"),)
_ONCE = frozenset(
    b"host origin authorization x-chappie-key x-openai-session x-openai-subject x-chappie-conversation"
    b" content-type content-length mcp-protocol-version mcp-method mcp-name".split()
)
"""Headers that may come once only: two readers of a repeated one could disagree."""


_Answers = Callable[[str, Mapping[str, str], Receive, Send], Awaitable[None]]
"""To a method and headers."""


class Gate:
    """An ASGI application: `/mcp`, `/metrics`, `/healthz`, `/readyz`, OAuth, the dashboard, nothing else."""

    def __init__(
        self,
        kernel: Kernel,
        switchboard: Switchboard,
        admission: Admission,
        body_max: int,
        office: Office | None = None,
        door: Door | None = None,
        dashboard: Dashboard | None = None,
    ) -> None:
        """`body_max` in bytes.  Without an `office` there are only the gate's own metrics, without a `door`
        no OAuth.  `dashboard` has logins of its own; hosts and origins are checked before it."""
        self._kernel = kernel
        self._switchboard = switchboard
        self._admission = admission
        self._body_max = body_max
        self._office = office
        self._door = door
        self._dashboard = dashboard
        self._count = DoorCount()
        self._own: Mapping[str, _Answers] = {
            "/mcp": self._mcp,
            "/metrics": self._metrics,
            "/healthz": self._alive,
            "/readyz": self._of_use,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _lifespan(receive, send)
        else:  # a websocket: none is spoken here
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    def close(self) -> None:
        """The server leaves: what would go on by itself ends."""
        if self._dashboard is not None:
            self._dashboard.close()

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, repeated = _headers(scope)
        path, method = scope["path"], scope["method"]
        refusal = self._admission.place(headers)
        if repeated:
            refusal = Refusal(400, BadArguments(f"The header `{repeated}` comes more than once."))
        if refusal is not None:
            self._count.refused[refusal.status] += 1
            await refuse(send, refusal)
            return
        if "origin" in headers and (path == "/mcp" or (self._door and path in self._door.readable)):
            send = readable(send, headers["origin"])
            if method == "OPTIONS" and "access-control-request-method" in headers:
                await preflight(send)
                return
        if path in self._own:
            await self._own[path](method, headers, receive, send)
        elif self._door is not None and path in self._door.routes:
            await self._door.answer(scope, headers, receive, send)
        elif self._dashboard is not None and (path == DASHBOARD or path.startswith(f"{DASHBOARD}/")):
            await self._dashboard(scope, receive, send)
        else:
            await refuse(send, Refusal(404, Unsupported("There is nothing here. MCP is served at `/mcp`.")))

    async def _mcp(self, method: str, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        principal, held = self._admission.principal(headers), None
        challenge = self._challenge(headers)
        if isinstance(principal, Refusal) and self._door is not None:
            held = self._door.held(headers)
            principal = principal if held is None else held.principal
        if isinstance(principal, Refusal):
            self._count.refused[principal.status] += 1
            await refuse(send, principal, challenge)
        elif method != "POST":
            await refuse(send, only("POST"))
        elif (refusal := _unfit(headers)) is not None:
            await refuse(send, refusal)
        elif self._count.under_way >= MAX_REQUESTS:
            await refuse(send, Refusal(503, Overloaded()))
        else:
            self._count.under_way += 1
            self._count.taken += 1
            try:
                await self._exchange(principal, held, headers, receive, send)
            finally:
                self._count.under_way -= 1

    def _challenge(self, headers: Mapping[str, str]) -> str:
        """How an OAuth client gets a token; empty where it cannot."""
        base = self._door.base(headers) if self._door is not None else ""
        if not base:
            return ""
        if "authorization" in headers:
            return metadata.challenge(base, "invalid_token", "The token is not good, or not for this server.")
        return metadata.challenge(base)

    async def _alive(self, method: str, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        await _healthy(method, send, ok=True)

    async def _of_use(self, method: str, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        await _healthy(method, send, ok=method in _READING and await self._ready())

    async def _metrics(self, method: str, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        """For whoever has a credential: how busy its owner is, is nobody else's affair."""
        principal = self._admission.principal(headers)
        if isinstance(principal, Refusal):
            self._count.refused[principal.status] += 1
            await refuse(send, principal)
        elif method not in _READING:
            await refuse(send, only("GET, HEAD"))
        else:
            try:
                taken = () if self._office is None else (await self._office.measures(TakeMeasures())).measures
            except BridgeError as error:
                await refuse(send, Refusal(503, error))
                return
            body = exposition((*taken, *self._count.measures())).encode()
            await reply(send, 200, body, kind=CONTENT_TYPE)

    async def _exchange(
        self,
        principal: str,
        held: Held | None,
        headers: Mapping[str, str],
        receive: Receive,
        send: Send,
    ) -> None:
        exchange = Exchange(
            principal,
            asyncio.get_running_loop().time,
            session=headers.get("x-openai-session", ""),
            conversation=headers.get("x-chappie-conversation", ""),
            client=headers.get("user-agent", ""),
            subject=headers.get("x-openai-subject", ""),
            credential="" if held is None else held.grant,
        )
        if held is not None and self._door is not None:
            exchange.withdrawn = partial(self._door.withdrawn, held, headers)
        sent = False
        client: Client | None = None
        answer: Answer | None = None
        events = Events(send)
        if "text/event-stream" in headers.get("accept", ""):
            exchange.tell = events.tell
        try:
            with anyio.CancelScope(deadline=exchange.arrived + OVERDUE) as scope:
                body = await self._body(headers, receive)
                if body is None:
                    return
                if isinstance(body, Refusal):
                    await refuse(send, body)
                    return
                client = Client(receive, scope)
                answer = await self._answer(body, exchange, headers)
            if client is None:
                await refuse(send, Refusal(408, Timeout("The request did not end in time."), _CLOSE))
                return
            if await client.gone():
                return
            in_time = exchange.in_time
            if answer is None and events.begun:
                await events.end(client, failed(None, types.INTERNAL_ERROR, "No answer came in time."))
            elif answer is None:
                await refuse(send, Refusal(504, Timeout(f"No answer came within {OVERDUE:g} s.")))
            elif events.begun:
                sent = await events.end(client, answer.body) and in_time
            else:
                sent = await deliver(send, client, *answer) and in_time
        finally:
            if client is not None:
                client.forget()
            exchange.settle(self._switchboard, sent=sent)

    async def _answer(self, body: bytes, exchange: Exchange, headers: Mapping[str, str]) -> Answer:
        body, exchange.replaced = clean_json_bytes(body)
        try:
            message = decode(body)
        except ValueError:
            return Answer(400, failed(None, types.PARSE_ERROR, "The body is not JSON in UTF-8."))
        version = headers.get(VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
        return await self._kernel.answer(message, exchange, version=version, headers=headers)

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes | Refusal | None:
        """All of the body; None when the client left before its end."""
        limit = self._body_max
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > 2 * limit:
            return self._too_large(close=True)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size <= limit:
                parts.append(part)
            else:
                parts.clear()  # read on to its end, so that the client reads our answer
            if size > 2 * limit:
                return self._too_large(close=True)
            if not message.get("more_body", False):
                return b"".join(parts) if size <= limit else self._too_large(close=False)

    def _too_large(self, *, close: bool) -> Refusal:
        error = TooLarge(f"A request may have {self._body_max} bytes. Send it in parts.")
        return Refusal(413, error, _CLOSE if close else ())

    async def _ready(self) -> bool:
        with anyio.move_on_after(READY_SECONDS):
            try:
                await self._switchboard.status(BrokerStatus())
            except BridgeError:
                return False
            except Exception as error:
                logged(error)
                return False
            return True
        return False


async def _healthy(method: str, send: Send, *, ok: bool) -> None:
    if method not in _READING:
        await refuse(send, only("GET, HEAD"))
    elif ok:
        await reply(send, 200, b'{"ok":true}')
    else:
        await reply(send, 503, b'{"ok":false}')


def _unfit(headers: Mapping[str, str]) -> Refusal | None:
    """Is it JSON that comes, and may JSON be answered?"""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return Refusal(415, BadArguments("Send `Content-Type: application/json`."))
    accept = headers.get("accept", "*/*").lower().encode("latin-1", "replace")
    if not any(each.partition(b";")[0].strip() in _OFFERED for each in accept.split(b",")):
        return Refusal(406, BadArguments("Send `Accept: application/json, text/event-stream`."))
    return None


def _headers(scope: Scope) -> tuple[dict[str, str], str]:
    """Names in lower case, values without blanks around them; and which one is repeated and may not be."""
    headers: dict[str, str] = {}
    repeated = ""
    raw: list[tuple[bytes, bytes]] = scope["headers"]
    for name, value in raw:
        key = name.decode("latin-1")
        if key in headers:
            if name in _ONCE:
                repeated = key
            headers[key] += ", " + value.strip().decode("latin-1")
        else:
            headers[key] = value.strip().decode("latin-1")
    return headers, repeated


async def _lifespan(receive: Receive, send: Send) -> None:
    """Nothing to start, nothing to stop."""
    while True:
        message: Mapping[str, Any] = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
