"""The model endpoint: HTTP of three protocols on one side, sessions on the other.  An ASGI application; it
listens nowhere by itself, and knows no session's state.
"""

import hmac
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any, NamedTuple

import anyio
from anyio import to_thread
from pydantic import JsonValue

from chappie_agents.hosts.model.hold import Hold
from chappie_agents.hosts.model.house import House
from chappie_bridge.codec.events import BODY_KEEP_ALIVE, encode, status
from chappie_bridge.codec.loose import lower, record
from chappie_bridge.codec.protocols import CODECS, Codec, Stream, api_at
from chappie_bridge.codec.side import local_answer
from chappie_bridge.codec.turn import Answer, Api, Turn
from chappie_bridge.codec.unicode import clean
from chappie_bridge.wire.errors import BadArguments, BridgeError, Failure, Forbidden, Internal, TooLarge

log = logging.getLogger("chappie.model")

BODY_MAX = 64 * 1024 * 1024
"""Bytes of a request: programs send their whole history each time, images included."""

IN_A_THREAD = 256 * 1024
"""Bytes of a body above which it is read in a worker thread."""

MODEL = "chappie"

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


class _Gone(Exception):
    """The program closed the connection."""


class _Reply(NamedTuple):
    """How a request is answered: as a stream, or whole by `whole`."""

    hold: Hold
    stream: Stream | None
    whole: Callable[[Answer], bytes]
    refusal: Callable[[Failure], bytes]


class _Nobody:
    """Holds what is answered without a session."""

    def written(self, hold: Hold) -> None:
        pass

    def closed(self, hold: Hold) -> None:
        pass


