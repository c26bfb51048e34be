"""The journal of a session: what was begun, how it ended, what a person typed, and what arrived.  It refers
to results by their place in the transcript and never copies them; it sends nothing itself.

Records are lines of JSON in numbered files.  One is handed to the operating system before anybody is told
of what it records, so killing the process loses nothing; `sync` puts them on the disk, about once a second,
so a power cut may lose the last second: then an operation is reported as interrupted, or not known at all.
"""

import errno
import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic_core import to_json

from chappie_agents.transcript import Place, Transcript
from chappie_bridge.wire.errors import DiskFull, Executed, Interrupted, UnknownEntry
from chappie_bridge.wire.ids import CallId, InputId, OperationId, SessionId
from chappie_bridge.wire.messages import CallResult, Finished
from chappie_bridge.wire.values import Entry, Input, Origin, ToolResult

log = logging.getLogger("chappie.agent")

KEEP = 24 * 3600.0
"""Seconds that a settled outcome stays readable."""

MAX_SETTLED = 20_000
MAX_UNSETTLED = 1_000
"""Outcomes kept; an unsettled one beyond that is no longer offered, and `prune` says so."""

MAX_INPUTS = 1_000
"""Typed inputs that wait to be settled."""

MAX_KNOWN = 5_000
"""Operations named at a registration, the unsettled and the newest first: their ids fit one message."""

SEGMENT = 1024 * 1024
"""Bytes of a file after which the next one is begun."""

Record = dict[str, object]
Kind = Literal["batch", "chat", "transfer"]


class Outcome(NamedTuple):
    """An operation's end as it is told: its call results, then `finished`."""

    results: tuple[CallResult, ...]
    finished: Finished


class _Begun:
    """An operation at work.  `start`: the transcript's size when it began."""

    __slots__ = ("calls", "cwd", "kind", "origin", "results", "segment", "start")

    def __init__(
        self,
        origin: Origin,
        kind: Kind,
        cwd: str,
        calls: Sequence[CallId],
        start: int,
        segment: int,
    ) -> None:
        self.origin, self.cwd, self.calls = origin, cwd, tuple(calls)
        self.kind: Kind = kind
        self.start, self.segment = start, segment
        self.results: dict[int, Place | ToolResult] = {}
        """By index; a result that could not be written is kept itself."""


class _Kept(NamedTuple):
    """A finished operation: where its record lies, or the record itself when it could not be written."""

    at: float
    segment: int
    place: Place
    record: bytes | None


class _Waiting(NamedTuple):
    segment: int
    at: str
    place: Place


