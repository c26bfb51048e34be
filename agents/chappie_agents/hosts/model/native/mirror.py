"""A program's own transcript as one of ours: kept up with the file, so that pages, searches and waits cost
what they cost there.  Writes nothing of the program's.

It is taken in once, in steps, and from then on by what is appended; where it was read up to is kept.
"""

import json
import logging
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio import to_thread

from chappie_agents.bounded import fit, fits
from chappie_agents.hosts.model.native.lines import Line, lines_of
from chappie_agents.outbox import as_result
from chappie_agents.spool import Spool
from chappie_agents.transcript import Place, Transcript
from chappie_bridge.codec.loose import Record, plain
from chappie_bridge.codec.unicode import clean_text, display
from chappie_bridge.wire.blocks import Block, Content, Text
from chappie_bridge.wire.errors import BridgeError, UnknownEntry
from chappie_bridge.wire.ids import CallId, EntryId
from chappie_bridge.wire.values import Entry, ToolResult

log = logging.getLogger("chappie.model")

STEP = 1024 * 1024
"""Bytes of a transcript taken in at a time."""

LOOK_EVERY = 0.25
"""Seconds between two looks whether the file has grown."""

MAX_ENDS = 4096
"""Newest lines whose place in the tree is known, for branches."""

MAX_RESULTS = 1024
"""Newest results that can be found by their call."""

EVIDENCE = 200
"""Characters of the newest entry shown as evidence."""


class Source(NamedTuple):
    """Where the program's lines come from, and how far they were taken in."""

    path: str
    inode: int
    offset: int


class Replaced(Exception):
    """The program writes another file now, or wrote this one anew: the mirror must be made again."""