class Endpoint:
    """The application.  `extensions` answer our own programs' extensions at `/chappie/…`."""

    def __init__(
        self,
        house: House,
        key: str,
        *,
        now: Callable[[], float],
        extensions: Callable[[str, Mapping[str, str], JsonValue], Awaitable[JsonValue]] | None = None,
    ) -> None:
        """`key` is what each request must carry.  `now`: seconds since the epoch."""
        self._house, self._key, self._now, self._extensions = house, key, now, extensions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        api = api_at(scope["path"]) or "chat"
        try:
            headers = _headers(scope)
            self._admit(scope["method"], headers)
            await self._route(scope, headers, receive, send)
        except _Gone:
            pass
        except BridgeError as error:
            await _whole(send, status(error.failure()), CODECS[api].refusal(error.failure()))
        except Exception:
            mark = secrets.token_hex(4)
            log.exception("a request failed (%s)", mark)
            failure = Internal(f"The bridge failed; its log holds the details under {mark}.").failure()
            await _whole(send, 500, CODECS[api].refusal(failure))

    def _admit(self, method: str, headers: Mapping[str, str]) -> None:
        """:raises Forbidden: from elsewhere than a program of this machine that has the key."""
        host = headers.get("host", "")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name not in _HOSTS:
            raise Forbidden(f"The header Host names {name[:64]!r}; this endpoint is for this machine only.")
        if "origin" in headers:
            raise Forbidden("Web pages may not use this endpoint.")
        if method == "HEAD":
            return
        given = headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode(), self._key.encode()):
            raise Forbidden(
                "The header Authorization does not carry this bridge's model key.",
                hint="`chappie-bridge model install PROGRAM --write` puts it into the configuration.",
            )

    async def _route(self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if method == "HEAD":
            await _whole(send, 200, b"")
        elif method == "GET" and path == "/v1/models":
            await _whole(send, 200, _models(int(self._now())))
        elif method != "POST":
            raise BadArguments(f"There is no {method} {path[:64]} here.")
        elif path == "/v1/messages/count_tokens":
            body = await _body(headers, receive)
            await _whole(send, 200, encode({"input_tokens": max(1, len(body) // 4)}))
        elif path.startswith("/chappie/") and self._extensions is not None:
            await self._extend(path.removeprefix("/chappie/"), headers, receive, send)
        elif (api := api_at(path)) is not None:
            reply = await self._open(api, headers, receive)
            await _answer(reply, receive, send, self._house.settings.keep_alive)
        else:
            raise BadArguments(f"There is no {path[:64]} here.")

    async def _extend(self, what: str, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        """An extension of ours waits; nothing waits for it once it left."""
        asked = _json(await _body(headers, receive))
        told: JsonValue = None
        refused: BridgeError | None = None
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            try:
                if self._extensions is not None:
                    told = await self._extensions(what, headers, asked)
            except BridgeError as error:
                refused = error
            tasks.cancel_scope.cancel()
        if refused is not None:
            raise refused
        await _whole(send, 200, encode(record(told)))

    async def _open(self, api: Api, headers: Mapping[str, str], receive: Receive) -> _Reply:
        """Hand a request to its session.  Nothing of it stays here."""
        codec = CODECS[api]
        turn = await _decoded(codec, headers, await _body(headers, receive))
        answered = local_answer(turn)
        if turn.side == "title" and self._house.settings.titles and self._house.known(turn) is not None:
            answered = None
        if answered is not None:
            hold = Hold(_Nobody())
            hold.give(answered)
            if turn.side == "title" and turn.form is None and (known := self._house.known(turn)) is not None:
                known.name(answered.text)
        elif turn.side is not None:
            session = await self._house.session(turn)
            hold = Hold(_Nobody())
            await session.ask_beside(turn, hold)
        else:
            session = await self._house.session(turn)
            hold = Hold(session)
            await session.ask(turn, hold)
        return _reply(codec, turn, hold, int(self._now()))


def _reply(codec: Codec, turn: Turn, hold: Hold, created: int) -> _Reply:
    name = secrets.token_hex(12)
    if turn.stream:
        return _Reply(hold, codec.stream(turn, name, created), _never, codec.refusal)
    # Only the model's name is needed at the end; the history must not wait with it.
    slim = replace(turn, history=(), start=0, tools=(), other_tools=(), system="", ask=(), extra={}, body={})

    def whole(answer: Answer) -> bytes:
        return codec.whole(slim, answer, name, created)

    return _Reply(hold, None, whole, codec.refusal)


def _never(answer: Answer) -> bytes:
    raise AssertionError("a streamed answer has no body")


# --- one connection -----------------------------------------------------------------------------


async def _answer(reply: _Reply, receive: Receive, send: Send, keep_alive: float) -> None:
    """Until the answer's end, the program's, or the hold's; `keep_alive` in seconds."""
    hold = reply.hold
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            hold.closed()
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            stream = reply.stream
            if await (
                _stream(reply, stream, send, keep_alive) if stream else _wait_whole(reply, send, keep_alive)
            ):
                hold.written()
        except OSError:
            pass  # it left while we wrote
        finally:
            hold.closed()
            tasks.cancel_scope.cancel()
    if hold.replaced:
        raise _Gone


async def _stream(reply: _Reply, stream: Stream, send: Send, keep_alive: float) -> bool:
    kind = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": kind})
    await send(_part(stream.open()))
    hold = reply.hold
    while not hold.replaced:
        if not await hold.stirred(keep_alive):
            await send(_part(stream.keep_alive()))
            continue
        while (answer := hold.next()) is not None:
            written = b"".join(stream.answer(answer))
            if answer.ends:
                await send({"type": "http.response.body", "body": written, "more_body": False})
                return True
            await send(_part(written))
        if hold.refusal is not None:
            failed = stream.fail(hold.refusal)
            await send({"type": "http.response.body", "body": failed, "more_body": False})
            return True
    return False


async def _wait_whole(reply: _Reply, send: Send, keep_alive: float) -> bool:
    kind = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": kind})
    hold = reply.hold
    while not hold.replaced:
        if not await hold.stirred(keep_alive):
            await send(_part(BODY_KEEP_ALIVE))
            continue
        while (answer := hold.next()) is not None:
            if answer.ends:
                body = reply.whole(answer)
                await send({"type": "http.response.body", "body": body, "more_body": False})
                return True
        if hold.refusal is not None:
            body = reply.refusal(hold.refusal)
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return True
    return False


def _part(body: bytes) -> Event:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _whole(send: Send, code: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


# --- one request --------------------------------------------------------------------------------


def _headers(scope: Scope) -> dict[str, str]:
    return lower([(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]])


async def _body(headers: Mapping[str, str], receive: Receive) -> bytes:
    """:raises TooLarge:"""
    told = headers.get("content-length", "0")
    if told.isdecimal() and int(told) > BODY_MAX:
        raise TooLarge
    parts, size = [], 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _Gone
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > BODY_MAX:
            raise TooLarge
        if not event.get("more_body", False):
            return b"".join(parts)


async def _decoded(codec: Codec, headers: Mapping[str, str], body: bytes) -> Turn:
    def decode() -> Turn:
        return codec.decode(headers, _json(body))

    if len(body) > IN_A_THREAD:
        return await to_thread.run_sync(decode)
    return decode()


def _json(body: bytes) -> JsonValue:
    """The value, lone surrogates replaced.  :raises BadArguments: it is not JSON."""
    try:
        value: JsonValue = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadArguments(f"The body is not JSON: {str(error)[:200]}.") from None
    return clean(value)[0] if b"\\u" in body else value


def _models(created: int) -> bytes:
    model: JsonValue = {
        "id": MODEL,
        "object": "model",
        "type": "model",
        "created": created,
        "owned_by": MODEL,
    }
    return encode({"object": "list", "data": [model], "has_more": False})
