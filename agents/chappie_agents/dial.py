"""The dialling end of a link: connects, greets, resumes, backs off.  Reads no message."""

import asyncio
import ipaddress
import json
import logging
import random
import socket
import ssl as tls
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Literal, NamedTuple, cast
from urllib.parse import urlsplit

import anyio
import pydantic
from websockets.client import ClientProtocol
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from chappie_bridge.websocket import CLOSE_AFTER, MAX_FRAME, QUIET, WebSocket
from chappie_bridge.wire.endpoint import NOBODY, Endpoint
from chappie_bridge.wire.errors import (
    BadArguments,
    BridgeError,
    Failure,
    Forbidden,
    Lost,
    Overloaded,
    VersionMismatch,
    from_failure,
)
from chappie_bridge.wire.ids import InstanceId
from chappie_bridge.wire.link import (
    PROTOCOL,
    SUBPROTOCOL,
    Hello,
    LinkFault,
    Welcome,
    check_protocol,
    decode,
    frame_hello,
)
from chappie_bridge.wire.pairing import CA
from chappie_bridge.wire.ports import Attendant, Link, Peer

from .pin import pinned, same

_log = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 30.0
"""Seconds before the second attempt, and at most before any; each pause doubles the one before."""

NEAR_PAUSE = 2.0
"""Seconds at most on a unix socket: whoever restarts the broker of this machine waits for its agents."""

GREETING = 10.0
"""Seconds from the attempt to connect until the Welcome."""

STEADY = 10.0
"""Seconds that a link must have been up before its loss counts as the first."""

LINK_PORT = 24274
"""Where brokers listen unless told otherwise."""

FINAL = frozenset(
    {
        CloseCode.NORMAL_CLOSURE,  # this end said goodbye
        CloseCode.PROTOCOL_ERROR,  # one side sent nonsense; a replay would only repeat it
        CloseCode.INVALID_DATA,
        CloseCode.MESSAGE_TOO_BIG,
    }
)
"""Close codes after which neither end remembers the link."""


class Address(NamedTuple):
    path: str | None
    """Of a unix socket; `uri` then only fills the request's lines."""
    uri: WebSocketURI


