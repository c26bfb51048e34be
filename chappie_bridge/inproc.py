"""A link inside one process: messages are handed over as objects, in order, from the event loop."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from .wire.errors import Lost, Overloaded
from .wire.link import REPLAY_MESSAGES
from .wire.messages import Message
from .wire.ports import Attendant, Peer

_log = logging.getLogger(__name__)


class InProcessLink:
    """One end of a pair; implements `ports.Link`.  It is up from `connect` until `close`.

    Nothing is delivered from inside `send`: the sender may be in the middle of a change of its own.
    One call of the loop delivers all that was sent until then.
    """

    def __init__(self, peer: Peer, attendant: Attendant, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._attendant = attendant
        self._loop = loop
        self._other: InProcessLink | None = None
        self._inbox: deque[Callable[[], None]] = deque()
        self._scheduled = False

    @property
    def peer(self) -> Peer:
        return self._peer

    @property
    def up(self) -> bool:
        return self._other is not None

    def send(self, message: Message) -> None:
        """See `ports.Link.send`; every message fits.  :raises Overloaded:"""
        if self._other is not None:  # after `close` nobody is there to hear it
            other = self._other
            other._deliver(partial(other._attendant.received, other, message))

    async def send_chunk(self, stream: int, offset: int, data: bytes) -> None:
        """See `ports.Link.send_chunk`.  :raises Lost:"""
        other = self._other
        if other is None:
            raise Lost("The link is closed.")
        other._deliver(partial(other._attendant.received_chunk, other, stream, offset, data))
        await asyncio.sleep(0)  # the sender of a long stream lets others go on

    def close(self) -> None:
        """End the pair: both attendants hear `link_gone`.  What was sent before still arrives."""
        other, self._other = self._other, None
        if other is not None:
            other._other = None
            for end in (self, other):
                end._post(partial(end._attendant.link_gone, end))

    def _deliver(self, call: Callable[[], None]) -> None:
        if len(self._inbox) >= REPLAY_MESSAGES:
            raise Overloaded("The other end takes nothing.")
        self._post(call)

    def _post(self, call: Callable[[], None]) -> None:
        self._inbox.append(call)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._empty)

    def _empty(self) -> None:
        for _ in range(len(self._inbox)):
            call = self._inbox.popleft()
            try:
                call()
            except Exception:  # as over a socket, the link outlives a fault behind it
                _log.exception("the attendant failed")
        self._scheduled = bool(self._inbox)
        if self._scheduled:  # what these caused takes its turn
            self._loop.call_soon(self._empty)


def connect(
    near: Attendant, near_peer: Peer, far: Attendant, far_peer: Peer
) -> tuple[InProcessLink, InProcessLink]:
    """Link two attendants.  `near_peer` is whom `near` sees.  Both hear `link_up` before anything else."""
    loop = asyncio.get_running_loop()
    ends = InProcessLink(near_peer, near, loop), InProcessLink(far_peer, far, loop)
    for end, other in (ends, ends[::-1]):
        end._other = other
        end._post(partial(end._attendant.link_up, end))
    return ends
