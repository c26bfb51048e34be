"""One end of a link without its socket: numbers, acknowledges, replays, hands over.  No I/O, no clock."""

import contextlib
from collections.abc import Callable
from typing import Protocol

from .errors import Lost, Overloaded
from .ids import DeviceId, InstanceId
from .link import (
    Ack,
    LinkFault,
    Numbered,
    Unknown,
    Window,
    chunk_head,
    decode,
    encode,
    frame_ack,
    unpack_head,
    unsupported,
)
from .messages import Failed, Message
from .ports import Attendant, Peer
from .table import MESSAGES

ACK_AFTER = 0.05
"""Seconds after which what came in is acknowledged, when nothing that goes out does it on the way."""

Later = Callable[[float, Callable[[], None]], object]
"""Call something after so many seconds: an event loop's `call_later`."""

NOBODY = Peer("broker", DeviceId(""), InstanceId(""), "")
"""Who is at the other end while nobody has answered yet."""

_SENDERS: dict[str, frozenset[str]] = {
    "agent": frozenset({"agent", "both"}),
    "caller": frozenset({"caller", "both"}),
    "broker": frozenset({"broker", "reply", "both"}),
}
_SENDABLE: dict[str, frozenset[str]] = {
    role: frozenset(name for name, row in MESSAGES.items() if row.sender in senders)
    for role, senders in _SENDERS.items()
}


class Socket(Protocol):
    """What carries the frames of a link at the moment."""

    def write(self, frame: str) -> None:
        """Hand over a text frame.  Never waits and never raises; a dead socket forgets it."""
        ...

    async def write_chunk(self, head: bytes, data: bytes) -> None:
        """Send both as one binary frame; returns when the socket took it.

        :raises Lost: when it is closed."""
        ...

    def abort(self) -> None:
        """Cut it now."""
        ...


class Endpoint:
    """One end of a link over all its sockets; implements `ports.Link`."""

    def __init__(self, peer: Peer, attendant: Attendant, later: Later) -> None:
        self._peer = peer
        self._attendant = attendant
        self._later = later
        self._window = Window()
        self._socket: Socket | None = None
        self._told = 0
        self._timer = False

    @property
    def peer(self) -> Peer:
        return self._peer

    @property
    def up(self) -> bool:
        return self._socket is not None

    @property
    def received(self) -> int:
        """Number of the last message taken in, as a Hello or Welcome tells it."""
        return self._window.received

    @property
    def unacknowledged(self) -> int:
        """Messages that the peer has not confirmed."""
        return self._window.unacknowledged

    def send(self, message: Message) -> None:
        """See `ports.Link.send`.  :raises Overloaded: :raises TooLarge:"""
        frame = self._window.number(encode(message))
        self._told = self._window.received
        if self._socket is not None:
            self._socket.write(frame)

    async def send_chunk(self, stream: int, offset: int, data: bytes) -> None:
        """See `ports.Link.send_chunk`.  :raises Lost:"""
        if self._socket is None:
            raise Lost("The link is down.")
        await self._socket.write_chunk(chunk_head(stream, offset), data)

    # --- for the shell that owns the sockets ---

    @property
    def socket(self) -> Socket | None:
        """What carries this link now; any other socket has no say about it."""
        return self._socket

    def attach(self, socket: Socket, frames: list[str]) -> None:
        """Go on over `socket`, first sending the `frames` that the peer lacks (from `missed_by`)."""
        self._socket = socket
        for frame in frames:
            socket.write(frame)

    def missed_by(self, peer_received: int) -> list[str]:
        """The frames a peer lacks that has `peer_received`.  :raises LinkFault: when it claims more
        than was ever sent."""
        frames = self._window.replay(peer_received)
        self._told = self._window.received
        return frames

    def detach(self, socket: Socket) -> bool:
        """`socket` is closed.  True when it carried the link, which is down now."""
        if self._socket is not socket:
            return False
        self._socket = None
        return True

    def forget(self) -> None:
        """Begin again with a peer that has no memory: unconfirmed messages are dropped."""
        self._window = Window()
        self._told = 0

    def feed_text(self, data: str | bytes) -> Unknown | None:
        """One text frame.  Gives back what this end does not understand, for the log; when the sender
        waits for an answer it was told so.  :raises LinkFault: when no peer of ours sends that."""
        item = decode(data, _SENDABLE[self._peer.role])
        if not isinstance(item, Numbered | Ack | Unknown):
            raise LinkFault(f"a {type(item).__name__} in the middle of the link")
        if not self._window.take(item):
            return None
        unknown = item if isinstance(item, Unknown) else None
        if isinstance(item, Numbered):
            self._attendant.received(self, item.message)
        elif unknown is not None:
            self._refuse(unknown)
        self._acknowledge_soon()
        return unknown

    def feed_chunk(self, head: bytes, data: bytes) -> None:
        """One binary frame: its first `CHUNK_HEADER` bytes, and the others.

        :raises LinkFault: when it has not so many."""
        stream, offset = unpack_head(head)
        self._attendant.received_chunk(self, stream, offset, data)

    def _refuse(self, unknown: Unknown) -> None:
        row = MESSAGES.get(unknown.type)
        if unknown.request is None or (row is not None and row.reply is None):
            return  # nobody waits: an answer would hit a request of the same number
        with contextlib.suppress(Overloaded):
            self.send(Failed(request=unknown.request, failure=unsupported(unknown).failure()))

    def _acknowledge_soon(self) -> None:
        if self._window.owes_ack():
            self._acknowledge()
        elif not self._timer and self._told != self._window.received:
            self._timer = True
            self._later(ACK_AFTER, self._time_to_acknowledge)

    def _time_to_acknowledge(self) -> None:
        self._timer = False
        if self._told != self._window.received:
            self._acknowledge()

    def _acknowledge(self) -> None:
        if self._socket is not None:
            self._told = self._window.acknowledge()
            self._socket.write(frame_ack(self._told))