class Dial(Endpoint):
    """The link to the broker at `address`: `unix:PATH`, `ws://HOST:PORT` on this machine, or
    `wss://HOST:PORT`.  Messages sent before it is up wait for it.

    One Dial is one peer for its whole life.  When the broker forgot it (a restart, a lease that ran
    out), the attendant hears `link_gone`, then `link_up`, both with this Dial.  `peer.device` is the
    device as which the broker knows this end.  `ping` in seconds; `jitter` gives numbers from 0 to 1.
    `token` is asked for before each connection; where it gives several, each is tried until one is taken.
    `pin` as in `wire.pairing`: with a fingerprint the certificate itself is compared and nothing else of it
    counts, and nothing is sent to a server that has another one.

    :raises BadArguments: when the address or the token cannot be one.
    :raises Forbidden: for `ws://` to another machine, which would show the token to everybody.
    """

    def __init__(
        self,
        address: str,
        attendant: Attendant,
        *,
        role: Literal["agent", "caller"],
        instance: InstanceId,
        name: str = "",
        version: str = "",
        token: str | Callable[[], Sequence[str]] | None = None,
        pin: str = CA,
        ssl: tls.SSLContext | None = None,
        ping: float = 10,
        jitter: Callable[[], float] = random.random,
        pause: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        super().__init__(NOBODY, attendant, _later)
        self._tokens = (
            (lambda: (token,) if token else ()) if token is None or isinstance(token, str) else token
        )
        for each in self._tokens():
            if not (each.isascii() and each.isprintable() and " " not in each):
                raise BadArguments("A device token is printable ASCII without spaces.")
        self._which = 0
        self._pin = pin
        self._address = parse(address)
        self._role: Literal["agent", "caller"] = role
        self._instance = instance
        self._name = name
        self._version = version
        self._ssl = ssl
        self._ping = ping
        self._jitter = jitter
        self._pause = pause
        self._of: InstanceId | None = None
        self._failures = 0

    @property
    def failures(self) -> int:
        """Connections in a row that failed, or were lost before they had been steady; for health."""
        return self._failures

    async def run(self) -> None:
        """Keep the link up until cancelled, then say goodbye.  Call it once.

        :raises BridgeError: when the broker refuses for good (Forbidden, VersionMismatch)."""
        try:
            while True:
                if await self._connect():
                    self._failures = 0
                await self._pause(self._next_pause())
                self._failures += 1
        finally:
            self._forgotten()

    def _next_pause(self) -> float:
        most = LONGEST_PAUSE if self._address.path is None else NEAR_PAUSE
        longest = min(FIRST_PAUSE * 2.0 ** min(self._failures, 16), most)
        return longest * (0.5 + 0.5 * self._jitter())

    async def _connect(self) -> bool:
        """One connection, until it is closed.  True when it was steady."""
        connection: _DialSocket | None = None
        try:
            with anyio.move_on_after(GREETING):
                connection = await self._open()
                await connection.greeted.wait()
            if connection is None or not connection.greeted.is_set():
                raise TimeoutError("no Welcome came in time")
            await connection.over.wait()
        except tls.SSLCertVerificationError as error:
            raise Forbidden(f"The broker's certificate is not trusted: {error.verify_message}") from error
        except (OSError, TimeoutError) as error:
            _log.info("cannot reach the broker: %s", error)
        finally:
            if connection is not None:
                await connection.finish()
        if connection is None:
            return False
        if connection.refusal is not None:
            if isinstance(connection.refusal, Forbidden) and self._which + 1 < len(self._tokens()):
                self._which += 1
                return False
            if not connection.refusal.retryable:
                raise connection.refusal
            _log.info("the broker refuses for now: %s", connection.refusal)
        return connection.steady

    async def _open(self) -> "_DialSocket":
        loop = asyncio.get_running_loop()
        to = self._address
        if to.path is not None:
            end = _connected(to.path)
            return (await loop.create_unix_connection(lambda: _DialSocket(self), sock=end))[1]
        context = (self._ssl or pinned(self._pin)) if to.uri.secure else None
        return (
            await loop.create_connection(lambda: _DialSocket(self), to.uri.host, to.uri.port, ssl=context)
        )[1]

    # --- for its socket ---

    def _hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL,
            role=self._role,
            instance=self._instance,
            of=self._of,
            received=self.received,
            version=self._version,
            name=self._name,
        )

    def _welcomed(self, connection: "_DialSocket", welcome: Welcome) -> None:
        """:raises LinkFault: when the broker claims what was never sent."""
        if not welcome.resumed:
            self._forgotten()
        missed = self.missed_by(welcome.received)
        known, self._of = self._of is not None, welcome.instance
        self._peer = Peer("broker", welcome.device, welcome.instance, "")
        self.attach(connection, missed)
        self._tell(self._attendant.link_back if known else self._attendant.link_up)

    def _closed(self, connection: "_DialSocket", codes: frozenset[int]) -> None:
        if not self.detach(connection):
            return
        if codes.isdisjoint(FINAL):
            self._tell(self._attendant.link_down)
        else:
            self._forgotten()

    def _forgotten(self) -> None:
        """The broker and this end no longer remember the same; no-op before the first Welcome."""
        if self._of is not None:
            self._of = None
            self.forget()
            self._tell(self._attendant.link_gone)

    def _tell(self, what: Callable[[Link], None]) -> None:
        try:
            what(self)
        except Exception:  # the link outlives a fault behind it
            _log.exception("the attendant failed")


