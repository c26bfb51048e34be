"""The broker's end of all links: accepts sockets and keeps a Link alive over them.  Reads no message."""

import asyncio
import json
import logging
import ssl as tls
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple, cast

import anyio
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from chappie_bridge.websocket import CLOSE_AFTER, MAX_FRAME, QUIET, WebSocket
from chappie_bridge.wire.endpoint import Endpoint
from chappie_bridge.wire.errors import BridgeError, Forbidden, Overloaded
from chappie_bridge.wire.ids import MAX_ID, DeviceId, InstanceId
from chappie_bridge.wire.link import (
    PROTOCOL,
    SUBPROTOCOL,
    Hello,
    LinkFault,
    Welcome,
    check_protocol,
    decode,
    frame_refused,
    frame_welcome,
)
from chappie_bridge.wire.ports import Attendant, Link, Peer

from .guard import LOOPBACK_NAMES, DeviceToken, Guard, Refused, SameUser, is_loopback
from .unix_socket import listening_at

_log = logging.getLogger(__name__)

GREETING = 5.0
"""Seconds from the connection until its Hello."""

FINAL = frozenset(
    {
        CloseCode.NORMAL_CLOSURE,  # the peer says that it will not come back
        CloseCode.PROTOCOL_ERROR,  # one side sent nonsense; a replay would only repeat it
        CloseCode.INVALID_DATA,
        CloseCode.MESSAGE_TOO_BIG,
    }
)
"""Close codes after which the link ends at once instead of waiting for its lease."""


class HubStatistics(NamedTuple):
    sockets: int
    """Open connections, greeted or not."""
    greeting: int
    """Those that have not said Hello yet."""
    links: int
    """Links, up or within their lease."""
    refused: int
    """Connections turned away at their opening, since the start."""


class HubLink(Endpoint):
    """The broker's end of the link to one instance of a peer."""

    lease: asyncio.TimerHandle | None = None


