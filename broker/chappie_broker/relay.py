"""One file on its way from a feed to a session: at most a window of it is here, ever.  What a lost link takes
away is sent again from where the sink had it written."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import anyio

from chappie_bridge.wire.errors import (
    BridgeError,
    Cancelled,
    Executed,
    Failure,
    Internal,
    Interrupted,
    Lost,
    SessionOffline,
    SourceChanged,
    Timeout,
    from_failure,
)
from chappie_bridge.wire.files import CloseSink, DropSink, OpenSink, Published, SinkOpened
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.transfer import TRANSFER, UNFINISHED, Flow, Move, Span
from chappie_bridge.wire.values import FileReport, Origin

from .directory import Directory
from .feeds import Feed, Streams, Whole, hash_seconds
from .rpc import Correspondence

log = logging.getLogger("chappie.broker")

PATIENCE = 24 * 3600.0
"""Seconds that a file waits for a device to come back: as long as an agent keeps its part."""

UNANSWERED = 3
"""Attempts that moved nothing because an end that was there did not answer."""

PAUSE = 0.05
"""Seconds between two attempts."""


class House(Protocol):
    """What relays share."""

    @property
    def directory(self) -> Directory: ...
    @property
    def rpc(self) -> Correspondence: ...
    @property
    def streams(self) -> Streams: ...
    @property
    def slots(self) -> anyio.CapacityLimiter:
        """How many may move at once: each has a window in memory."""
        ...

    @property
    def pipes(self) -> dict[int, tuple[Link, "Pipe"]]:
        """By stream, with the sink's link."""
        ...

    async def news(self) -> None:
        """Until a session or a link came or went."""
        ...


class Pipe:
    """What came from a feed and has not gone on yet; implements `feeds.Room`.

    Each wait has an event of its own: a chunk wakes who forwards it and nobody else."""

    def __init__(self, flow: Flow, progress: Callable[[int], None]) -> None:
        self.flow = flow
        self.closed = False
        self._failure: BridgeError | None = None
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._progress = progress
        self._arrived, self._written, self._failed = anyio.Event(), anyio.Event(), anyio.Event()

    def close(self) -> None:
        """This attempt is over; nobody waits for room any more."""
        self.closed = True
        self._written.set()
        self._written = anyio.Event()

    def put(self, offset: int, data: bytes) -> None:
        if self.flow.take(offset, len(data)):
            self._waiting.append((offset, data))
            self._arrived.set()

    async def span(self) -> Span | None:
        while True:
            span = self.flow.next()
            if span is not None:
                return span
            if self.closed or (self.flow.size is not None and self.flow.asked >= self.flow.size):
                return None
            await self._written.wait()

    def written(self, offset: int) -> None:
        """The sink's word."""
        if self.flow.credit(offset):
            self._progress(offset)
            self._written.set()
            self._written = anyio.Event()

    def fail(self, failure: Failure) -> None:
        """The sink cannot go on."""
        self._failure = from_failure(failure)
        self._failed.set()

    async def forward(self, link: Link, stream: int) -> None:
        """Send on what comes, until cancelled.  :raises Lost:"""
        while True:
            while self._waiting:
                offset, data = self._waiting.popleft()
                self.flow.forward(len(data))  # before its credit can come
                await link.send_chunk(stream, offset, data)
            self._arrived = anyio.Event()
            await self._arrived.wait()

    async def until_written(self) -> None:
        while not self.flow.complete:
            await self._written.wait()

    async def until_failed(self) -> None:
        """:raises BridgeError: what the sink said."""
        while self._failure is None:
            await self._failed.wait()
        raise self._failure


@dataclass(frozen=True, slots=True)
class Destination:
    session: SessionId
    transfer: str
    path: str
    overwrite: bool
    origin: Origin


