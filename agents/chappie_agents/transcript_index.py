"""Where each entry of a transcript lies: an SQLite index that can be thrown away.  Blocks on the disk; never
writes the transcript, never runs on the loop.

An entry's position is the byte offset of its first record, so it is the transcript's order whatever the
times say.  A later record of the same id replaces what is shown, not where.
"""

import json
import logging
import os
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import pydantic_core

from chappie_bridge.wire.errors import BadArguments, UnknownEntry
from chappie_bridge.wire.ids import EntryId
from chappie_bridge.wire.values import HistoryRange

log = logging.getLogger("chappie.agent")

VERSION = 1
"""Of the schema and of what is searched; another one is rebuilt."""

STEP = 1024 * 1024
"""Bytes of transcript taken in per transaction."""

SEARCHED = 64 * 1024
"""Characters of one entry that `query` finds."""

_SEAL = 64
"""Bytes before the indexed end that must still be there when the index is opened again."""

_SCHEMA = """
create table entries (
  position integer primary key,  -- byte offset of the first record
  id text not null unique,
  branch integer not null,
  offset integer not null,       -- of the newest record
  length integer not null        -- of the newest record, with its line end
) strict;
create index entries_by_branch on entries (branch, position);
create table branches (
  branch integer primary key,
  parent integer not null,
  fork integer not null          -- position of the last entry shared with the parent
) strict;
create table progress (upto integer not null, seal blob not null) strict;
insert into progress values (0, x'');
create virtual table words using fts5 (text, content='', columnsize=0);
"""

_BETWEEN = {
    True: """select position, id, offset, length from entries
        where branch = ? and position > ? and position < ? order by position asc limit ?""",
    False: """select position, id, offset, length from entries
        where branch = ? and position > ? and position < ? order by position desc limit ?""",
}
"""Entries of one branch, forward or backward."""

_MATCHING = {
    True: "select rowid from words where words match ? and rowid > ? and rowid < ? order by rowid asc",
    False: "select rowid from words where words match ? and rowid > ? and rowid < ? order by rowid desc",
}


class Damaged(Exception):
    """The index contradicts itself or the transcript; build it again."""


class Found(NamedTuple):
    """Where the newest record of an entry lies: bytes, the line end included."""

    position: int
    id: EntryId
    offset: int
    length: int


class Slice(NamedTuple):
    """Entries in transcript order."""

    found: list[Found]
    has_more: bool
    branch_changed: bool


class _Cut(NamedTuple):
    """The part of one branch that belongs to the current one: up to and including `upto`."""

    branch: int
    upto: int


