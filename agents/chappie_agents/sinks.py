"""Takes files of transfers: writes what comes in chunks beside the target, and publishes it when all of it is
there and right.  What it has survives a dropped link, and a restart of this process for 24 hours."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread

from chappie_agents import part as parts
from chappie_agents.faults import fault, told_of
from chappie_agents.kept import Record, Records
from chappie_agents.part import Part
from chappie_agents.resolved import directory
from chappie_bridge.wire.errors import (
    BridgeError,
    Checksum,
    Internal,
    NotAFile,
    Overloaded,
    UnknownOperation,
)
from chappie_bridge.wire.files import (
    CloseSink,
    DropSink,
    OpenSink,
    Published,
    SinkFailed,
    SinkOpened,
    Written,
)
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.transfer import PULL, WINDOW
from chappie_bridge.wire.values import Origin

log = logging.getLogger("chappie.agent")

MAX_SINKS = 64
"""Files that are taken at the same time."""

BATCH = PULL // 2
"""Bytes written in one go, and told in one word, as long as they come fast."""

LINGER = 0.01
"""Seconds that fewer wait for more."""

_UNASKED = 2 * WINDOW
"""Bytes that may wait to be written; a broker that keeps the window never comes near."""


class Permit(Protocol):
    """The real path, once the owner of the device allows it.  Raises `Denied`, `BadArguments`."""

    async def __call__(self, path: str, *, writing: bool, origin: Origin | None) -> Path: ...


class _Sink:
    """One open part.  `received` counts what came, written or not; `used` is when the broker last did
    anything with it."""

    def __init__(self, message: OpenSink, link: Link, part: Part, now: float) -> None:
        self.transfer, self.fingerprint, self.overwrite = (
            message.transfer,
            message.fingerprint,
            message.overwrite,
        )
        self.part = part
        self.size = message.size
        self.filled = anyio.Event()
        self.waiting: deque[bytes] = deque()
        self.failure: BridgeError | None = None
        self.idle = anyio.Event()
        self.idle.set()
        self.attach(message, link, now)

    def attach(self, message: OpenSink, link: Link, now: float) -> None:
        """From now on chunks come on this stream, after what is written."""
        self.stream, self.link = message.stream, link
        self.received = self.part.position
        self.used = now

    @property
    def full(self) -> bool:
        """Is there a batch to write, or the last bytes?"""
        return self.received - self.part.position >= BATCH or self.received == self.size


class Sinks:
    """The sinks of one session."""

    def __init__(
        self,
        session: SessionId,
        home: Path,
        permit: Permit,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        now: Callable[[], float],
    ) -> None:
        """`home`: where records are kept; `start` runs something in the session's own task group; `now`:
        seconds since the epoch."""
        self._session, self._permit, self._start, self._now = session, permit, start, now
        self._records = Records(home)
        self._open: dict[str, _Sink] = {}
        self._streams: dict[int, _Sink] = {}
        self._locks: dict[str, anyio.Lock] = {}

    async def open(self, link: Link, message: OpenSink) -> SinkOpened:
        """See `OpenSink`.  :raises BridgeError:"""
        async with self._alone(message.transfer):
            sink = self._open.get(message.transfer)
            discarded = False
            if sink is not None:
                sink.filled.set()
                await sink.idle.wait()
                if sink.failure is not None:
                    self._forget(sink)  # it is removed already
                elif message.restart or sink.fingerprint != message.fingerprint:
                    await self._remove(sink)
                    discarded = True
                else:
                    self._streams.pop(sink.stream, None)
                    sink.attach(message, link, self._now())
                    self._streams[sink.stream] = sink
                    return self._opened(sink)
            if len(self._open) >= MAX_SINKS and not self._forget_failed():
                raise Overloaded("This device takes as many files as it may already.")
            if message.path.endswith(("/", "/.", "/..")):
                raise NotAFile(f"{message.path!r} names a directory; name the file in it.")
            path = await self._permit(message.path, writing=True, origin=message.origin)
            with told_of(path):
                found = await to_thread.run_sync(self._begin, message, path)
            if isinstance(found, SinkOpened):
                return found
            part, lost = found
            sink = self._open[message.transfer] = _Sink(message, link, part, self._now())
            self._streams[sink.stream] = sink
            return self._opened(sink, discarded=discarded or lost)

    def received(self, link: Link, stream: int, offset: int, data: bytes) -> bool:
        """A chunk.  False: the stream is none of ours (an old one, perhaps)."""
        sink = self._streams.get(stream)
        if sink is None or sink.link is not link:
            return False
        if sink.failure is not None or offset != sink.received:
            return True  # what comes after a lost one is sent again
        if sink.received - sink.part.position + len(data) > _UNASKED:
            log.warning("a transfer's chunks come faster than they were asked for")
            return True
        sink.used = self._now()
        sink.received += len(data)
        sink.waiting.append(data)
        if sink.full:
            sink.filled.set()
        if sink.idle.is_set():
            sink.idle = anyio.Event()
            self._start(partial(self._drain, sink))
        return True

    async def close(self, message: CloseSink) -> Published:
        """See `CloseSink`.  :raises Checksum: :raises BridgeError:"""
        async with self._alone(message.transfer):
            sink = self._open.get(message.transfer)
            if sink is None:
                return self._before(message)
            await sink.idle.wait()
            if sink.failure is not None:
                raise sink.failure
            try:
                if (sink.part.position, sink.part.sha256) != (message.size, message.sha256):
                    raise Checksum
                with told_of(sink.part.path):
                    await to_thread.run_sync(self._publish, sink)
            except BridgeError:
                await self._remove(sink)
                raise
            self._forget(sink)
            return Published(path=str(sink.part.path), size=message.size, sha256=message.sha256)

    async def drop(self, message: DropSink) -> None:
        """Take away what is there of it."""
        async with self._alone(message.transfer):
            sink = self._open.get(message.transfer)
            if sink is not None:
                sink.waiting.clear()
                sink.filled.set()
                await sink.idle.wait()
                await self._remove(sink)
            else:
                await to_thread.run_sync(self._discard, message.transfer)

    async def tidy(self, before: float) -> None:
        """Take away parts that nobody went on with since then (seconds since the epoch).

        Raises `OSError`."""
        for sink in [each for each in self._open.values() if each.used < before]:
            async with self._alone(sink.transfer):
                current = self._open.get(sink.transfer) is sink
                if current and sink.used < before and sink.idle.is_set():
                    await self._remove(sink)
        await to_thread.run_sync(self._sweep, before)

    def shut(self) -> None:
        """Close what is open; it can be gone on with.  Blocks."""
        for sink in self._open.values():
            sink.part.close()

    # -- inside ----------------------------------------------------------------------------------

    def _sweep(self, before: float) -> None:
        for record in self._records.expired(before, lambda each: each.get("transfer") in self._open):
            _remove_part(record)

    def _opened(self, sink: _Sink, *, discarded: bool = False) -> SinkOpened:
        part = sink.part
        return SinkOpened(path=str(part.path), offset=part.position, sha256=part.sha256, discarded=discarded)

    def _begin(self, message: OpenSink, path: Path) -> SinkOpened | tuple[Part, bool]:
        """The part to go on with or a new one, and whether an old one was thrown away; or the news that it
        is published.  Raises `OSError`, `BridgeError`."""
        record = self._records.get(message.transfer)
        lost = False
        if record is not None:
            same = (record.get("path"), record.get("fingerprint")) == (str(path), message.fingerprint)
            if same and not message.restart:
                if (done := _finished(record, path)) is not None:
                    return done
                try:
                    part = Part.reopen(path, str(record["part"]))
                except FileNotFoundError:
                    pass
                else:
                    self._check(path, overwrite=message.overwrite)
                    self._records.put(message.transfer, record)  # its day begins anew
                    return part, False
            _remove_part(record)
            lost = True
        with directory(path.parent, create=message.parents) as above:
            parts.target(above, path, overwrite=message.overwrite)
        part = Part.create(path, parents=message.parents)
        try:
            self._records.put(
                message.transfer,
                {
                    "transfer": message.transfer,
                    "path": str(path),
                    "part": part.name,
                    "fingerprint": message.fingerprint,
                },
            )
        except BaseException:
            part.remove()
            raise
        return part, lost

    def _check(self, path: Path, *, overwrite: bool) -> None:
        with directory(path.parent) as above:
            parts.target(above, path, overwrite=overwrite)

    async def _drain(self, sink: _Sink) -> None:
        try:
            while sink.waiting and sink.failure is None:
                if not sink.full:
                    sink.filled = anyio.Event()
                    with anyio.move_on_after(LINGER):
                        await sink.filled.wait()
                chunks: list[bytes] = []
                size = 0
                while sink.waiting and size < WINDOW:
                    chunks.append(sink.waiting.popleft())
                    size += len(chunks[-1])
                await to_thread.run_sync(sink.part.write, chunks)
                _send(
                    sink.link,
                    Written(session=self._session, stream=sink.stream, offset=sink.part.position),
                )
        except OSError as error:
            await self._fail(sink, fault(error, sink.part.path))
        except Exception:
            log.exception("a part could not be written")
            await self._fail(sink, Internal())
        finally:
            sink.idle.set()

    async def _fail(self, sink: _Sink, error: BridgeError) -> None:
        sink.failure = error
        sink.waiting.clear()
        self._streams.pop(sink.stream, None)
        await to_thread.run_sync(self._gone, sink)
        _send(sink.link, SinkFailed(session=self._session, stream=sink.stream, failure=error.failure()))

    def _publish(self, sink: _Sink) -> None:
        part = sink.part
        part.settle()
        record: Record = {
            "transfer": sink.transfer,
            "path": str(part.path),
            "part": part.name,
            "fingerprint": sink.fingerprint,
            "size": part.position,
            "sha256": part.sha256,
        }
        self._records.put(sink.transfer, record)
        part.publish(overwrite=sink.overwrite)
        part.close()
        self._records.put(sink.transfer, {**record, "published": True})

    def _before(self, message: CloseSink) -> Published:
        """The answer of an earlier life, or of a request that came twice."""
        record = self._records.get(message.transfer)
        if record is None or record.get("sha256") != message.sha256 or not record.get("published"):
            raise UnknownOperation("This device does not take that file any more.")
        return Published(path=str(record["path"]), size=message.size, sha256=message.sha256)

    async def _remove(self, sink: _Sink) -> None:
        self._forget(sink)
        await to_thread.run_sync(self._gone, sink)

    def _gone(self, sink: _Sink) -> None:
        sink.part.remove()
        self._records.remove(sink.transfer)

    def _discard(self, transfer: str) -> None:
        record = self._records.get(transfer)
        if record is not None and not record.get("published"):
            _remove_part(record)
            self._records.remove(transfer)

    def _forget_failed(self) -> bool:
        """One that failed, the oldest: its broker was told, its part is removed.  False: there is none."""
        failed = [each for each in self._open.values() if each.failure is not None and each.idle.is_set()]
        if failed:
            self._forget(min(failed, key=lambda each: each.used))
        return bool(failed)

    def _forget(self, sink: _Sink) -> None:
        self._streams.pop(sink.stream, None)
        self._open.pop(sink.transfer, None)

    def _alone(self, transfer: str) -> "_Alone":
        return _Alone(self._locks, transfer)


class _Alone:
    """One request of a transfer at a time; a lock that nobody waits for is forgotten."""

    def __init__(self, locks: dict[str, anyio.Lock], name: str) -> None:
        self._locks, self._name = locks, name
        self._lock = locks.setdefault(name, anyio.Lock())

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        if not self._lock.statistics().locked:
            self._locks.pop(self._name, None)


def _finished(record: Record, path: Path) -> SinkOpened | None:
    """Was it published, although perhaps nobody was told?  Raises `OSError`."""
    size, sha256 = record.get("size"), record.get("sha256")
    if not isinstance(size, int) or not isinstance(sha256, str):
        return None
    if not record.get("published"):
        try:
            if not parts.published(path, str(record["part"])) or parts.digest(path) != sha256:
                return None
        except FileNotFoundError:
            return None
    return SinkOpened(path=str(path), offset=size, sha256=sha256, published=True)


def _remove_part(record: Record) -> None:
    path, name = record.get("path"), record.get("part")
    if isinstance(path, str) and isinstance(name, str) and not record.get("published"):
        parts.remove(Path(path), name)


def _send(link: Link, message: Written | SinkFailed) -> None:
    try:
        link.send(message)
    except BridgeError as error:
        log.warning("%s could not be sent: %s", type(message).__name__, error)
