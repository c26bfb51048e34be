"""Accepts the sockets of all links and finds out whose each is.  Reads no message; what a socket carries is
kept by links.py."""

import asyncio
import json
import logging
import ssl as tls
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
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
from chappie_bridge.wire.errors import BridgeError, Forbidden, Overloaded, Unsupported
from chappie_bridge.wire.ids import MAX_ID, DeviceId, InstanceId
from chappie_bridge.wire.link import (
    SUBPROTOCOL,
    Hello,
    LinkFault,
    check_protocol,
    decode,
    frame_refused,
)
from chappie_bridge.wire.pairing import Enrolled
from chappie_bridge.wire.ports import Attendant

from .devices import Enrolment
from .door import Door
from .guard import LOOPBACK_NAMES, DeviceToken, Guard, Refused, SameUser, is_loopback, neighbourhood
from .links import HubLink, Links
from .unix_socket import listening_at

_log = logging.getLogger(__name__)

GREETING = 5.0
"""Seconds from the connection until its Hello; a TLS handshake before it has as many."""

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


class Hub:
    """All sockets of this broker process; `links` are what they carry.

    `lease` is how long a link without a socket is kept, `ping` the time between two pings; seconds.
    `authenticate` gives the device of a token, in a time that tells nothing about it; `enrol` serves a
    device that brings a new token.  At most `max_connections` sockets and as many links are kept, at most
    `max_greeting` sockets may be there over TCP whose credential is not known yet: for one more, the oldest
    of the address that has most of them is cut.
    """

    def __init__(
        self,
        attendant: Attendant,
        *,
        instance: InstanceId,
        authenticate: Callable[[str], DeviceId | None],
        local_device: DeviceId,
        version: str,
        enrol: Callable[[Enrolment], Awaitable[Enrolled]] | None = None,
        lease: float = 60,
        ping: float = 10,
        max_connections: int = 20_000,
        max_greeting: int = 512,
    ) -> None:
        self.links = Links(attendant, instance=instance, version=version, lease=lease, limit=max_connections)
        self._authenticate = authenticate
        self._local_device = local_device
        self._enrol = enrol
        self._ping = ping
        self._max_connections = max_connections
        self._max_greeting = max_greeting
        self._sockets: set[_HubSocket] = set()
        self._strangers: dict[_HubSocket, str] = {}
        self._greeting = 0
        self._refused = 0

    def statistics(self) -> HubStatistics:
        return HubStatistics(len(self._sockets), self._greeting, len(self.links), self._refused)

    @asynccontextmanager
    async def serve_unix(
        self, path: Path, *, entry: Callable[[], Awaitable[object]] | None = None
    ) -> AsyncGenerator[None, None]:
        """Listen on a unix socket, mode 0600, for processes of this user.  A dead socket file is
        replaced.  Nobody is let in before `entry` comes to its end; they wait.

        :raises PathExists: when somebody listens there, or when it is no socket."""
        with listening_at(path) as end:
            listener = _Listener(SameUser(self._local_device))
            door = Door(lambda: _HubSocket(self, listener), within=GREETING, entry=entry)
            door.open_at(end)
            async with listener.serving(door):
                yield

    @asynccontextmanager
    async def serve_tcp(
        self,
        host: str,
        port: int,
        *,
        ssl: tls.SSLContext | None = None,
        hosts: Iterable[str] = (),
        entry: Callable[[], Awaitable[object]] | None = None,
    ) -> AsyncGenerator[int, None]:
        """Listen on TCP for devices with a token; yields the port.  `hosts` are further names under
        which peers may reach this broker.  Nobody is let in before `entry` comes to its end; they wait.

        :raises Forbidden: off loopback without TLS."""
        if ssl is None and not is_loopback(host):
            raise Forbidden(
                f"Refusing to listen on {host!r} without TLS.",
                hint="Listen on 127.0.0.1, or configure a certificate.",
            )
        names = {*LOOPBACK_NAMES, *hosts, host} - {"0.0.0.0", "::", ""}  # noqa: S104 - nobody's name
        known = self._authenticate if ssl is None else self._from_elsewhere
        guard = DeviceToken(known, names, asyncio.get_running_loop().time, any_address=ssl is not None)
        listener = _Listener(guard, guard if self._enrol is not None else None)
        door = Door(lambda: _HubSocket(self, listener), within=GREETING, context=ssl, entry=entry)
        # One address, so that port 0 is one port.
        taken = await door.open("127.0.0.1" if host == "localhost" else host, port)
        async with listener.serving(door):
            yield taken

    def drop(self, device: DeviceId) -> int:
        """Cut every connection of a device whose credential was revoked and forget its links; gives their
        number."""
        dropped = self.links.drop(device)
        self.cut(device)
        return dropped

    def cut(self, device: DeviceId) -> int:
        """Cut every connection of a device, on the way to its Hello too; gives their number.  Its links
        wait for it."""
        sockets = [each for each in self._sockets if each.device == device]
        for each in sockets:
            each.abort()
        return len(sockets)

    def count(self, device: DeviceId) -> int:
        """Connections of a device."""
        return sum(each.device == device for each in self._sockets)

    def close(self) -> None:
        """Forget all links without a word to the attendant: for the end of the process."""
        self.links.close()

    def _from_elsewhere(self, token: str) -> DeviceId | None:
        """Off this machine nobody is this machine, whatever token he has."""
        device = self._authenticate(token)
        return None if device == self._local_device else device

    # --- for the sockets of this module ---

    def _came(self, connection: "_HubSocket") -> None:
        self._sockets.add(connection)
        self._greeting += 1

    def _strange(self, connection: "_HubSocket", address: str) -> None:
        if len(self._strangers) >= self._max_greeting:
            crowded = Counter(self._strangers.values()).most_common(1)[0][0]
            oldest = next(each for each, where in self._strangers.items() if where == crowded)
            del self._strangers[oldest]
            oldest.abort()
        self._strangers[connection] = address