class Mirror:
    """In `directory`, which it alone uses."""

    def __init__(self, directory: Path, spool: Spool) -> None:
        """Blocks.  Raises `OSError`."""
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory, self._spool = directory, spool
        self.transcript = Transcript(directory, spool)
        self._source = self._read_source()
        self._ends: OrderedDict[str, EntryId | None] = OrderedDict()
        self._last: str | None = None
        self._results: OrderedDict[CallId, Place] = OrderedDict()
        self._calls: OrderedDict[CallId, None] = OrderedDict()
        self._newest: Entry | None = None

    def close(self) -> None:
        """Blocks."""
        self.transcript.close()

    # -- following a file ------------------------------------------------------------------------

    async def follow(
        self, path: Path, read: Callable[[Record], Line | None], told: Callable[[Line], None]
    ) -> None:
        """Until cancelled; `told` hears of each line.

        :raises Replaced: another file is there.  Raises `OSError` when it cannot be kept."""
        while True:
            if await self.catch_up(path, read, told):
                await self.transcript.keep(idle=True)
            await anyio.sleep(LOOK_EVERY)

    async def catch_up(
        self, path: Path, read: Callable[[Record], Line | None], told: Callable[[Line], None]
    ) -> bool:
        """Take in what is there by now; True: there was something."""
        any_lines = False
        while True:
            step = await to_thread.run_sync(partial(self._step, path, read))
            if step is None:
                return any_lines
            lines, source = step
            for line in lines:
                await self.take(line)
                told(line)
            any_lines = True
            self._source = source
            await to_thread.run_sync(self._write_source)

    def _step(self, path: Path, read: Callable[[Record], Line | None]) -> tuple[list[Line], Source] | None:
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                offset = self._start(str(path), status)
                if status.st_size < offset:
                    raise Replaced
                if status.st_size == offset:
                    return None
                file.seek(offset)
                raw = file.read(STEP)
                while raw and b"\n" not in raw and (more := file.read(STEP)):
                    raw += more
        except FileNotFoundError:
            return None
        end = raw.rfind(b"\n") + 1
        if not end:
            return None  # a line that is still being written
        lines = [line for record in lines_of(raw[:end]) if (line := read(record)) is not None]
        fitting = [line._replace(entries=tuple(map(self.fitting, line.entries))) for line in lines]
        return fitting, Source(str(path), status.st_ino, offset + end)

    def _start(self, path: str, status: os.stat_result) -> int:
        source = self._source
        if source is None:
            return 0
        if source.path != path or source.inode != status.st_ino:
            raise Replaced
        return source.offset

    def upto(self, path: Path) -> int:
        """How far a database was taken in.  Blocks.  :raises Replaced:"""
        return self._start(str(path), path.stat()) if self._source is not None else 0

    def taken_in(self, path: Path, upto: int) -> None:
        """Blocks.  Raises `OSError`."""
        self._source = Source(str(path), path.stat().st_ino, upto)
        self._write_source()

    def fitting(self, entry: Entry) -> Entry:
        """Clean text, and long blocks in files.  Blocks.  Raises `OSError`."""
        content: Content = tuple(_clean(block) for block in entry.content)
        if not fits(content):
            content = fit(content, self._spool)
        return entry.model_copy(update={"content": content})

    # -- entries ---------------------------------------------------------------------------------

    async def take(self, line: Line) -> None:
        """Append what a line says, on its branch."""
        if line.turns and line.parent is not None and line.parent != self._last:
            end = self._ends.get(line.parent)
            if end is not None and end != self.transcript.leaf:
                try:
                    await self.transcript.branch(end)
                except UnknownEntry:
                    log.debug("a branch begins at an entry that is not there")
        for entry in line.entries:
            self.put(entry)
        if line.id:
            above = self._ends.get(line.parent) if line.parent is not None else None
            self._ends[line.id] = line.entries[-1].id if line.entries else above
            self._last = line.id
            if len(self._ends) > MAX_ENDS:
                self._ends.popitem(last=False)

    def put(self, entry: Entry) -> None:
        """Append an entry, or renew the one that has its id."""
        if self.transcript.recent(entry.id):
            place = self.transcript.update(entry)
        else:
            place = self.transcript.append(entry)[0]
        self._newest = entry
        if entry.call is None:
            return
        kept: OrderedDict[CallId, Place] | OrderedDict[CallId, None]
        if entry.kind == "result":
            self._results[entry.call] = place
            kept = self._results
        else:
            self._calls[entry.call] = None
            kept = self._calls
        if len(kept) > MAX_RESULTS:
            kept.popitem(last=False)

    # -- what the session asks -------------------------------------------------------------------

    def shows(self, calls: Sequence[CallId]) -> bool:
        """Are these calls in the program's transcript?"""
        return bool(calls) and all(call in self._calls for call in calls)

    def recorded(self, calls: Sequence[CallId]) -> dict[CallId, ToolResult]:
        """Their results, as far as they are there.  Blocks."""
        found: dict[CallId, ToolResult] = {}
        for call in calls:
            place = self._results.get(call)
            if place is not None:
                try:
                    result = as_result(self.transcript.record(place))
                except BridgeError:
                    continue
                if result is not None:
                    found[call] = result
        return found

    def evidence(self) -> str:
        """The newest entry in few words."""
        entry = self._newest
        if entry is None:
            return ""
        what = entry.name or plain(entry.content)
        return f"{entry.kind} at {entry.at}: {display(' '.join(what.split()), EVIDENCE)}"

    # -- inside ----------------------------------------------------------------------------------

    def _read_source(self) -> Source | None:
        try:
            path, inode, offset = json.loads((self._directory / "source.json").read_text(encoding="utf-8"))
            return Source(str(path), int(inode), int(offset))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            log.warning("%s is taken in anew: %s", self._directory, error)
            return None

    def _write_source(self) -> None:
        part = self._directory / "source.json.part"
        part.touch(mode=0o600)
        part.write_text(json.dumps(self._source), encoding="utf-8")
        part.replace(self._directory / "source.json")


def open_mirror(directory: Path, spool: Spool, *, anew: bool = False) -> Mirror:
    """Blocks.  One that cannot be opened, or `anew`, is made again.  Raises `OSError`."""
    if anew:
        shutil.rmtree(directory, ignore_errors=True)
    try:
        return Mirror(directory, spool)
    except (BridgeError, ValueError) as error:
        log.warning("%s is made again: %s", directory, error)
        shutil.rmtree(directory)
        return Mirror(directory, spool)


def _clean(block: Block) -> Block:
    return Text(text=clean_text(block.text)[0]) if isinstance(block, Text) else block