class Outbox:
    """The directory `journal` of one session, which one process holds."""

    def __init__(
        self, directory: Path, transcript: Transcript, session: SessionId, *, now: Callable[[], float]
    ) -> None:
        """Blocks: reads what is kept, and ends as `interrupted` what was begun and not finished.

        `now`: seconds since the epoch.  Raises `OSError`."""
        directory.mkdir(mode=0o700, exist_ok=True)
        self._directory, self._transcript, self._session, self._now = directory, transcript, session, now
        self._begun: dict[OperationId, _Begun] = {}
        self._unsettled: dict[OperationId, _Kept] = {}
        self._settled: dict[OperationId, _Kept] = {}
        self._inputs: dict[InputId, _Waiting] = {}
        self._segment = 0
        self._size = 0
        self._descriptor = -1
        self._retired: list[int] = []
        self._unsynced = False
        segments = sorted(int(path.stem) for path in directory.glob("*.jsonl") if path.stem.isdecimal())
        for segment in segments:
            self._load(segment)
        self._oldest = segments[0] if segments else 1
        # A fresh file: nothing is ever appended after a torn line.
        self._open(segments[-1] + 1 if segments else 1)
        self.interrupted = self._recover()
        """What the last process began and did not finish."""

    # -- writing ---------------------------------------------------------------------------------

    def accept(
        self, operation: OperationId, origin: Origin, *, kind: Kind, cwd: str, calls: Sequence[CallId] = ()
    ) -> None:
        """An operation is about to run.  :raises DiskFull: it must not."""
        start = self._transcript.size
        segment, _ = self._write({"accept": [operation, kind, cwd, start, calls], "origin": origin})
        self._begun[operation] = _Begun(origin, kind, cwd, calls, start, segment)

    def result(self, operation: OperationId, index: int, result: Place | ToolResult) -> None:
        """A call of an accepted batch ended; `result` itself only where the transcript could not take it."""
        self._begun[operation].results[index] = result

    def finish(self, finished: Finished) -> None:
        """An operation ended, whether accepted before or not.  Never fails: what cannot be written is
        kept in memory."""
        begun = self._begun.get(finished.operation)
        places: list[tuple[int, int, int]] = []
        inline: dict[int, ToolResult] = {}
        for index, result in begun.results.items() if begun is not None else ():
            if isinstance(result, Place):
                places.append((index, result.offset, result.length))
            else:
                inline[index] = result
        at = self._now()
        record: Record = {"finish": finished, "at": at, "results": places}
        if inline:
            record["inline"] = inline
        try:
            kept = _Kept(at, *self._write(record), None)
        except DiskFull as error:
            log.error("the end of %s is kept in memory only: %s", finished.operation, error)
            kept = _Kept(at, self._segment, Place(0, 0), to_json(record, exclude_none=True))
        self._unsettled[finished.operation] = kept
        self._begun.pop(finished.operation, None)

    def offer(self, identifier: InputId, at: str, place: Place) -> None:
        """A person typed something; `place` is its entry.  :raises DiskFull: it is not kept."""
        segment, _ = self._write({"input": identifier, "at": at, "place": place})
        self._inputs[identifier] = _Waiting(segment, at, place)

    def settle(self, operations: Iterable[OperationId], inputs: Iterable[InputId] = ()) -> None:
        """These arrived for certain.  Unknown ones are ignored; if it cannot be written they are offered
        again after a restart."""
        arrived = [name for name in operations if name in self._unsettled]
        read = [name for name in inputs if name in self._inputs]
        if not arrived and not read:
            return
        try:
            self._write({"settled": arrived, "inputs": read})
        except DiskFull as error:
            log.warning("what was settled is not recorded: %s", error)
        for operation in arrived:
            self._settled[operation] = self._unsettled.pop(operation)
        for identifier in read:
            del self._inputs[identifier]

    def prune(self) -> tuple[OperationId, ...]:
        """Forget what is older or more than the bounds allow, and the files that hold nothing else.

        Returns the unsettled outcomes that are no longer offered; the transcript still has them."""
        oldest = self._now() - KEEP
        settled = self._settled
        while settled and (len(settled) > MAX_SETTLED or settled[next(iter(settled))].at < oldest):
            del settled[next(iter(settled))]
        given_up = tuple(self._unsettled)[: max(0, len(self._unsettled) - MAX_UNSETTLED)]
        if given_up:
            log.warning("%d outcomes that nobody fetched are no longer offered", len(given_up))
            self.settle(given_up)
        held = (self._begun, self._unsettled, settled, self._inputs)
        needed = min([self._segment, *(each.segment for kind in held for each in kind.values())])
        while self._oldest < needed:
            self._path(self._oldest).unlink(missing_ok=True)
            self._oldest += 1
        return given_up

    def sync(self) -> None:
        """Put what was written on the disk.  Blocks; for one worker thread at a time.  Raises `OSError`.
        Call it after the transcript's: a record must not outlive what it refers to."""
        if not self._unsynced:
            return
        self._unsynced = False
        retired, self._retired = self._retired, []
        for descriptor in (*retired, self._descriptor):
            os.fsync(descriptor)
        for descriptor in retired:
            os.close(descriptor)
        if retired:
            _sync_directory(self._directory)

    def close(self) -> None:
        """Blocks."""
        self.sync()
        os.close(self._descriptor)

    # -- reading ---------------------------------------------------------------------------------

    def running(self, operation: OperationId) -> bool:
        return operation in self._begun

    def has(self, operation: OperationId) -> bool:
        """Is it running or finished here?  Then it must not be begun."""
        return operation in self._begun or operation in self._unsettled or operation in self._settled

    def known(self) -> tuple[OperationId, ...]:
        """What a registration names: running, unsettled, newest settled; at most `MAX_KNOWN`."""
        names = [*self._begun, *self._unsettled]
        return (*names, *list(reversed(self._settled))[: max(0, MAX_KNOWN - len(names))])

    def unsettled(self) -> tuple[OperationId, ...]:
        """Finished and not yet known to have arrived, oldest first."""
        return tuple(self._unsettled)

    @property
    def waiting(self) -> int:
        """Typed inputs that are not settled."""
        return len(self._inputs)

    def inputs(self) -> tuple[InputId, ...]:
        """Typed and not yet settled, oldest first."""
        return tuple(self._inputs)

    def input(self, identifier: InputId) -> Input | None:
        """What was typed; None when it is settled or no longer in the transcript.  Blocks."""
        waiting = self._inputs.get(identifier)
        if waiting is None:
            return None
        try:
            entry = self._transcript.record(waiting.place)
        except UnknownEntry:
            log.warning("the input %s is no longer in the transcript", identifier)
            return None
        return Input(id=identifier, at=waiting.at, content=entry.content)

    def outcome(self, operation: OperationId) -> Outcome | None:
        """What is told of a finished operation; None while it runs or when it is not kept.  Blocks."""
        kept = self._unsettled.get(operation) or self._settled.get(operation)
        if kept is None:
            return None
        line = kept.record
        if line is None:
            try:
                with self._path(kept.segment).open("rb") as file:
                    file.seek(kept.place.offset)
                    line = file.read(kept.place.length)
            except FileNotFoundError:
                return None  # pruned meanwhile
        record = json.loads(line)
        finished = Finished.model_validate(record["finish"])
        results: dict[int, ToolResult] = {}
        for index, offset, length in record["results"]:
            try:
                result = as_result(self._transcript.record(Place(offset, length)))
            except UnknownEntry:
                result = None
            if result is not None:
                results[index] = result
        for index, inline in record.get("inline", {}).items():
            results[int(index)] = ToolResult.model_validate(inline)
        if len(results) < finished.count:
            lost = Interrupted(
                f"{finished.count - len(results)} results were lost with the disk's last second."
            )
            changed = {"status": "interrupted", "count": len(results), "error": lost.failure()}
            finished = finished.model_copy(update=changed)
        told = tuple(
            CallResult(operation=operation, session=self._session, index=index, result=results[index])
            for index in sorted(results)
        )
        return Outcome(told, finished)

    # -- after a restart -------------------------------------------------------------------------

    def _load(self, segment: int) -> None:
        offset = 0
        with self._path(segment).open("rb") as file:
            for line in file:
                try:
                    self._take(segment, Place(offset, len(line)), json.loads(line))
                except (ValueError, KeyError, TypeError) as error:
                    log.warning("a record of journal %d at byte %d is damaged: %s", segment, offset, error)
                offset += len(line)

    def _take(self, segment: int, place: Place, record: dict[str, object]) -> None:
        match record:
            case {
                "accept": [
                    str(operation),
                    ("batch" | "chat" | "transfer") as kind,
                    str(cwd),
                    int(start),
                    list(calls),
                ],
                "origin": origin,
            }:
                begun = _Begun(Origin.model_validate(origin), kind, cwd, calls, start, segment)
                self._begun[OperationId(operation)] = begun
            case {"finish": {"operation": str(operation)}, "at": float() | int() as at}:
                self._begun.pop(OperationId(operation), None)
                self._unsettled[OperationId(operation)] = _Kept(at, segment, place, None)
            case {"input": str(identifier), "at": str(at), "place": [int(offset), int(length)]}:
                self._inputs[InputId(identifier)] = _Waiting(segment, at, Place(offset, length))
            case {"settled": list(operations), "inputs": list(inputs)}:
                for name in operations:
                    if kept := self._unsettled.pop(name, None):
                        self._settled[name] = kept
                for name in inputs:
                    self._inputs.pop(name, None)
            case _:
                raise ValueError("not a record of ours")

    def _recover(self) -> tuple[Finished, ...]:
        if not self._begun:
            return ()
        start = min(begun.start for begun in self._begun.values())
        for place, entry in self._transcript.records(start):
            begun = self._begun.get(entry.operation) if entry.operation is not None else None
            if begun is not None and entry.kind == "result" and entry.call in begun.calls:
                begun.results[begun.calls.index(entry.call)] = place
        ended: list[Finished] = []
        for operation, begun in tuple(self._begun.items()):
            error = Interrupted(
                f"The agent stopped while this ran: {len(begun.results)} of {len(begun.calls)} calls had "
                "ended; whether another one took effect is not known. Look before repeating it."
            )
            finished = Finished(
                operation=operation,
                session=self._session,
                origin=begun.origin,
                kind=begun.kind,
                status="interrupted",
                executed=Executed.UNKNOWN,
                cwd=begun.cwd,
                count=len(begun.results),
                error=error.failure(),
            )
            self.finish(finished)
            ended.append(finished)
        return tuple(ended)

    # -- files -----------------------------------------------------------------------------------

    def _path(self, segment: int) -> Path:
        return self._directory / f"{segment:08}.jsonl"

    def _open(self, segment: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path(segment), flags, 0o600)
        if self._descriptor >= 0:
            self._retired.append(self._descriptor)
        self._descriptor, self._segment, self._size = descriptor, segment, 0

    def _write(self, record: Record) -> tuple[int, Place]:
        """The segment and the place in it where the record lies now."""
        line = to_json(record, exclude_none=True) + b"\n"
        try:
            if self._size >= SEGMENT:
                self._open(self._segment + 1)
            written = os.write(self._descriptor, line)
            if written != len(line):
                os.ftruncate(self._descriptor, self._size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise DiskFull(f"The journal could not be written: {error.strerror}.") from error
        place = Place(self._size, written)
        self._size += written
        self._unsynced = True
        return self._segment, place


def as_result(entry: Entry) -> ToolResult | None:
    """The tool result that a transcript's entry records."""
    if entry.kind != "result" or entry.call is None:
        return None
    return ToolResult(
        call=entry.call,
        name=entry.name or "",
        is_error=bool(entry.is_error),
        duration_ms=entry.duration_ms or 0,
        content=entry.content,
    )


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