class _DialSocket(WebSocket):
    """A connection on its way from the opening request over the Welcome to the link that it carries."""

    def __init__(self, dial: Dial) -> None:
        self._client = ClientProtocol(
            dial._address.uri,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            max_size=MAX_FRAME,
            logger=QUIET,
        )
        super().__init__(self._client, dial._ping)
        self._dial = dial
        self._welcomed_at: float | None = None
        self._ended_at = 0.0
        self.refusal: BridgeError | None = None
        self.greeted = asyncio.Event()
        self.over = asyncio.Event()

    @property
    def steady(self) -> bool:
        """Did the link last, now that it is over?"""
        return self._welcomed_at is not None and self._ended_at - self._welcomed_at >= STEADY

    async def finish(self) -> None:
        """Close, if it is not over yet, after the last word: this end will not come back."""
        if self.over.is_set():
            return
        with anyio.move_on_after(CLOSE_AFTER, shield=True), suppress(Lost):
            await self.drain()
        self.close(CloseCode.NORMAL_CLOSURE)
        with anyio.move_on_after(2 * CLOSE_AFTER, shield=True):
            await self.over.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not same(self._transport.get_extra_info("ssl_object"), self._dial._pin):
            _log.error("the server at the broker's address has another certificate; nothing was sent to it")
            self.abort()
            return
        request = self._client.connect()
        tokens = self._dial._tokens()
        if tokens:
            request.headers["Authorization"] = f"Bearer {tokens[self._dial._which % len(tokens)]}"
        self._client.send_request(request)
        self.flush()

    def opening(self, event: Request | Response) -> None:
        if self._client.handshake_exc is None:
            self.write(frame_hello(self._dial._hello()))
        else:
            self.refusal = _refusal(cast("Response", event))  # what a client's protocol gives first
            self.abort()

    def text(self, data: bytes) -> None:
        try:
            if self._welcomed_at is None:
                self._answer(data)
            elif self._dial.socket is self:
                unknown = self._dial.feed_text(data)
                if unknown is not None:
                    _log.warning("the broker sent %r, unknown here", unknown.type)
        except LinkFault as fault:
            self._fault(fault)
        except Exception:
            _log.exception("the attendant failed")

    def binary(self, head: bytes, data: bytes) -> None:
        try:
            if self._dial.socket is self:
                self._dial.feed_chunk(head, data)
        except LinkFault as fault:
            self._fault(fault)
        except Exception:
            _log.exception("the attendant failed")

    def closed(self, codes: frozenset[int]) -> None:
        self._ended_at = self._loop.time()
        self._dial._closed(self, codes)
        self.greeted.set()
        self.over.set()

    def _answer(self, data: bytes) -> None:
        answer = decode(data)
        if isinstance(answer, Failure):
            self.refusal = from_failure(answer)
        elif isinstance(answer, Welcome):
            try:
                check_protocol(answer.protocol)
            except VersionMismatch as error:
                self.refusal = error
                self.close(CloseCode.POLICY_VIOLATION, error.code)
                return
            self._welcomed_at = self._loop.time()
            self._dial._welcomed(self, answer)
            self.start_pings()
            self.greeted.set()
        else:
            raise LinkFault("the broker's first frame is its Welcome")

    def _fault(self, fault: LinkFault) -> None:
        _log.warning("the broker broke the link's rules: %s", fault)
        self.close(CloseCode.PROTOCOL_ERROR, str(fault))


def _connected(path: str) -> socket.socket:
    """At once or not at all: where nobody listens, or too many wait, a try must cost next to nothing, since
    all agents of a machine try again and again.  :raises OSError:"""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.setblocking(False)
    try:
        end.connect(path)
    except BaseException:
        end.close()
        raise
    return end


def _later(delay: float, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(delay, call)


def parse(address: str) -> Address:
    """:raises BadArguments: it is no address of a broker.  :raises Forbidden: `ws://` to another machine."""
    scheme, _, rest = address.partition(":")
    if scheme == "unix" and rest:
        return Address(rest, WebSocketURI(False, "localhost", 80, "/", ""))
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if scheme not in ("ws", "wss") or not host or "@" in address or parts.query or parts.fragment:
        raise BadArguments(
            f"{address!r} is no address of a broker: unix:PATH, ws://HOST:PORT, wss://HOST:PORT."
        )
    if scheme == "ws" and not _is_loopback(host):
        raise Forbidden("A broker on another machine is reached with wss:// only.")
    return Address(None, WebSocketURI(scheme == "wss", host, port or LINK_PORT, parts.path or "/", ""))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refusal(response: Response) -> BridgeError:
    """What an HTTP answer that is no upgrade means."""
    status = response.status_code
    try:
        return from_failure(Failure.model_validate(json.loads(response.body)["error"]))
    except (ValueError, KeyError, TypeError, pydantic.ValidationError):
        pass
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return Overloaded(f"The broker's address answers {status}.")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return Forbidden(f"The broker's address answers {status}.")
    return VersionMismatch(f"No broker that speaks {SUBPROTOCOL} is at this address: it answers {status}.")
