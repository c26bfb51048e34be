"""Transfers: operations that begin in a session's turn and then move beside its other work, file by file.

Each file has its own outcome.  What was begun is in the registry, so that another life of the broker goes on
with it; bytes are nowhere but in the window of a relay.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import anyio
from pydantic import TypeAdapter

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.blocks import ResourceLink
from chappie_bridge.wire.errors import (
    BadArguments,
    BridgeError,
    Cancelled,
    Executed,
    Internal,
    Interrupted,
    SessionOffline,
    UnknownOperation,
)
from chappie_bridge.wire.files import OpenSource, SinkFailed, SourceOpened, Written
from chappie_bridge.wire.ids import OperationId, SessionId
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.reference import SCHEME, Reference, parse
from chappie_bridge.wire.requests import Push, Pushed, Transfer
from chappie_bridge.wire.transfer import TRANSFER, UNFINISHED, Move
from chappie_bridge.wire.values import FileReport, Moving, Origin, RemotePaths

from .directory import Directory
from .download import Bounds, Download
from .feeds import OPENING, AgentFeed, Feed, Streams, UploadFeed
from .operations import Operation, stored_row
from .relay import Destination, Pipe, Relay
from .rpc import Correspondence
from .store.port import Store
from .store.rows import Transfer as TransferStored
from .storing import storing

log = logging.getLogger("chappie.broker")

TOGETHER = 4
"""Files of one transfer that move at the same time."""

MOVING = 8
"""Files that move at the same time in this broker: each may have a window of bytes in memory."""

MAX_PATH = 4096
"""Characters of a path."""

_REPORTS = TypeAdapter(tuple[FileReport, ...])


class _File(Protocol):
    report: FileReport

    async def run(self) -> None: ...
    def lost(self, link: Link) -> None: ...
    def cancel(self) -> None: ...


class _Export:
    """A file of a session made readable by reference."""

    def __init__(self, house: "Transfers", message: OpenSource, report: FileReport) -> None:
        self._house, self._message, self.report = house, message, report

    async def run(self) -> None:
        session = self._house.directory.get(self._message.session)
        try:
            if session.link is None or not session.online:
                raise SessionOffline
            opened = await self._house.rpc.ask(session.link, self._message, SourceOpened, OPENING)
        except BridgeError as error:
            self._end("refused", error=error.failure().model_copy(update={"executed": Executed.NO}))
            return
        kind, _, name = opened.source.partition(":")
        reference = Reference(session.info.id, "image" if kind == "image" else "file", name, opened.name)
        self._end(
            "published",
            moved=opened.size,
            size=opened.size,
            sha256=opened.sha256,
            followed=opened.followed,
            link=ResourceLink(
                uri=str(reference),
                name=opened.name,
                mime_type=opened.mime_type,
                size=opened.size,
                sha256=opened.sha256,
            ),
        )

    def lost(self, link: Link) -> None:
        """The request is replayed by the link."""

    def cancel(self) -> None:
        if self.report.status in UNFINISHED:
            self._end("cancelled", error=Cancelled().failure())

    def _end(self, event: str, **changes: object) -> None:
        status = TRANSFER.next(self.report.status, event)
        self.report = self.report.model_copy(update={"status": status, **changes})


class _Ended:
    """A file whose outcome is known from an earlier life."""

    def __init__(self, report: FileReport) -> None:
        self.report = report

    async def run(self) -> None: ...
    def lost(self, link: Link) -> None: ...
    def cancel(self) -> None: ...


class _Carriage:
    """One transfer under way."""

    def __init__(self, operation: Operation, request: Transfer, files: Sequence[_File]) -> None:
        self.operation, self.request, self.files = operation, request, tuple(files)
        self.uploads: dict[int, UploadFeed] = {}
        self.scope = anyio.CancelScope()
        self.cancelled = False

    @property
    def reports(self) -> tuple[FileReport, ...]:
        return tuple(file.report for file in self.files)

    @property
    def sessions(self) -> set[SessionId]:
        remote = [each.session for each in (self.request.source, self.request.sink) if each is not None]
        return {self.operation.target.session, *remote}

    @property
    def moving(self) -> Moving:
        reports = self.reports
        sizes = [report.size for report in reports if report.status in UNFINISHED | {Move.DONE}]
        return Moving(
            operation=self.operation.id,
            files=len(reports),
            moved=sum(report.moved for report in reports),
            size=None if None in sizes else sum(size or 0 for size in sizes),
        )


class Ended(Protocol):
    """Tells that an operation is over; `event` is one of BATCH."""

    def __call__(
        self, operation: Operation, event: str, executed: Executed, error: BridgeError | None
    ) -> None: ...


class Transfers:
    """All transfers of this broker; implements `relay.House`."""

    def __init__(
        self,
        directory: Directory,
        rpc: Correspondence,
        streams: Streams,
        store: Store,
        *,
        bounds: Bounds,
        news: Callable[[], Awaitable[None]],
        later: Callable[[Callable[[], Awaitable[None]]], None],
        start: Callable[..., object],
        ended: Ended,
        now: Callable[[], float],
    ) -> None:
        self.directory, self.rpc, self.streams = directory, rpc, streams
        self.pipes: dict[int, tuple[Link, Pipe]] = {}
        self.slots = anyio.CapacityLimiter(MOVING)
        self._store, self._bounds = store, bounds
        self._news, self._later, self._start, self._ended, self._now = news, later, start, ended, now
        self._carriages: dict[OperationId, _Carriage] = {}
        directory.moving = self.of

    async def news(self) -> None:
        await self._news()

    # -- from the request to its end -------------------------------------------------------------

    def prepare(self, operation: Operation, request: Transfer) -> None:
        """Check what is asked and make the operation's files; nothing moves before `begin`.

        :raises BadArguments: :raises UnknownSession:"""
        check(request)
        for remote in (request.source, request.sink):
            if remote is not None:
                self.directory.get(remote.session)
        carriage = _Carriage(operation, request, ())
        carriage.files = tuple(self._file(carriage, index) for index in range(len(request.paths)))
        self._keep(carriage)

    def forget(self, operation: Operation) -> None:
        """It never began."""
        self._carriages.pop(operation.id, None)

    def begin(self, operation: Operation) -> None:
        """Its turn has come."""
        carriage = self._carriages.get(operation.id)
        operation.advance("sent", self._now())
        operation.executed = Executed.UNKNOWN
        if carriage is None:
            self._ended(operation, "failed", Executed.NO, Internal("The transfer was forgotten."))
        else:
            self._start(self._run, carriage)

    def cancel(self, operation: Operation) -> None:
        """Files that are there stay; the rest is removed."""
        carriage = self._carriages.get(operation.id)
        if carriage is not None and operation.open:
            operation.advance("cancel", self._now())
            carriage.cancelled = True
            carriage.scope.cancel()

    async def push(self, request: Push, principal: str) -> Pushed:
        """See `Push`.  :raises BridgeError:"""
        carriage = self._carriages.get(request.operation)
        feed = carriage.uploads.get(request.index) if carriage is not None else None
        if carriage is None or feed is None or carriage.operation.origin.principal != principal:
            raise UnknownOperation("No such upload is under way.")
        return Pushed(offset=await feed.push(request.offset, request.data, request.sha256))

    def of(self, session: SessionId) -> tuple[Moving, ...]:
        """What moves from or to a session."""
        return tuple(
            each.moving
            for each in self._carriages.values()
            if each.operation.status is not Status.QUEUED and session in each.sessions
        )

    # -- from links ------------------------------------------------------------------------------

    def lost(self, link: Link) -> None:
        """It went down, or came back over another socket."""
        for carriage in self._carriages.values():
            for file in carriage.files:
                file.lost(link)

    def written(self, link: Link, message: Written) -> None:
        if (pipe := self._pipe(link, message.stream)) is not None:
            pipe.written(message.offset)

    def failed(self, link: Link, message: SinkFailed) -> None:
        if (pipe := self._pipe(link, message.stream)) is not None:
            pipe.fail(message.failure)

    def _pipe(self, link: Link, stream: int) -> Pipe | None:
        found = self.pipes.get(stream)
        return found[1] if found is not None and found[0] is link else None

    # -- over a restart --------------------------------------------------------------------------

    async def restore(self, operation: Operation) -> None:
        """One that was under way when the broker ended: go on.  Downloads and uploads cannot: their
        addresses and senders are gone."""
        with storing(Executed.UNKNOWN):
            row = await self._store.transfer(operation.id)
        if row is None:
            self._ended(operation, "session_gone", Executed.UNKNOWN, Interrupted())
            return
        request = Transfer.model_validate_json(row.request)
        reports = _REPORTS.validate_json(row.files)
        carriage = _Carriage(operation, request, ())
        carriage.files = tuple(self._file(carriage, index, report) for index, report in enumerate(reports))
        self._keep(carriage)
        self._start(self._run, carriage)

    async def recall(self, operation: Operation) -> bool:
        """The outcome of one that ended, as the registry has it; False: it has none."""
        with storing(Executed.YES):
            row = await self._store.transfer(operation.id)
        if row is None:
            return False
        reports = _REPORTS.validate_json(row.files)
        operation.files = lambda: reports
        return True

    # -- inside ----------------------------------------------------------------------------------

    def _keep(self, carriage: _Carriage) -> None:
        self._carriages[carriage.operation.id] = carriage
        carriage.operation.files = lambda: carriage.reports

    def _file(self, carriage: _Carriage, index: int, before: FileReport | None = None) -> _File:
        request, target = carriage.request, carriage.operation.target.session
        origin = carriage.operation.origin
        given = request.paths[index]
        report = before or FileReport(path=given, status=Move.OFFERED)
        if report.status not in UNFINISHED:
            return _Ended(report)
        name = f"{carriage.operation.id}:{index}"
        if all(each is None for each in (request.source, request.sink, request.attachments, request.uploads)):
            path, reference = _local(given, target)
            message = OpenSource(
                session=target,
                transfer=name,
                path=path,
                reference=reference,
                keep=True,
                limit=request.limit,
                origin=origin,
            )
            return _Export(self, message, report)
        to = Destination(target, name, given, request.overwrite, origin)
        feed: Feed
        if request.sink is not None:
            feed = self._agent(target, given, name, origin)
            to = Destination(request.sink.session, name, request.sink.paths[index], request.overwrite, origin)
        elif request.source is not None:
            feed = self._agent(request.source.session, request.source.paths[index], name, origin)
        elif before is not None:
            error = Interrupted(
                "The broker stopped in the middle; send the file again.", executed=Executed.NO
            )
            relay = Relay(self, UploadFeed("", 0), to, report)
            relay.refuse(error)
            return relay
        elif request.attachments is not None:
            feed = Download(request.attachments[index], self._bounds)
        elif request.uploads is not None:
            upload = request.uploads[index]
            feed = carriage.uploads[index] = UploadFeed(upload.name, upload.size)
        else:
            raise BadArguments
        # Where it goes on after a restart, nothing says how far it is until both ends are there.
        status = Move.OFFERED if before is None else Move.STALLED
        return Relay(self, feed, to, report.model_copy(update={"status": status}))

    def _agent(self, session: SessionId, given: str, name: str, origin: Origin) -> AgentFeed:
        path, reference = _local(given, session)
        return AgentFeed(
            self.rpc, session, name, path=path, reference=reference, origin=origin, streams=self.streams
        )

    async def _run(self, carriage: _Carriage) -> None:
        operation = carriage.operation
        try:
            if any(isinstance(file, Relay) for file in carriage.files):
                await self._save(carriage)
            with carriage.scope:
                few = anyio.CapacityLimiter(TOGETHER)
                async with anyio.create_task_group() as tasks:
                    for file in carriage.files:
                        tasks.start_soon(self._move, carriage, file, few)
            if carriage.cancelled:
                for file in carriage.files:
                    file.cancel()
            self._end(carriage)
        except BridgeError as error:
            self._ended(operation, "failed", Executed.NO, error)
        except Exception:
            log.exception("the transfer %s failed", operation.id)
            self._ended(operation, "failed", Executed.UNKNOWN, Internal())
        self._carriages.pop(operation.id, None)

    async def _move(self, carriage: _Carriage, file: _File, few: anyio.CapacityLimiter) -> None:
        async with few:
            await file.run()
        carriage.operation.wake()
        if isinstance(file, Relay) and not carriage.cancelled:
            self._later(partial(self._save, carriage))

    def _end(self, carriage: _Carriage) -> None:
        reports = carriage.reports
        done = [report.status is Move.DONE for report in reports]
        executed = Executed.YES if any(done) else Executed.NO
        error: BridgeError | None = None
        if all(done):
            event = "done"
        elif carriage.cancelled:
            event, error = "cancelled", Cancelled("Cancelled; files that were there by then stay.")
        else:
            event = "failed"
        if carriage.operation.told_open:
            self._later(partial(self._save, carriage))
        self._ended(carriage.operation, event, executed, error)

    async def _save(self, carriage: _Carriage) -> None:
        """Committed before anything moves: then a part that some device keeps is known here."""
        operation = carriage.operation
        request = carriage.request.model_copy(
            update={
                "attachments": None if carriage.request.attachments is None else (),
                "caller": carriage.request.caller.model_copy(update={"value": ""}),
            }
        )
        row = TransferStored(
            operation=operation.id,
            request=request.model_dump_json(exclude_none=True),
            files=_REPORTS.dump_json(carriage.reports, exclude_none=True).decode(),
        )
        with storing(Executed.NO):
            if not operation.told_open:
                operation.told_open = True
                await self._store.save_operation(stored_row(operation))
            await self._store.save_transfer(row)


def check(request: Transfer) -> None:
    """:raises BadArguments: the parts of the request do not fit one another."""
    ways: dict[str, int | None] = {
        "files": None if request.attachments is None else len(request.attachments),
        "uploads": None if request.uploads is None else len(request.uploads),
        "from": _count(request.source),
        "to": _count(request.sink),
    }
    given = {name: count for name, count in ways.items() if count is not None}
    if not request.paths:
        raise BadArguments("`paths` is empty: name at least one file.")
    if len(given) > 1:
        raise BadArguments("Give at most one of `files`, `from` and `to`.")
    for name, count in given.items():
        if count != len(request.paths):
            raise BadArguments(
                f"`{name}` has {count} and `paths` has {len(request.paths)}: they pair by position."
            )
    targets = request.paths if request.sink is None else request.sink.paths
    for path in _paths(request):
        if not path or len(path) > MAX_PATH or "\0" in path:
            raise BadArguments(f"A path has 1 to {MAX_PATH} characters and no NUL.")
    if given and any(path.startswith(SCHEME) for path in targets):
        raise BadArguments("A file cannot be written to a reference; give a path.")


def _count(remote: RemotePaths | None) -> int | None:
    return None if remote is None else len(remote.paths)


def _paths(request: Transfer) -> Iterator[str]:
    yield from request.paths
    for remote in (request.source, request.sink):
        yield from remote.paths if remote is not None else ()


def _local(given: str, session: SessionId) -> tuple[str | None, str | None]:
    """A path, or what a reference to the session's own bytes names.  :raises BadArguments:"""
    if not given.startswith(SCHEME):
        return given, None
    reference = parse(given)
    if reference.session != session:
        raise BadArguments(
            f"That reference is to bytes of session {reference.session}.",
            hint="Name that session as `sessionId`, or in `from`.",
        )
    return None, reference.source