class Relay:
    """Moves one file, as often as links are lost; `report` says how far it is."""

    def __init__(self, house: House, feed: Feed, to: Destination, report: FileReport) -> None:
        self._house, self._feed, self._to = house, feed, to
        self.report = report
        self._links: tuple[Link, ...] = ()
        self._cut: anyio.CancelScope | None = None
        self._changes = 0

    def lost(self, link: Link) -> None:
        """A link went down, or came back over another socket: chunks may be missing."""
        if self._cut is not None and link in self._links:
            self._cut.cancel()

    async def run(self) -> None:
        """To the end, whatever that is; only cancelling leaves it unfinished."""
        unanswered, since = 0, anyio.current_time()
        try:
            while self.report.status in UNFINISHED:
                before = self.report.moved
                error = await self._once()
                if error is None:
                    continue
                if self.report.moved != before:
                    unanswered, since = 0, anyio.current_time()
                unanswered += isinstance(error, Timeout)
                late = unanswered > UNANSWERED or anyio.current_time() - since > PATIENCE
                if late or not isinstance(error, (Lost, SessionOffline, Timeout)):
                    self._end(error)
                else:
                    self._advance("link_lost")
                    await anyio.sleep(PAUSE)
        finally:
            with anyio.CancelScope(shield=True):
                await self._feed.close()

    def refuse(self, error: BridgeError) -> None:
        """It cannot go on; what is there of it is removed."""
        self._end(error)

    def cancel(self) -> None:
        """It was cancelled: say so, and have the part removed."""
        self._end(Cancelled("Cancelled; nothing of this file was kept."))

    def _advance(self, event: str, **changes: object) -> None:
        status = TRANSFER.next(self.report.status, event)
        self.report = self.report.model_copy(update={"status": status, **changes})

    def _end(self, error: BridgeError) -> None:
        if self.report.status not in UNFINISHED:
            return
        begun = self.report.status not in (Move.OFFERED, Move.STALLED) or self.report.moved > 0
        event = "cancelled" if isinstance(error, Cancelled) else "failed" if begun else "refused"
        self._advance(event, error=_nothing_ran(error))
        self._drop()

    def _drop(self) -> None:
        link = self._house.directory.get(self._to.session).link
        if link is not None:
            link.send(DropSink(session=self._to.session, transfer=self._to.transfer))

    async def _once(self) -> BridgeError | None:
        """One attempt.  None: it ended well, or has to begin again from zero."""
        try:
            source, sink = await self._both()
        except BridgeError as absent:
            return absent
        self._links = (sink,) if source is None else (source, sink)
        trouble: list[BridgeError] = []
        with anyio.CancelScope() as self._cut:
            async with self._house.slots:
                await _caught(self._attempt(source, sink), trouble)
        cut, self._cut = self._cut.cancelled_caught, None
        if cut or not trouble:
            return Lost() if cut else None
        error = trouble[0]
        if isinstance(error, SourceChanged) and self._changes == 0:
            self._changes += 1
            self._advance("source_changed", moved=0, restarted=True)
            return None
        return error

    async def _both(self) -> tuple[Link | None, Link]:
        """Both ends, once they are there.  :raises SessionOffline: not for a whole day."""
        with anyio.move_on_after(PATIENCE):
            while True:
                sink = self._link_of(self._to.session)
                source = None if self._feed.session is None else self._link_of(self._feed.session)
                if sink is not None and (source is not None or self._feed.session is None):
                    return source, sink
                if self.report.status in (Move.MOVING, Move.CHECKING):
                    self._advance("link_lost")
                await self._house.news()
        raise Interrupted("A device did not come back within a day.")

    def _link_of(self, name: SessionId) -> Link | None:
        session = self._house.directory.get(name)
        return session.link if session.online and session.link is not None and session.link.up else None

    async def _attempt(self, source: Link | None, sink: Link) -> None:
        facts = await self._feed.open(source)
        self.report = self.report.model_copy(update={"size": facts.size, "followed": facts.followed})
        stream = self._house.streams.number()
        opened = await self._open_sink(sink, stream, facts.size, facts.fingerprint, restart=False)
        if opened.discarded and self.report.moved and not self.report.restarted:
            self._changes += 1
            self._advance("source_changed", moved=0, restarted=True)
        if opened.published:
            self._publish(opened.path, opened.offset, opened.sha256)
            return
        if opened.offset and await self._feed.digest(opened.offset) != opened.sha256:
            if self._changes:
                raise SourceChanged("The source changed more than once while it was sent.")
            self._changes += 1
            opened = await self._open_sink(sink, stream, facts.size, facts.fingerprint, restart=True)
            self._advance("source_changed", restarted=True)
        self._advance("opened", moved=opened.offset)
        whole = await self._flow(Flow(opened.offset, facts.size), sink, stream)
        self._advance("all_written", moved=whole.size, size=whole.size)
        message = CloseSink(
            session=self._to.session, transfer=self._to.transfer, size=whole.size, sha256=whole.sha256
        )
        seconds = hash_seconds(whole.size)
        published = await self._house.rpc.ask(sink, message, Published, seconds)
        self._publish(published.path, published.size, published.sha256)

    async def _open_sink(
        self, link: Link, stream: int, size: int | None, fingerprint: str, *, restart: bool
    ) -> SinkOpened:
        message = OpenSink(
            session=self._to.session,
            transfer=self._to.transfer,
            stream=stream,
            path=self._to.path,
            fingerprint=fingerprint,
            size=size,
            overwrite=self._to.overwrite,
            restart=restart,
            origin=self._to.origin,
        )
        seconds = hash_seconds(size or self.report.moved)
        return await self._house.rpc.ask(link, message, SinkOpened, seconds)

    async def _flow(self, flow: Flow, sink: Link, stream: int) -> Whole:
        pipe = Pipe(flow, self._progress)
        self._house.pipes[stream] = sink, pipe
        trouble: list[BridgeError] = []
        whole: list[Whole] = []

        async def feed() -> None:
            whole.append(await self._feed.run(pipe))
            flow.size = whole[0].size
            await pipe.until_written()

        async def beside(work: Awaitable[None]) -> None:
            await _caught(work, trouble)
            tasks.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(beside, pipe.forward(sink, stream))
                tasks.start_soon(beside, pipe.until_failed())
                tasks.start_soon(beside, feed())
        finally:
            del self._house.pipes[stream]
            pipe.close()
        if trouble:
            raise trouble[0]
        return whole[0]

    def _progress(self, offset: int) -> None:
        self._advance("written", moved=offset)

    def _publish(self, path: str, size: int, sha256: str) -> None:
        self._advance("published", moved=size, size=size, sha256=sha256, written=path)


async def _caught(work: Awaitable[None], trouble: list[BridgeError]) -> None:
    """What goes wrong as an error that can be told; a bug is logged."""
    try:
        await work
    except BridgeError as error:
        trouble.append(error)
    except Exception:
        log.exception("a transfer failed")
        trouble.append(Internal("The bridge failed; its log has the details."))


def _nothing_ran(error: BridgeError) -> Failure:
    """A file that did not arrive left nothing behind."""
    return error.failure().model_copy(update={"executed": Executed.NO})
