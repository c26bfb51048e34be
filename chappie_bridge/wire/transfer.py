"""The life of one file of a transfer, as the broker sees it: one table; and how far its bytes may run ahead.
No I/O, no clock."""

from enum import StrEnum
from typing import NamedTuple

from .machine import Table

WINDOW = 2 * 1024 * 1024
"""Bytes that may be under way between a source and what its sink has written."""

PULL = WINDOW // 2
"""Bytes asked for at a time: some are on their way while others are being written.  Smaller ones cost more at
each process than their sooner beginning gains."""


class Move(StrEnum):
    """`refused` never began; `failed` left nothing behind."""

    OFFERED = "offered"
    MOVING = "moving"
    STALLED = "stalled"
    """A link is down; it goes on from the last verified offset."""
    CHECKING = "checking"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


UNFINISHED = frozenset({Move.OFFERED, Move.MOVING, Move.STALLED, Move.CHECKING})

_M = Move

TRANSFER = Table(
    "transfer",
    {
        (_M.OFFERED, "opened"): _M.MOVING,
        (_M.OFFERED, "refused"): _M.REFUSED,
        (_M.OFFERED, "link_lost"): _M.STALLED,
        (_M.OFFERED, "published"): _M.DONE,  # an export, which moves nothing; or found done after a restart
        (_M.OFFERED, "source_changed"): _M.OFFERED,
        (_M.MOVING, "written"): _M.MOVING,
        (_M.MOVING, "link_lost"): _M.STALLED,
        (_M.MOVING, "source_changed"): _M.OFFERED,  # once more from zero
        (_M.MOVING, "all_written"): _M.CHECKING,
        (_M.STALLED, "opened"): _M.MOVING,
        (_M.STALLED, "refused"): _M.FAILED,  # it was allowed before: a directory or a right went away
        (_M.STALLED, "published"): _M.DONE,  # the link was lost after the sink had published
        (_M.STALLED, "source_changed"): _M.OFFERED,
        (_M.STALLED, "link_lost"): _M.STALLED,
        (_M.STALLED, "written"): _M.STALLED,  # crossed with the loss
        (_M.CHECKING, "published"): _M.DONE,
        (_M.CHECKING, "written"): _M.CHECKING,
        (_M.CHECKING, "link_lost"): _M.STALLED,
        (_M.CHECKING, "source_changed"): _M.OFFERED,
        **{
            (state, event): _M.FAILED
            for state in (_M.OFFERED, _M.MOVING, _M.STALLED, _M.CHECKING)
            for event in ("failed", "cancelled")
        },
        # Words that were under way when it ended.
        **{
            (final, late): final
            for final in (_M.DONE, _M.REFUSED, _M.FAILED)
            for late in ("written", "link_lost", "failed", "cancelled")
        },
        (_M.DONE, "published"): _M.DONE,
    },
)


class Span(NamedTuple):
    offset: int
    length: int


class Flow:
    """The window of one file, from `offset` on: asking for bytes is the credit to send them, and what the
    sink has written gives room to ask for more.  `size` None: not known before the end."""

    def __init__(self, offset: int, size: int | None, window: int = WINDOW, pull: int = PULL) -> None:
        self.asked = self.arrived = self.sent = self.written = offset
        self.size = size
        self._window, self._pull = window, pull

    def next(self) -> Span | None:
        """What may be asked for now, noted as asked; None: nothing before more is written, or at all."""
        room = self.written + self._window - self.asked
        left = room if self.size is None else self.size - self.asked
        length = min(self._pull, left)
        if length <= 0 or room < length:
            return None
        span = Span(self.asked, length)
        self.asked += length
        return span

    @property
    def under_way(self) -> int:
        """Bytes asked for and not yet written; never above the window."""
        return self.asked - self.written

    def take(self, offset: int, length: int) -> bool:
        """A chunk came from the source.  False: it is not the next one, or was never asked for."""
        if offset != self.arrived or offset + length > self.asked:
            return False
        self.arrived += length
        return True

    def forward(self, length: int) -> None:
        """So much went on to the sink."""
        self.sent += length

    def credit(self, offset: int) -> bool:
        """The sink has written up to `offset`.  False: an old word, or one that cannot be."""
        if not self.written < offset <= self.sent:
            return False
        self.written = offset
        return True

    @property
    def complete(self) -> bool:
        return self.size is not None and self.written >= self.size