class Hub:
    """All links of this broker process.

    `lease` is how long a link without a socket is kept, `ping` the time between two pings; seconds.
    `authenticate` gives the device of a token, comparing in constant time.  At most `max_connections`
    sockets and as many links are kept, at most `max_greeting` sockets may be on the way to their Hello.
    """

    def __init__(
        self,
        attendant: Attendant,
        *,
        instance: InstanceId,
        authenticate: Callable[[str], DeviceId | None],
        local_device: DeviceId,
        version: str,
        lease: float = 60,
        ping: float = 10,
        max_connections: int = 20_000,
        max_greeting: int = 512,
    ) -> None:
        self._attendant = attendant
        self._instance = instance
        self._authenticate = authenticate
        self._local_device = local_device
        self._version = version
        self._lease = lease
        self._ping = ping
        self._max_connections = max_connections
        self._max_greeting = max_greeting
        self._links: dict[tuple[DeviceId, InstanceId], HubLink] = {}
        self._sockets = 0
        self._greeting = 0
        self._refused = 0

    def statistics(self) -> HubStatistics:
        return HubStatistics(self._sockets, self._greeting, len(self._links), self._refused)

    @asynccontextmanager
    async def serve_unix(self, path: Path) -> AsyncGenerator[None, None]:
        """Listen on a unix socket, mode 0600, for processes of this user.  A dead socket file is
        replaced.  :raises PathExists: when somebody listens there, or when it is no socket."""
        with listening_at(path) as end:
            listener = _Listener(SameUser(self._local_device))
            server = await asyncio.get_running_loop().create_unix_server(
                lambda: _HubSocket(self, listener), sock=end
            )
            async with listener.serving(server):
                yield

    @asynccontextmanager
    async def serve_tcp(
        self,
        host: str,
        port: int,
        *,
        ssl: tls.SSLContext | None = None,
        hosts: Iterable[str] = (),
    ) -> AsyncGenerator[int, None]:
        """Listen on TCP for devices with a token; yields the port.  `hosts` are further names under
        which peers may reach this broker.  :raises Forbidden: off loopback without TLS."""
        if ssl is None and not is_loopback(host):
            raise Forbidden(
                f"Refusing to listen on {host!r} without TLS.",
                hint="Listen on 127.0.0.1, or configure a certificate.",
            )
        loop = asyncio.get_running_loop()
        names = {*LOOPBACK_NAMES, *hosts, host} - {"0.0.0.0", "::", ""}  # noqa: S104 - nobody's name
        listener = _Listener(DeviceToken(self._authenticate, names, loop.time))
        server = await loop.create_server(
            lambda: _HubSocket(self, listener),
            "127.0.0.1" if host == "localhost" else host,  # one address, so that port 0 is one port
            port,
            ssl=ssl,
            ssl_handshake_timeout=None if ssl is None else GREETING,
        )
        async with listener.serving(server):
            yield server.sockets[0].getsockname()[1]

    def drop(self, device: DeviceId) -> int:
        """Cut every link of a device whose credential was revoked; gives their number."""
        links = [link for (owner, _), link in self._links.items() if owner == device]
        for link in links:
            carrier = link.socket
            self._end(link)
            if carrier is not None:
                carrier.abort()
        return len(links)

    def close(self) -> None:
        """Forget all links without a word to the attendant: for the end of the process."""
        for link in self._links.values():
            if link.lease is not None:
                link.lease.cancel()
        self._links.clear()

    # --- for the sockets of this module ---

    def _greet(self, connection: "_HubSocket", device: DeviceId, hello: Hello) -> HubLink:
        """:raises Overloaded: when there are too many links."""
        key = (device, hello.instance)
        link = self._links.get(key)
        missed = None if link is None else self._missed(link, hello)
        resumed = missed is not None
        if link is None or missed is None:
            if link is not None:
                self._end(link)
            if len(self._links) >= self._max_connections:
                raise Overloaded("This broker has as many links as it may have.")
            peer = Peer(hello.role, device, hello.instance, hello.name)
            link = HubLink(peer, self._attendant, asyncio.get_running_loop().call_later)
            self._links[key] = link
            missed = []
        if link.lease is not None:
            link.lease.cancel()
            link.lease = None
        older = link.socket
        connection.write(
            frame_welcome(
                Welcome(
                    protocol=PROTOCOL,
                    instance=self._instance,
                    device=device,
                    resumed=resumed,
                    received=link.received,
                    version=self._version,
                )
            )
        )
        link.attach(connection, missed)
        if older is not None:
            older.abort()
        self._tell(self._attendant.link_back if resumed else self._attendant.link_up, link)
        return link

    def _missed(self, link: HubLink, hello: Hello) -> list[str] | None:
        """What the peer lacks, or None when the two do not remember the same."""
        untouched = hello.of is None and hello.received == 0 and link.received == 0
        if link.peer.role != hello.role or not (hello.of == self._instance or untouched):
            return None  # `untouched`: our first Welcome was lost on its way
        try:
            return link.missed_by(hello.received)
        except LinkFault:
            return None

    def _left(self, link: HubLink, *, for_good: bool) -> None:
        """The socket that carried `link` closed."""
        if self._links.get((link.peer.device, link.peer.instance)) is not link:
            return
        if for_good:
            self._end(link)
            return
        link.lease = asyncio.get_running_loop().call_later(self._lease, self._end, link)
        self._tell(self._attendant.link_down, link)

    def _end(self, link: HubLink) -> None:
        key = (link.peer.device, link.peer.instance)
        if self._links.get(key) is not link:
            return
        del self._links[key]
        if link.lease is not None:
            link.lease.cancel()
        self._tell(self._attendant.link_gone, link)

    def _tell(self, what: Callable[[Link], None], link: HubLink) -> None:
        try:
            what(link)
        except Exception:  # a fault behind one link must not cut the others
            _log.exception("the attendant failed")


