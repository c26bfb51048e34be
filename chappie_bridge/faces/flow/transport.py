"""HTTP/1.1 of the local function flow: four kinds of request to the owner's endpoint.  Follows no redirect,
keeps no cookie, logs no header and no body."""

import json
import logging
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from urllib.parse import SplitResult, quote, urlsplit

import anyio
import h11
from anyio.abc import ByteStream
from pydantic import JsonValue, ValidationError

from chappie_bridge.codec.conversation import ChallengeAnswer, Json, PrepareAnswer
from chappie_bridge.codec.loose import parsed, record, string
from chappie_bridge.codec.unicode import display
from chappie_bridge.faces.flow.own import Own
from chappie_bridge.faces.flow.settings import FlowSettings
from chappie_bridge.wire.errors import BadArguments

log = logging.getLogger("chappie.flow")

MAX_ANSWER = 64 * 1024 * 1024
"""Bytes of an answer that is read as a whole: a stored conversation is the longest."""

CONNECT_SECONDS = 30.0
PREPARE_SECONDS = 10.0
"""A preparation that takes longer counts as not answered; the turn does not wait for it."""

_CHUNK = 64 * 1024
_SAID = 300


class Refused(Exception):
    """The endpoint did not accept a request, or is not there.  The text is for the person."""


class Cut(Exception):
    """The connection ended, or fell silent, within an answer."""


class Transport:
    """:raises BadArguments: (of the constructor) no endpoint is configured."""

    def __init__(self, settings: FlowSettings) -> None:
        if not settings.endpoint:
            raise BadArguments(
                "No endpoint is configured, and none is built in.",
                hint="Set `endpoint` in [flow] of your config.toml; see docs/flow.md.",
            )
        self._settings = settings
        self._base = urlsplit(settings.endpoint)
        self._own = Own(settings)

    async def prepare(self, body: Json) -> str | None:
        """The conduit token; None where none came."""
        try:
            with anyio.fail_after(PREPARE_SECONDS):
                answer = await self._whole("POST", self._settings.prepare, body)
            return PrepareAnswer.model_validate(answer).conduit_token
        except (Refused, Cut, TimeoutError, ValidationError) as error:
            log.info("no prepare answer: %s", type(error).__name__)
            return None

    async def challenge(self) -> str:
        """The owner's answer, to a challenge of the endpoint where one is asked for.

        :raises Refused: :raises Cut: :raises BadArguments:"""
        challenge = None
        if self._settings.challenge:
            answer = await self._whole("GET", self._settings.challenge)
            try:
                challenge = ChallengeAnswer.model_validate(answer).attestation_challenge
            except ValidationError:
                raise Refused("The endpoint gave no challenge.") from None
        return await self._own.answer(challenge)

    async def read(self, conversation: str) -> JsonValue:
        """The stored conversation; None where it cannot be had."""
        if not self._settings.read:
            return None
        path = self._settings.read.replace("{conversation_id}", quote(conversation, safe=""))
        try:
            return await self._whole("GET", path)
        except (Refused, Cut) as error:
            log.info("the conversation could not be read: %s", type(error).__name__)
            return None

    @asynccontextmanager
    async def converse(self, body: Json, conduit: str | None) -> AsyncGenerator[AsyncGenerator[bytes]]:
        """The stream of an accepted request, piece by piece; reading it may raise Cut.

        :raises Refused: :raises Cut:"""
        more: list[tuple[str, str]] = []
        if conduit is not None and self._settings.conduit_header:
            more.append((self._settings.conduit_header.lower(), conduit))
        async with self._asked("POST", self._settings.conversation, body, more) as pieces:
            yield pieces

    async def _whole(self, method: str, path: str, body: Json | None = None) -> JsonValue:
        found = bytearray()
        async with self._asked(method, path, body) as pieces:
            async for piece in pieces:
                found += piece
                if len(found) > MAX_ANSWER:
                    raise Cut
        return parsed(found.decode("utf-8", "replace"))

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, body: Json | None = None, more: list[tuple[str, str]] | None = None
    ) -> AsyncGenerator[AsyncGenerator[bytes]]:
        data = b"" if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        headers = [("host", self._base.netloc), *await self._own.headers(), *(more or [])]
        headers += [("accept-encoding", "identity"), ("connection", "close")]
        headers.append(
            ("accept", "text/event-stream" if path == self._settings.conversation else "application/json")
        )
        if body is not None:
            headers += [("content-type", "application/json"), ("content-length", str(len(data)))]
        wire = h11.Connection(h11.CLIENT)
        async with await self._connected() as stream:
            try:
                request = h11.Request(method=method, target=self._base.path + path, headers=headers)
                await stream.send((wire.send(request) or b"") + (wire.send(h11.Data(data=data)) or b""))
                await stream.send(wire.send(h11.EndOfMessage()) or b"")
            except h11.LocalProtocolError:
                raise BadArguments("A configured header cannot be sent.") from None
            except (OSError, anyio.BrokenResourceError):
                raise Cut from None
            start = await self._event(wire, stream)
            while isinstance(start, h11.InformationalResponse):
                start = await self._event(wire, stream)
            if not isinstance(start, h11.Response):
                raise Cut
            if not 200 <= start.status_code < 300:
                raise Refused(await self._refusal(start.status_code, wire, stream))
            async with aclosing(self._pieces(wire, stream)) as pieces:
                yield pieces

    async def _connected(self) -> ByteStream:
        base = self._base
        tls = base.scheme == "https"
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                return await _connect(base, tls)
        except (OSError, TimeoutError) as error:
            raise Refused(f"The endpoint cannot be reached: {error or type(error).__name__}.") from None

    async def _pieces(self, wire: h11.Connection, stream: ByteStream) -> AsyncGenerator[bytes]:
        while not isinstance(event := await self._event(wire, stream), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise Cut
            yield bytes(event.data)

    async def _event(self, wire: h11.Connection, stream: ByteStream) -> h11.Event:
        try:
            with anyio.fail_after(self._settings.idle):
                while (event := wire.next_event()) is h11.NEED_DATA:
                    try:
                        wire.receive_data(await stream.receive(_CHUNK))
                    except anyio.EndOfStream:
                        wire.receive_data(b"")
        except (OSError, TimeoutError, anyio.BrokenResourceError, h11.RemoteProtocolError):
            raise Cut from None
        if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):
            raise Cut
        return event

    async def _refusal(self, status: int, wire: h11.Connection, stream: ByteStream) -> str:
        """The status and what the endpoint says of it."""
        found = bytearray()
        with suppress(Cut):
            async with aclosing(self._pieces(wire, stream)) as pieces:
                async for piece in pieces:
                    found += piece
                    if len(found) > _CHUNK:
                        break
        text = found.decode("utf-8", "replace")
        said = string(record(parsed(text)).get("detail")) or text
        return (
            f"The endpoint refused the request ({status}): {display(said.strip(), _SAID) or 'without a word'}"
        )


async def _connect(base: SplitResult, tls: bool) -> ByteStream:
    host, port = base.hostname or "", base.port or (443 if tls else 80)
    if not tls:
        return await anyio.connect_tcp(host, port)
    context = ssl.create_default_context()
    return await anyio.connect_tcp(host, port, ssl_context=context, tls_standard_compatible=False)
