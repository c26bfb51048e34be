"""The newest entries of a transcript's current branch, in memory, and pages made of them.  Reads no disk."""

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.ids import EntryId
from chappie_bridge.wire.values import Entry, EntryText, HistoryRange, Match

PAGE_BYTES = 256 * 1024
"""Bytes of JSON that the entries of one page take."""

TAIL_ENTRIES = 256
TAIL_BYTES = 1024 * 1024
"""Bounds of what is kept; a reader that follows is served from there."""


class Page(NamedTuple):
    """What a reader gets: entries in transcript order, or one entry's text, or its matches.

    `has_more`: there are more in the direction that was asked for.  `branch_changed`: a named entry lies
    on an abandoned branch and its nearest ancestor was taken."""

    entries: tuple[Entry, ...] = ()
    has_more: bool = False
    branch_changed: bool = False
    text: EntryText | None = None
    matches: tuple[Match, ...] | None = None


class Recent(NamedTuple):
    """An entry and the bytes of its JSON, the line end included."""

    entry: Entry
    length: int


class Tail:
    """A contiguous end of the branch: at most `limit` entries and `TAIL_BYTES`."""

    def __init__(self, limit: int = TAIL_ENTRIES) -> None:
        self.older = False
        """Does the branch begin before what is kept?"""
        self._limit = limit
        self._recents: deque[Recent] = deque()
        self._bytes = 0
        self._first = 0
        """Number of the first entry kept; numbers only serve to find an entry by its id."""
        self._numbers: dict[EntryId, int] = {}

    def __contains__(self, entry: EntryId) -> bool:
        return entry in self._numbers

    def push(self, entry: Entry, length: int) -> None:
        """The next entry; its id is not among those kept."""
        self._numbers[entry.id] = self._first + len(self._recents)
        self._recents.append(Recent(entry, length))
        self._bytes += length
        if len(self._recents) > self._limit or self._bytes > TAIL_BYTES:
            self._trim()

    def replace(self, entry: Entry, length: int) -> None:
        """A newer record of an entry, if that is kept."""
        number = self._numbers.get(entry.id)
        if number is not None:
            old = self._recents[number - self._first]
            self._recents[number - self._first] = Recent(entry, length)
            self._bytes += length - old.length
            self._trim()

    def cut(self, entry: EntryId) -> None:
        """`entry` is the newest from now on, kept or not."""
        number = self._numbers.get(entry)
        keep = 0 if number is None else number - self._first + 1
        while len(self._recents) > keep:
            gone = self._recents.pop()
            self._bytes -= gone.length
            del self._numbers[gone.entry.id]
        self.older = self.older or not keep

    def read(self, span: HistoryRange) -> Page | None:
        """None: the disk must be asked.  :raises BadArguments: `after` is newer than `before`."""
        low, high = -1, len(self._recents)
        if span.after is not None:
            number = self._numbers.get(span.after)
            if number is None:
                return None
            low = number - self._first
        if span.before is not None:
            number = self._numbers.get(span.before)
            if number is None:
                return None
            high = number - self._first
        if span.after is not None:
            if low > high:
                raise BadArguments("`after` is newer than `before`; name the older entry in `after`.")
            start, stop = low + 1, min(high, low + 1 + span.limit)
            has_more = high > stop
        else:
            start, stop = max(0, high - span.limit), high
            if high < span.limit and self.older:
                return None
            has_more = start > 0 or self.older
        return bounded(list(islice(self._recents, start, max(start, stop))), span, has_more)

    def _trim(self) -> None:
        while len(self._recents) > self._limit or (self._bytes > TAIL_BYTES and self._recents):
            gone = self._recents.popleft()
            self._first += 1
            self._bytes -= gone.length
            del self._numbers[gone.entry.id]
            self.older = True


def bounded(recents: Sequence[Recent], span: HistoryRange, has_more: bool) -> Page | None:
    """The entries nearest to where the reader is, within `PAGE_BYTES`; None: the first alone exceeds it."""
    forward = span.after is not None
    total = taken = 0
    for recent in recents if forward else reversed(recents):
        total += recent.length
        if total > PAGE_BYTES:
            if not taken:
                return None
            has_more = True
            break
        taken += 1
    chosen = recents[:taken] if forward else recents[len(recents) - taken :]
    return Page(tuple(recent.entry for recent in chosen), has_more)
