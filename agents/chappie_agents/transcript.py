"""A session's transcript: one JSON record per line, only ever appended to.  The file is the truth; what is
kept beside it (the newest entries in memory, the index) can be made again from it.

Appending costs one write and never waits; whatever reads the disk runs in a worker thread.
"""

import asyncio
import contextlib
import errno
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from anyio import CapacityLimiter, to_thread

from chappie_agents import entry_text
from chappie_agents.bounded import fit
from chappie_agents.spool import Spool
from chappie_agents.tail import PAGE_BYTES, TAIL_ENTRIES, Page, Recent, Tail, bounded
from chappie_agents.transcript_index import Damaged, Found, Index, Slice
from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.errors import BadArguments, DiskFull, Internal, Overloaded, UnknownEntry
from chappie_bridge.wire.ids import EntryId
from chappie_bridge.wire.values import Entry, HistoryRange

log = logging.getLogger("chappie.agent")

MAX_PARKED = 20_000
"""Readers that wait at the same time."""

BEHIND = 4 * 1024 * 1024
"""Bytes that the index may lie behind a transcript that is being written."""

_SURVEYS = 8
_SHORTENED = 4
_BACK = 64 * 1024
_ENVELOPE = 4096
"""Bytes of JSON for all of an entry but its content."""

_DISK = frozenset(
    {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN}
)
"""Faults that building the index again would only repeat."""

_T = TypeVar("_T")


class Place(NamedTuple):
    """Where a record lies: bytes, the line end included."""

    offset: int
    length: int


class Parked:
    """A reader that waits for the next entry.  `drop` frees everything at once; it may be repeated."""

    __slots__ = ("_deliver", "_others", "_timer", "span")

    def __init__(
        self, others: "dict[Parked, None]", span: HistoryRange, deliver: Callable[[Page | None], None]
    ) -> None:
        self.span = span
        self._others, self._deliver = others, deliver
        self._timer = asyncio.get_running_loop().call_later(span.wait, self.end, Page())
        others[self] = None

    def end(self, page: Page | None) -> None:
        self.drop()
        self._deliver(page)

    def drop(self) -> None:
        self._timer.cancel()
        self._others.pop(self, None)


