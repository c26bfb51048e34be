"""Who may open a connection: the same user, the right Host, no Origin, a good token.  Holds no links."""

import asyncio
import ipaddress
import os
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Protocol
from urllib.parse import unquote, urlsplit

from websockets.http11 import Request

from chappie_bridge.wire.errors import BridgeError, Forbidden, Overloaded
from chappie_bridge.wire.ids import DeviceId
from chappie_bridge.wire.pairing import CODE_SCHEME, DEVICE_NAME, NEW_TOKEN

from .devices import Enrolment

FREE_GUESSES = 10
"""Bad tokens of one address before it has to wait."""

LONGEST_PENALTY = 60.0
"""Seconds; the first penalty is one second and each further bad token doubles it."""

FORGIVEN_AFTER = 600.0
"""Seconds without a bad token after which an address is as good as new."""

MAX_ADDRESSES = 4096
"""Addresses remembered; the one silent for longest is forgotten first."""

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})


class Refused(Exception):
    """This connection may not be.  `headers` are added to the response."""

    def __init__(self, status: HTTPStatus, error: BridgeError, **headers: str) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Guard(Protocol):
    """Looks at a connection's opening request.  :raises Refused:"""

    def __call__(self, transport: asyncio.Transport, request: Request) -> DeviceId: ...


def is_loopback(host: str) -> bool:
    """Does a socket listening on `host` hear only this machine?  A name other than `localhost` may not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class SameUser:
    """The unix socket: the process at the other end runs as this user, or as root."""

    def __init__(self, device: DeviceId) -> None:
        self._device = device

    def __call__(self, transport: asyncio.Transport, request: Request) -> DeviceId:
        _no_origin(request)
        if not _same_user(transport.get_extra_info("socket")):
            raise Refused(HTTPStatus.FORBIDDEN, Forbidden("This socket belongs to another user."))
        return self._device


class DeviceToken:
    """TCP: a Host of ours, no Origin, and `Authorization: Bearer <device token>`.

    Programs of ours never send an Origin; whoever does is a web page, and no page is ours.
    `clock` gives seconds from any beginning.  `any_address`: an IP address as Host is as good as a name
    of ours; no name was rebound to it.
    """

    def __init__(
        self,
        authenticate: Callable[[str], DeviceId | None],
        hosts: Iterable[str],
        clock: Callable[[], float],
        *,
        any_address: bool = False,
    ) -> None:
        self._authenticate = authenticate
        self._hosts = frozenset(hosts)
        self._any_address = any_address
        self._clock = clock
        self._bad: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __call__(self, transport: asyncio.Transport, request: Request) -> DeviceId:
        self._right_host(request)
        _no_origin(request)
        address = neighbourhood(transport.get_extra_info("peername"))
        self._not_too_soon(address)
        device = self._authenticate(_token(request))
        if device is None:
            self._note_bad(address)
            raise Refused(
                HTTPStatus.UNAUTHORIZED,
                Forbidden("This device token is not known here.", hint="Pair this device again."),
                WWW_Authenticate="Bearer",
            )
        self._bad.pop(address, None)
        return device

    def enrolment(self, transport: asyncio.Transport, request: Request) -> Enrolment | None:
        """What a device that brings a new token says; None: it brings none.  A code is not looked at here.

        :raises Refused: see the class; the token that is to be replaced is not known."""
        new = request.headers.get_all(NEW_TOKEN)
        if not new:
            return None
        scheme, _, code = (request.headers.get_all("Authorization") or [""])[0].partition(" ")
        by = neighbourhood(transport.get_extra_info("peername"))
        if scheme.lower() != CODE_SCHEME.lower():
            return Enrolment(new[0], by, device=self(transport, request))
        self._right_host(request)
        _no_origin(request)
        self._not_too_soon(by)
        name = unquote((request.headers.get_all(DEVICE_NAME) or [""])[0])
        return Enrolment(new[0], by, code=code.strip(), name=name)

    def _right_host(self, request: Request) -> None:
        values = request.headers.get_all("Host")
        try:
            name = urlsplit(f"//{values[0]}").hostname if len(values) == 1 else None
        except ValueError:
            name = None
        if name not in self._hosts and not (self._any_address and _is_address(name)):
            raise Refused(
                HTTPStatus.MISDIRECTED_REQUEST,
                Forbidden("This broker is not reached under that host name."),
            )

    def _not_too_soon(self, address: str) -> None:
        count, last = self._bad.get(address, (0, 0.0))
        if count < FREE_GUESSES:
            return
        penalty = min(2.0 ** min(count - FREE_GUESSES, 30), LONGEST_PENALTY)
        left = last + penalty - self._clock()
        if left > 0:
            raise Refused(
                HTTPStatus.TOO_MANY_REQUESTS,
                Overloaded("Too many bad tokens came from this address."),
                Retry_After=str(int(left) + 1),
            )

    def _note_bad(self, address: str) -> None:
        now = self._clock()
        count, last = self._bad.pop(address, (0, now))
        self._bad[address] = (count + 1 if now - last < FORGIVEN_AFTER else 1, now)
        if len(self._bad) > MAX_ADDRESSES:
            self._bad.popitem(last=False)


def _is_address(name: str | None) -> bool:
    try:
        ipaddress.ip_address(name or "")
    except ValueError:
        return False
    return True


def _no_origin(request: Request) -> None:
    if request.headers.get_all("Origin"):
        raise Refused(HTTPStatus.FORBIDDEN, Forbidden("Web pages may not use this socket."))


def _token(request: Request) -> str:
    values = request.headers.get_all("Authorization")
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        raise Refused(
            HTTPStatus.UNAUTHORIZED,
            Forbidden(
                "The header `Authorization: Bearer <device token>` is missing.",
                hint="`chappie-bridge pair` at the broker makes a token.",
            ),
            WWW_Authenticate="Bearer",
        )
    return token.strip()


def neighbourhood(peername: object) -> str:
    """An IPv4 address, or the /64 of an IPv6 one: its owner has all of that."""
    text = str(peername[0]) if isinstance(peername, tuple) else ""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if address.version == 4:
        return text
    return str(ipaddress.ip_network((address, 64), strict=False))


def _same_user(end: socket.socket) -> bool:
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # where the kernel does not tell, the socket file's mode 0600 decides alone
    size = struct.calcsize("3i")
    try:
        _, user, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    except OSError:
        return False
    return user in (os.geteuid(), 0)