class Index:
    """One thread at a time.  Every method raises `Damaged`, `sqlite3.OperationalError`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """`descriptor` reads the transcript.  An index of another version or file is built anew."""
        self._path, self._descriptor = path, descriptor
        self._database: sqlite3.Connection
        self._last: tuple[str, int] | None
        """The entry taken in last and its branch, where known."""
        self._upto: int
        """Bytes of the transcript that are taken in."""
        self.rebuilt = False
        """Was there an index that could not be used?"""
        try:
            self._connect()
        except (Damaged, sqlite3.DatabaseError):
            self.rebuild()

    def rebuild(self) -> None:
        """Start from nothing; `catch_up` does the work."""
        log.warning("the index %s is damaged or stale and is built again", self._path)
        self.rebuilt = True
        self.close()
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._connect()

    def close(self) -> None:
        self._database.close()

    def catch_up(self, size: int) -> None:
        """Take in all records up to byte `size`, where a record must end."""
        while self._upto < size:
            self._run("begin immediate")
            try:
                upto = self._advance(size)
                self._run("update progress set upto = ?, seal = ?", upto, self._seal(upto))
            except BaseException:
                self._last = None
                self._database.rollback()
                raise
            self._run("commit")
            self._upto = upto

    def newest(self) -> EntryId | None:
        """The entry that was appended last."""
        row = self._row("select id from entries order by position desc limit 1")
        return None if row is None else EntryId(row[0])

    def find(self, entry: EntryId, newest: EntryId | None) -> Found:
        """On any branch.  :raises UnknownEntry: `data` names the newest."""
        row = self._row("select position, id, offset, length from entries where id = ?", entry)
        if row is None:
            raise unknown(entry, newest)
        return Found(*row)

    def slice(self, span: HistoryRange, leaf: EntryId | None) -> Slice:
        """The entries of the branch that ends at `leaf`, as SPEC's `history` selects them.

        :raises UnknownEntry: for a name that is not there; BadArguments: for an empty or turned range."""
        if leaf is None:
            if name := span.after or span.before:
                raise unknown(name, None)
            return Slice([], has_more=False, branch_changed=False)
        cuts = self._cuts(leaf)
        low, changed_low = self._place(span.after, cuts, leaf, -1)
        high, changed_high = self._place(span.before, cuts, leaf, cuts[-1].upto + 1)
        changed = changed_low or changed_high
        if span.after is not None and span.before is not None and low > high:
            raise BadArguments("`after` is newer than `before`; name the older entry in `after`.")
        forward, wanted = span.after is not None, span.limit + 1
        if span.query is not None:
            found = self._matching(span.query, cuts, low, high, forward, wanted)
        else:
            found = self._between(cuts, low, high, forward, wanted)
        has_more = len(found) > span.limit
        del found[span.limit :]
        if not forward:
            found.reverse()
        return Slice(found, has_more, changed)

    # -- reading ---------------------------------------------------------------------------------

    def _between(self, cuts: list[_Cut], low: int, high: int, forward: bool, wanted: int) -> list[Found]:
        found: list[Found] = []
        for cut in cuts if forward else reversed(cuts):
            if cut.upto <= low:
                continue
            limits = (cut.branch, low, min(high, cut.upto + 1), wanted - len(found))
            rows = self._database.execute(_BETWEEN[forward], limits)
            found += (Found(*row) for row in rows)
            if len(found) == wanted:
                break
        return found

    def _matching(
        self, query: str, cuts: list[_Cut], low: int, high: int, forward: bool, wanted: int
    ) -> list[Found]:
        terms = ['"' + word.replace('"', '""') + '"*' for word in query.replace("\0", " ").split()]
        if not terms:
            raise BadArguments("`query` holds no word to search for.")
        ends = dict(cuts)
        rows = self._database.execute(_MATCHING[forward], (" ".join(terms), low, high))
        found: list[Found] = []
        for (position,) in rows:
            row = self._row("select branch, id, offset, length from entries where position = ?", position)
            if row is None:
                raise Damaged("a word of no entry")
            if position <= ends.get(row[0], -1):
                found.append(Found(position, *row[1:]))
                if len(found) == wanted:
                    break
        return found

    def _cuts(self, leaf: EntryId) -> list[_Cut]:
        """The current branch, oldest part first."""
        row = self._row("select branch, position from entries where id = ?", leaf)
        if row is None:
            raise Damaged("the newest entry is missing")
        cuts = [_Cut(*row)]
        while row := self._row("select parent, fork from branches where branch = ?", cuts[-1].branch):
            cuts.append(_Cut(*row))
        cuts.reverse()
        return cuts

    def _place(
        self, entry: EntryId | None, cuts: list[_Cut], leaf: EntryId, default: int
    ) -> tuple[int, bool]:
        """Position of an entry, or of its nearest ancestor on the current branch, and whether it moved."""
        if entry is None:
            return default, False
        row = self._row("select branch, position from entries where id = ?", entry)
        if row is None:
            raise unknown(entry, leaf)
        ends = dict(cuts)
        branch, position = row
        changed = False
        while branch not in ends:
            row = self._row("select parent, fork from branches where branch = ?", branch)
            if row is None:
                raise Damaged("a branch of no parent")
            branch, position = row[0], row[1]
            changed = True
        if position > ends[branch]:
            position, changed = ends[branch], True
        return position, changed

    # -- building --------------------------------------------------------------------------------

    def _advance(self, size: int) -> int:
        chunk = STEP
        while True:
            data = os.pread(self._descriptor, min(chunk, size - self._upto), self._upto)
            end = data.rfind(b"\n") + 1
            if end or not data:
                break
            chunk *= 2
        if not end:
            raise Damaged("the transcript is shorter than it was")
        start = 0
        while start < end:
            stop = data.index(b"\n", start) + 1
            self._take(self._upto + start, data[start:stop])
            start = stop
        return self._upto + end

    def _take(self, offset: int, line: bytes) -> None:
        record = _record(line)
        if record is None:
            log.warning("no entry at byte %d of the transcript; it is skipped", offset)
            return
        identifier, length = record["id"], len(line)
        known = self._row("select position, offset, length from entries where id = ?", identifier)
        if known is None:
            branch = self._branch(record.get("parent"))
            self._run(
                "insert into entries values (?, ?, ?, ?, ?)", offset, identifier, branch, offset, length
            )
            self._run("insert into words (rowid, text) values (?, ?)", offset, searched(record))
            self._last = (identifier, branch)
            return
        position, old_offset, old_length = known
        self._run("update entries set offset = ?, length = ? where position = ?", offset, length, position)
        old = _record(os.pread(self._descriptor, old_length, old_offset))
        if old is None:
            raise Damaged("an indexed record is not there")
        self._run("insert into words (words, rowid, text) values ('delete', ?, ?)", position, searched(old))
        self._run("insert into words (rowid, text) values (?, ?)", position, searched(record))

    def _branch(self, parent: object) -> int:
        """The branch of a new entry: its parent's, if nothing else follows the parent there."""
        if self._last is None:
            row = self._row("select id, branch from entries order by position desc limit 1")
            if row is None:
                return 0
            self._last = (row[0], row[1])
        identifier, branch = self._last
        if parent is None or parent == identifier:
            return branch
        row = self._row("select branch, position from entries where id = ?", parent)
        if row is None:
            return branch  # its parent's record was damaged
        above, fork = row
        if self._row("select 1 from entries where branch = ? and position > ? limit 1", above, fork) is None:
            return int(above)
        newest = self._row("select branch from branches order by branch desc limit 1")
        fresh = 1 if newest is None else int(newest[0]) + 1
        self._run("insert into branches values (?, ?, ?)", fresh, above, fork)
        return fresh

    def _connect(self) -> None:
        self._last = None
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self._database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._run("pragma journal_mode = wal")
        self._run("pragma synchronous = normal")
        self._run("pragma cache_size = -1024")
        version = self._row("pragma user_version") or (0,)
        if version[0] == 0:
            self._database.executescript(f"begin; {_SCHEMA} pragma user_version = {VERSION}; commit;")
        elif version[0] != VERSION:
            raise Damaged("another version's index")
        row = self._row("select upto, seal from progress")
        if row is None:
            raise Damaged("no progress")
        self._upto = int(row[0])
        if self._seal(self._upto) != row[1]:
            raise Damaged("another transcript's index")

    def _seal(self, upto: int) -> bytes:
        start = max(0, upto - _SEAL)
        return os.pread(self._descriptor, upto - start, start)

    def _run(self, sql: str, *values: object) -> None:
        self._database.execute(sql, values)

    def _row(self, sql: str, *values: object) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._database.execute(sql, values).fetchone()
        return row


def unknown(entry: EntryId, newest: EntryId | None) -> UnknownEntry:
    """The error for a name that is not in the transcript."""
    hint = f"The newest entry is `{newest}`." if newest else "The transcript is empty."
    return UnknownEntry(hint=hint, data={"newest": newest})


def searched(record: dict[str, Any]) -> str:
    """The text by which `query` finds an entry."""
    parts = [str(record.get("name") or "")]
    for block in record.get("content") or ():
        parts += [str(block.get(key) or "") for key in ("text", "head", "tail", "name", "uri")]
    if record.get("arguments"):
        parts.append(json.dumps(record["arguments"], ensure_ascii=False))
    return "\n".join(part for part in parts if part)[:SEARCHED]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = pydantic_core.from_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("id"), str) else None