class Transcript:
    """The files `transcript.jsonl` and `index.db` of one directory, which one process holds."""

    def __init__(self, directory: Path, spool: Spool, *, tail: int = TAIL_ENTRIES) -> None:
        """Blocks: makes the files if need be, cuts off a torn last line, brings the index up to date.

        `tail` bounds the entries kept in memory.  Raises `OSError`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(directory / "transcript.jsonl", flags, 0o600)
        self.torn = _cut_torn(self._descriptor)
        """Bytes of an unfinished last record that were cut off when this was opened."""
        self.size = os.fstat(self._descriptor).st_size
        self._parked: dict[Parked, None] = {}
        self._spool = spool
        self._one = CapacityLimiter(1)
        self._index = Index(directory / "index.db", self._descriptor)
        self._surveys: dict[tuple[EntryId, int], entry_text.Whole] = {}
        self._shortened: dict[Place, Entry] = {}
        self._unsynced = False
        self._indexed = self.size
        self._waking = False
        self._tail = Tail(tail)
        self._warm(tail)

    def _warm(self, tail: int) -> None:
        span = HistoryRange(limit=max(1, min(200, tail)), wait=0, offset=None)

        def newest() -> tuple[EntryId | None, Slice]:
            self._index.catch_up(self.size)
            leaf = self._index.newest()
            return leaf, self._index.slice(span, leaf)

        leaf, part = self._repairing(newest)
        self.leaf = leaf
        """The newest entry of the current branch, to which the next one is appended."""
        self._tail.older = part.has_more
        for each in part.found:
            self._tail.push(self._parse(each), each.length)

    def close(self) -> None:
        """Flushes to the disk and lets go.  Parked readers are dropped without an answer.  Blocks."""
        for parked in tuple(self._parked):
            parked.drop()
        self._flush()
        self._catch_up(self.size)
        self._index.close()
        os.close(self._descriptor)

    # -- writing ---------------------------------------------------------------------------------

    def append(self, *entries: Entry) -> list[Place]:
        """Add entries after the newest one, in one write; the parents are filled in where they lack.

        :raises DiskFull: nothing was added.  BadArguments: a parent other than the entry before it, or an
        id that is among the newest already."""
        records: list[bytes] = []
        chained: list[Entry] = []
        leaf = self.leaf
        for entry in entries:
            if entry.parent is None and leaf is not None:
                entry = entry.model_copy(update={"parent": leaf})  # noqa: PLW2901 - the same entry, placed
            elif entry.parent != leaf or entry.id in self._tail:
                raise BadArguments(f"`{entry.id}` is there already, or does not follow the newest entry.")
            leaf = entry.id
            chained.append(entry)
            records.append(_encode(entry))
        offset = self._write(b"".join(records))
        places: list[Place] = []
        for entry, record in zip(chained, records, strict=True):
            self._tail.push(entry, len(record))
            places.append(Place(offset, len(record)))
            offset += len(record)
        self.leaf = leaf
        if self._parked and not self._waking:
            # After this step of the loop: several records wake a reader once.
            self._waking = True
            asyncio.get_running_loop().call_soon(self._wake)
        return places

    def recent(self, entry: EntryId) -> bool:
        """Is this id among the newest?  Then `append` refuses it."""
        return entry in self._tail

    def update(self, entry: Entry) -> Place:
        """A newer record of an entry, shown at its old place.  Wakes nobody: it adds nothing to what a
        reader waits for.  :raises DiskFull: the old record stays."""
        record = _encode(entry)
        offset = self._write(record)
        self._tail.replace(entry, len(record))
        return Place(offset, len(record))

    async def branch(self, entry: EntryId) -> None:
        """Go on from `entry`; what followed it is abandoned once something is appended.

        :raises UnknownEntry: for an entry that is not there."""
        await self._on_disk(lambda: self._index.find(entry, self.leaf))
        if entry != self.leaf:
            self._tail.cut(entry)
            self.leaf = entry

    async def keep(self, *, idle: bool) -> None:
        """Put what was written on the disk, and bring the index up to date when nothing is going on or it
        lies `BEHIND`.  Raises `OSError`, DiskFull."""
        await to_thread.run_sync(self._flush)
        size = self.size
        if size - self._indexed > (0 if idle else BEHIND):
            await to_thread.run_sync(self._catch_up, size, limiter=self._one)

    def _flush(self) -> None:
        if self._unsynced:
            self._unsynced = False
            os.fsync(self._descriptor)

    # -- reading ---------------------------------------------------------------------------------

    def read(self, span: HistoryRange) -> Page | None:
        """What memory alone can answer, without waiting; None: `page` must read the disk.

        :raises BadArguments: `after` is newer than `before`."""
        if span.query is not None or span.entry is not None:
            return None
        if span.after is not None and span.after == self.leaf and span.before is None:
            return Page()
        return self._tail.read(span)

    @property
    def waiting(self) -> int:
        """Readers that are parked now."""
        return len(self._parked)

    def waits(self, span: HistoryRange) -> bool:
        """Would an empty page of this range be worth waiting for?"""
        following = span.after is not None and span.before is None
        return span.wait > 0 and following and span.query is None and span.entry is None

    def park(self, span: HistoryRange, deliver: Callable[[Page | None], None]) -> Parked:
        """Wait up to `span.wait` seconds for an entry after `span.after`, which must be the newest one.

        `deliver` is called once: with the page, with an empty page when the time is over, or with None
        when `page` must look again.  All that wait are woken in one pass.  :raises Overloaded: too many."""
        if len(self._parked) >= MAX_PARKED:
            raise Overloaded("Too many readers wait for this transcript.")
        return Parked(self._parked, span, deliver)

    async def page(self, span: HistoryRange) -> Page:
        """The page that SPEC's `history` describes; waits up to `span.wait` seconds where `waits`.

        :raises UnknownEntry: `data` names the newest.  BadArguments, Overloaded, PathMissing, DiskFull."""
        changed = False
        while True:
            page = self.read(span)
            if page is None:
                page, leaf = await self._from_disk(span)
                changed = changed or page.branch_changed
                if not page.entries and self.waits(span) and leaf is not None:
                    # Everything up to `leaf` is seen; what came since is found there.
                    span = span.model_copy(update={"after": leaf})
                    page = self.read(span)
            if page is None:
                continue
            if not page.entries and self.waits(span):
                page = await self._next(span)
            if page is not None:
                return page._replace(branch_changed=changed) if changed else page

    async def _next(self, span: HistoryRange) -> Page | None:
        told: asyncio.Future[Page | None] = asyncio.get_running_loop().create_future()

        def deliver(page: Page | None) -> None:
            if not told.done():
                told.set_result(page)

        parked = self.park(span, deliver)
        try:
            return await told
        finally:
            parked.drop()

    def record(self, place: Place) -> Entry:
        """The record at a place that `append` or `update` returned.  Blocks.  :raises UnknownEntry: it is
        not there any more."""
        line = os.pread(self._descriptor, place.length, place.offset)
        try:
            return Entry.__pydantic_validator__.validate_json(line)  # type: ignore[no-any-return] # pydantic says Any
        except ValueError:
            raise UnknownEntry(f"There is no record at byte {place.offset} of the transcript.") from None

    def records(self, start: int) -> Iterator[tuple[Place, Entry]]:
        """All readable records from byte `start`, where one begins, to the end.  Blocks; for recovery."""
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(start)
            for line in file:
                place = Place(start, len(line))
                start += len(line)
                with contextlib.suppress(UnknownEntry):
                    yield place, self.record(place)

    # -- inside ----------------------------------------------------------------------------------

    def _write(self, data: bytes) -> int:
        offset = self.size
        try:
            written = os.write(self._descriptor, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._descriptor, offset)
            raise DiskFull(f"The transcript could not be written: {error.strerror}.") from error
        self.size = offset + written
        self._unsynced = True
        return offset

    def _wake(self) -> None:
        self._waking = False
        pages: dict[tuple[EntryId | None, int], Page | None] = {}
        for parked in tuple(self._parked):
            key = parked.span.after, parked.span.limit
            if key not in pages:
                pages[key] = self.read(parked.span)
            page = pages[key]
            if page is None or page.entries:
                parked.end(page)

    async def _on_disk(self, work: Callable[[], _T]) -> _T:
        size = self.size

        def run() -> _T:
            self._catch_up(size)
            return self._repairing(work)

        return await to_thread.run_sync(run, limiter=self._one)

    def _catch_up(self, size: int) -> None:
        self._repairing(lambda: self._index.catch_up(size))
        self._indexed = size

    def _repairing(self, work: Callable[[], _T]) -> _T:
        """`work`, once more with a fresh index if it turns out to be damaged."""
        try:
            return work()
        except (Damaged, sqlite3.DatabaseError) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DISK:
                raise DiskFull(f"The transcript's index could not be used: {error}.") from error
            self._index.rebuild()
        try:
            self._index.catch_up(self.size)
            return work()
        except (Damaged, sqlite3.DatabaseError) as error:
            raise Internal(f"The transcript's index is damaged: {error}") from error

    async def _from_disk(self, span: HistoryRange) -> tuple[Page, EntryId | None]:
        """The page and the newest entry it knew of."""
        leaf = self.leaf

        def work() -> Page:
            if span.entry is not None:
                return self._one_entry(span, span.entry, leaf)
            part = self._index.slice(span, leaf)
            found, has_more = part.found, part.has_more
            recents = [Recent(self._parse(each), each.length) for each in found]
            page = bounded(recents, span, has_more)
            if page is None:
                first = found[0 if span.after is not None else -1]
                page = Page((self._short(first),), has_more=has_more or len(found) > 1)
            return page._replace(branch_changed=part.branch_changed)

        return await self._on_disk(work), leaf

    def _one_entry(self, span: HistoryRange, name: EntryId, leaf: EntryId | None) -> Page:
        found = self._index.find(name, leaf)
        entry = self._parse(found)
        key = (found.id, found.offset)
        whole = self._surveys.pop(key, None) or entry_text.survey(entry, self._spool)
        self._surveys[key] = whole
        if len(self._surveys) > _SURVEYS:
            del self._surveys[next(iter(self._surveys))]
        offset = span.offset or 0
        if span.find is not None:
            matches, more = entry_text.find(whole, span.find, offset, self._spool)
            return Page(matches=matches, has_more=more)
        text = entry_text.read(entry, whole, offset, self._spool)
        return Page(text=text, has_more=text.next_offset is not None)

    def _parse(self, found: Found) -> Entry:
        try:
            return self.record(Place(found.offset, found.length))
        except UnknownEntry as error:
            raise Damaged(str(error)) from error

    def _short(self, found: Found) -> Entry:
        """An entry that alone exceeds a page, its long blocks spilled."""
        place = Place(found.offset, found.length)
        short = self._shortened.pop(place, None)
        if short is None:
            entry, content = self._parse(found), None
            if entry.arguments is not None:
                content = (Text(text=entry_text.arguments_json(entry).decode()), *entry.content)
            content = fit(content or entry.content, self._spool, PAGE_BYTES - _ENVELOPE)
            short = entry.model_copy(update={"content": content, "arguments": None})
        self._shortened[place] = short
        if len(self._shortened) > _SHORTENED:
            del self._shortened[next(iter(self._shortened))]
        return short


def _encode(entry: Entry) -> bytes:
    return entry.__pydantic_serializer__.to_json(entry, exclude_none=True) + b"\n"


def _cut_torn(descriptor: int) -> int:
    """Cut off what follows the last line end; the number of bytes."""
    size = end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - _BACK)
        last = os.pread(descriptor, end - start, start).rfind(b"\n")
        if last >= 0:
            end = start + last + 1
            break
        end = start
    if end != size:
        os.ftruncate(descriptor, end)
        log.warning("cut %d bytes of an unfinished record off the transcript", size - end)
    return size - end
