"""Which network addresses a download may reach: the open internet, and what the owner allows.  Pure."""

import ipaddress
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.errors import DownloadFailed

MAX_URL = 8192
"""Characters."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_CLOSED = tuple(
    ipaddress.ip_network(each)
    for each in (
        "100.64.0.0/10",  # carriers' own; Python calls it neither private nor global
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "168.63.129.16/32",  # a cloud's own agent
        "64:ff9b:1::/48",
        "2001::/23",
        "2002::/16",  # holds an IPv4 address
        "fec0::/10",
    )
)


class Allowed(NamedTuple):
    """What the owner opens: `host` or `host:port` may be reached wherever it is, `http://host:port` also
    without TLS."""

    hosts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, entries: Iterable[str]) -> "Allowed":
        return cls(frozenset(entry.lower().rstrip("/") for entry in entries))

    def plainly(self, target: "Target") -> bool:
        return f"http://{target.host}:{target.port}" in self.hosts

    def anywhere(self, target: "Target") -> bool:
        names = {target.host, f"{target.host}:{target.port}"}
        return bool(names & self.hosts) or self.plainly(target)


class Target(NamedTuple):
    """An address taken apart.  `path` with its query, as it is sent."""

    secure: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def target(url: str, allowed: Allowed) -> Target:
    """:raises DownloadFailed: it is no HTTPS address, or holds a user's name."""
    shown = display(url.partition("?")[0], 120)
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise DownloadFailed(f"`{shown}` is not an address that can be downloaded from.")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        raise DownloadFailed(f"`{shown}` is not an address that can be downloaded from.") from None
    secure = parts.scheme == "https"
    found = Target(secure, host, port or (443 if secure else 80), parts.path or "/")
    if parts.query:
        found = found._replace(path=f"{found.path}?{parts.query}")
    if not host or parts.username is not None or parts.password is not None:
        raise DownloadFailed(f"`{shown}` is not an address that can be downloaded from.")
    if not secure and not (parts.scheme == "http" and allowed.plainly(found)):
        raise DownloadFailed(f"`{shown}`: only https addresses are downloaded from.")
    return found


def is_open(text: str) -> bool:
    """Is this address one of the open internet's?  Whatever is inside a mapped one counts."""
    try:
        address: Address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_open(str(address.ipv4_mapped))
        if address in _NAT64:
            return is_open(str(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)))
    closed = any(address.version == net.version and address in net for net in _CLOSED)
    return address.is_global and not (closed or address.is_multicast or address.is_reserved)
