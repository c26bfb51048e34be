"""The broker's end of all links: each kept alive over its sockets, and for its lease without one.  Knows
neither listeners nor credentials, and reads no message.
"""

import asyncio
import logging
from collections.abc import Callable

from chappie_bridge.wire.endpoint import Endpoint, Socket
from chappie_bridge.wire.errors import Overloaded
from chappie_bridge.wire.ids import DeviceId, InstanceId
from chappie_bridge.wire.link import PROTOCOL, Hello, LinkFault, Welcome, frame_welcome
from chappie_bridge.wire.ports import Attendant, Link, Peer

_log = logging.getLogger(__name__)


class HubLink(Endpoint):
    """The broker's end of the link to one instance of a peer."""

    lease: asyncio.TimerHandle | None = None


class Links:
    """`lease`: seconds for which a link without a socket is kept; `limit`: how many there may be."""

    def __init__(
        self, attendant: Attendant, *, instance: InstanceId, version: str, lease: float, limit: int
    ) -> None:
        self._attendant = attendant
        self._instance = instance
        self._version = version
        self._lease = lease
        self._limit = limit
        self._all: dict[tuple[DeviceId, InstanceId], HubLink] = {}

    def __len__(self) -> int:
        """Up or within their lease."""
        return len(self._all)

    def drop(self, device: DeviceId) -> int:
        """Forget the links of a device; gives their number."""
        links = [link for (owner, _), link in self._all.items() if owner == device]
        for link in links:
            self._end(link)
        return len(links)

    def close(self) -> None:
        """Forget all links without a word to the attendant: for the end of the process."""
        for link in self._all.values():
            if link.lease is not None:
                link.lease.cancel()
        self._all.clear()

    def greet(self, socket: Socket, device: DeviceId, hello: Hello) -> HubLink:
        """`socket` carries the link of this instance from now on.

        :raises Overloaded: when there are too many links."""
        key = (device, hello.instance)
        link = self._all.get(key)
        missed = None if link is None else self._missed(link, hello)
        resumed = missed is not None
        if link is None or missed is None:
            if link is not None:
                self._end(link)
            if len(self._all) >= self._limit:
                raise Overloaded("This broker has as many links as it may have.")
            peer = Peer(hello.role, device, hello.instance, hello.name)
            link = HubLink(peer, self._attendant, asyncio.get_running_loop().call_later)
            self._all[key] = link
            missed = []
        if link.lease is not None:
            link.lease.cancel()
            link.lease = None
        older = link.socket
        socket.write(
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
        link.attach(socket, missed)
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

    def left(self, link: HubLink, *, for_good: bool) -> None:
        """The socket that carried `link` closed."""
        if self._all.get((link.peer.device, link.peer.instance)) is not link:
            return
        if for_good:
            self._end(link)
            return
        link.lease = asyncio.get_running_loop().call_later(self._lease, self._end, link)
        self._tell(self._attendant.link_down, link)

    def _end(self, link: HubLink) -> None:
        key = (link.peer.device, link.peer.instance)
        if self._all.get(key) is not link:
            return
        del self._all[key]
        if link.lease is not None:
            link.lease.cancel()
        self._tell(self._attendant.link_gone, link)

    def _tell(self, what: Callable[[Link], None], link: HubLink) -> None:
        try:
            what(link)
        except Exception:  # a fault behind one link must not cut the others
            _log.exception("the attendant failed")