class _Listener:
    """One listening socket and the connections that came in through it."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.connections: set[_HubSocket] = set()
        self.empty = asyncio.Event()

    @asynccontextmanager
    async def serving(self, server: asyncio.Server) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            server.close()
            for connection in list(self.connections):
                connection.close(CloseCode.GOING_AWAY, "the broker stops")
            with anyio.move_on_after(2 * CLOSE_AFTER, shield=True):
                while self.connections:
                    self.empty.clear()
                    await self.empty.wait()


class _HubSocket(WebSocket):
    """A connection on its way from the opening request over its Hello to the link that it carries."""

    def __init__(self, hub: Hub, listener: _Listener) -> None:
        self._server = ServerProtocol(
            subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=MAX_FRAME, logger=QUIET
        )
        super().__init__(self._server, hub._ping)
        self._hub = hub
        self._listener = listener
        self._device: DeviceId | None = None
        self._link: HubLink | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.connections.add(self)
        self._hub._sockets += 1
        if self._hub._greeting >= self._hub._max_greeting:
            self.abort()
            return
        self._hub._greeting += 1
        self._deadline = self._loop.call_later(GREETING, self.abort)

    def opening(self, event: Request | Response) -> None:
        request = cast("Request", event)  # what a server's protocol gives first
        try:
            if self._hub._sockets > self._hub._max_connections:
                raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, Overloaded("This broker is full."))
            self._device = self._listener.guard(self._transport, request)
        except Refused as refused:
            self._hub._refused += 1
            self._server.send_response(self._refusal(refused))
        except Exception:
            _log.exception("the guard failed")
            self.abort()
        else:
            self._server.send_response(self._server.accept(request))
        self.flush()

    def text(self, data: bytes) -> None:
        if self._link is None:
            self._hello(data)
        elif self._link.socket is self:
            try:
                unknown = self._link.feed_text(data)
            except LinkFault as fault:
                self._fault(fault)
            except Exception:
                _log.exception("the attendant failed")
            else:
                if unknown is not None:
                    _log.warning("%s sent %r, unknown here", self._link.peer.instance, unknown.type)

    def binary(self, head: bytes, data: bytes) -> None:
        if self._link is None:
            self._fault(LinkFault("a chunk before the Hello"))
        elif self._link.socket is self:
            try:
                self._link.feed_chunk(head, data)
            except LinkFault as fault:
                self._fault(fault)
            except Exception:
                _log.exception("the attendant failed")

    def closed(self, codes: frozenset[int]) -> None:
        self._hub._sockets -= 1
        self._greeted()
        self._listener.connections.discard(self)
        self._listener.empty.set()
        if self._link is not None and self._link.detach(self):
            self._hub._left(self._link, for_good=not codes.isdisjoint(FINAL))

    def _hello(self, data: bytes) -> None:
        try:
            hello = decode(data)
            if not isinstance(hello, Hello) or self._device is None:
                raise LinkFault("the first frame is a Hello")
            if not 0 < len(hello.instance) <= MAX_ID:
                raise LinkFault(f"an instance is named with 1 to {MAX_ID} characters")
            check_protocol(hello.protocol)
            self._link = self._hub._greet(self, self._device, hello)
        except LinkFault as fault:
            self._fault(fault)
        except BridgeError as error:
            self.write(frame_refused(error))
            self.close(CloseCode.POLICY_VIOLATION, error.code)
        else:
            self._greeted()
            self.start_pings()

    def _greeted(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self._hub._greeting -= 1

    def _fault(self, fault: LinkFault) -> None:
        who = self._link.peer.instance if self._link is not None else "somebody"
        _log.warning("%s broke the link's rules: %s", who, fault)
        self.close(CloseCode.PROTOCOL_ERROR, str(fault))

    def _refusal(self, refused: Refused) -> Response:
        error = refused.error.failure().model_dump(mode="json", exclude_none=True)
        response = self._server.reject(refused.status, json.dumps({"error": error}))
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        for name, value in refused.headers.items():
            response.headers[name] = value
        return response