class _Listener:
    """One listening socket and the connections that came in through it.  `enrolling`: devices may be
    paired through it."""

    def __init__(self, guard: Guard, enrolling: DeviceToken | None = None) -> None:
        self.guard = guard
        self.enrolling = enrolling
        self.connections: set[_HubSocket] = set()
        self.empty = asyncio.Event()

    @asynccontextmanager
    async def serving(self, door: Door) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            door.close()
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
        self.device: DeviceId | None = None
        self._link: HubLink | None = None
        self._enrolling: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.connections.add(self)
        self._deadline = self._loop.call_later(GREETING, self.abort)
        self._hub._came(self)
        if isinstance(self._listener.guard, DeviceToken):  # all others can open only what is their own
            self._hub._strange(self, neighbourhood(self._transport.get_extra_info("peername")))

    def opening(self, event: Request | Response) -> None:
        request = cast("Request", event)  # what a server's protocol gives first
        try:
            if len(self._hub._sockets) > self._hub._max_connections:
                raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, Overloaded("This broker is full."))
            door = self._listener.enrolling
            enrolment = None if door is None else door.enrolment(self._transport, request)
            if enrolment is not None:
                self._enrolling = self._loop.create_task(self._enrol(enrolment))
                return
            self.device = self._listener.guard(self._transport, request)
        except Refused as refused:
            self._hub._refused += 1
            self._server.send_response(self._refusal(refused))
        except Exception:
            _log.exception("the guard failed")
            self.abort()
        else:
            self._hub._strangers.pop(self, None)
            self._server.send_response(self._server.accept(request))
        self.flush()

    async def _enrol(self, enrolment: Enrolment) -> None:
        """Ends with the connection."""
        try:
            if self._hub._enrol is None:
                raise Unsupported
            enrolled = await self._hub._enrol(enrolment)
        except BridgeError as error:
            self._hub._refused += 1
            status = HTTPStatus.TOO_MANY_REQUESTS if error.retryable else HTTPStatus.FORBIDDEN
            response = self._refusal(Refused(status, error))
        except Exception:
            _log.exception("a device could not be enrolled")
            self.abort()
            return
        else:
            response = self._json(HTTPStatus.OK, enrolled.model_dump(mode="json"))
        self._server.send_response(response)
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
        self._hub._sockets.discard(self)
        self._hub._strangers.pop(self, None)
        self._greeted()
        if self._enrolling is not None:
            self._enrolling.cancel()
        self._listener.connections.discard(self)
        self._listener.empty.set()
        if self._link is not None and self._link.detach(self):
            self._hub.links.left(self._link, for_good=not codes.isdisjoint(FINAL))

    def _hello(self, data: bytes) -> None:
        try:
            hello = decode(data)
            if not isinstance(hello, Hello) or self.device is None:
                raise LinkFault("the first frame is a Hello")
            if not 0 < len(hello.instance) <= MAX_ID:
                raise LinkFault(f"an instance is named with 1 to {MAX_ID} characters")
            check_protocol(hello.protocol)
            self._link = self._hub.links.greet(self, self.device, hello)
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
        response = self._json(refused.status, {"error": error})
        for name, value in refused.headers.items():
            response.headers[name] = value
        return response

    def _json(self, status: HTTPStatus, document: object) -> Response:
        response = self._server.reject(status, json.dumps(document))
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        response.headers["Cache-Control"] = "no-store"
        return response
