"""Where a transfer's bytes come from: an agent, or the caller who sends them.  Not where they go."""

import base64
import binascii
import hashlib
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import anyio

from chappie_bridge.wire.errors import (
    BadArguments,
    BridgeError,
    Checksum,
    Interrupted,
    SourceChanged,
)
from chappie_bridge.wire.files import CloseSource, HashSource, OpenSource, SourceHashed, SourceOpened
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.link import CHUNK_BYTES
from chappie_bridge.wire.messages import Pull, Pulled
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.transfer import PULL, WINDOW, Flow, Span
from chappie_bridge.wire.values import Origin

from .rpc import Correspondence

OPENING = 600.0
"""Seconds that an end may take to open a file: its owner may have to be asked."""

PULLING = 120.0
"""Seconds from a pull to its last byte."""

HASHING = 20 * 1024 * 1024
"""Bytes a second that an end hashes at the very least."""

SILENT = 120.0
"""Seconds without a byte after which a caller that sends a file counts as gone."""

PUSHING = 8.0
"""Seconds that one push may wait for room; then its caller is told where to go on."""

MARKS = 256
"""Places, one a chunk, from which an upload's hash is taken up again; together more than a window."""


def hash_seconds(size: int) -> float:
    return OPENING + size / HASHING


class Facts(NamedTuple):
    """A source as it is now.  `fingerprint` is another one when it changed."""

    name: str
    size: int | None
    fingerprint: str
    followed: str | None = None


class Whole(NamedTuple):
    """What was sent, from its first byte."""

    size: int
    sha256: str


class Room(Protocol):
    """Where a feed puts what it has, and learns how much may follow (`relay.Pipe`)."""

    @property
    def flow(self) -> Flow: ...

    @property
    def closed(self) -> bool:
        """A link was lost: there will be another room."""
        ...

    def put(self, offset: int, data: bytes) -> None: ...

    async def span(self) -> Span | None:
        """The next bytes that are wanted, once there is room for them; None when all were."""
        ...


class Feed(Protocol):
    """One source.  After a lost link it is opened again; every method raises BridgeError."""

    @property
    def session(self) -> SessionId | None:
        """Which session must be online for it."""
        ...

    async def open(self, link: Link | None) -> Facts: ...

    async def digest(self, length: int) -> str:
        """The SHA-256 of its first bytes."""
        ...

    async def run(self, room: Room) -> Whole:
        """Put everything from `room.flow` on.  :raises SourceChanged:"""
        ...

    async def close(self) -> None:
        """It is not needed any more.  May be called twice."""
        ...


class AgentFeed:
    """A file of a session, pulled."""

    def __init__(
        self,
        rpc: Correspondence,
        session: SessionId,
        transfer: str,
        *,
        path: str | None,
        reference: str | None,
        origin: Origin,
        streams: "Streams",
    ) -> None:
        self._rpc, self._session, self._transfer = rpc, session, transfer
        self._path, self._reference, self._origin, self._streams = path, reference, origin, streams
        self._link: Link | None = None
        self._source = ""

    @property
    def session(self) -> SessionId:
        return self._session

    async def open(self, link: Link | None) -> Facts:
        if link is None:
            raise Interrupted
        message = OpenSource(
            session=self._session,
            transfer=self._transfer,
            path=self._path,
            reference=self._reference,
            origin=self._origin,
        )
        opened = await self._rpc.ask(link, message, SourceOpened, OPENING)
        self._link, self._source = link, opened.source
        return Facts(opened.name, opened.size, opened.fingerprint, opened.followed)

    async def digest(self, length: int) -> str:
        message = HashSource(session=self._session, source=self._source, length=length)
        return (await self._rpc.ask(self._there, message, SourceHashed, hash_seconds(length))).sha256

    async def run(self, room: Room) -> Whole:
        link = self._there
        stream = self._streams.open(link, room.put)
        last: list[Pulled] = []
        trouble: list[BridgeError] = []

        async def pull(span: Span, done: anyio.Semaphore) -> None:
            message = Pull(
                session=self._session,
                stream=stream,
                source=self._source,
                offset=span.offset,
                length=span.length,
            )
            try:
                last.append(await self._rpc.ask(link, message, Pulled, PULLING))
            except BridgeError as error:
                trouble.append(error)
                tasks.cancel_scope.cancel()
            done.release()

        try:
            two = anyio.Semaphore(WINDOW // PULL)
            async with anyio.create_task_group() as tasks:
                asked = False
                while (span := await room.span()) is not None or not asked:
                    asked = True
                    await two.acquire()
                    tasks.start_soon(pull, span or Span(room.flow.asked, 1), two)
        finally:
            self._streams.close(stream)
        if trouble:
            raise trouble[0]
        end = max(last, key=lambda each: each.end)
        if end.sha256 is None or end.end != room.flow.arrived:
            raise SourceChanged("The source gave another number of bytes than it has.")
        return Whole(end.size, end.sha256)

    async def close(self) -> None:
        if self._source and self._link is not None and self._link.up:
            self._link.send(CloseSource(session=self._session, source=self._source))
        self._source = ""

    @property
    def _there(self) -> Link:
        if self._link is None:
            raise Interrupted
        return self._link


class UploadFeed:
    """A file that the caller sends piece by piece (`Push`), each answered when there is room for it."""

    def __init__(self, name: str, size: int) -> None:
        self._facts = Facts(name, size, f"upload:{size}")
        self._size = size
        self._begin()
        self._room: Room | None = None
        self._sha256: str | None = None
        """Of the whole, once its sender said so."""
        self._changed = anyio.Event()
        self._closed = False

    def _begin(self) -> None:
        self._hash = hashlib.sha256()
        self._marks = deque([(0, hashlib.sha256())], maxlen=MARKS)

    @property
    def session(self) -> None:
        return None

    async def open(self, link: Link | None) -> Facts:
        return self._facts

    async def digest(self, length: int) -> str:
        """Of what is a window back at most; further back the caller begins again."""
        found = self._mark(length)
        return found.hexdigest() if found is not None else ""

    def _mark(self, at: int) -> "hashlib._Hash | None":
        return next((mark for offset, mark in reversed(self._marks) if offset == at), None)

    async def run(self, room: Room) -> Whole:
        at = room.flow.arrived
        found = self._mark(at)
        if found is None:
            self._begin()
            raise SourceChanged("The sender has to begin again.")
        self._hash = found.copy()
        while self._marks[-1][0] > at:
            self._marks.pop()
        self._room = room
        self._tell()
        try:
            while self._sha256 is None or room.flow.arrived < self._size:
                with anyio.move_on_after(SILENT) as patience:
                    await self._changed.wait()
                if patience.cancelled_caught:
                    raise Interrupted("The sender went away in the middle of the file.")
            # Whoever sent it stays until all is written: a lost link asks for the last bytes once more.
            return Whole(self._size, self._sha256)
        except BaseException:
            self._room = None
            raise

    async def push(self, offset: int, data: str, sha256: str | None) -> int | None:
        """See `wire.requests.Push`.  :raises BadArguments: :raises Checksum:"""
        raw = _decoded(data)
        with anyio.move_on_after(PUSHING):
            while self._there is None and not self._closed:
                await self._changed.wait()
        room = self._there
        if self._closed:
            return None
        if room is None:
            return offset  # a link is down; it may be sent once more
        if offset != room.flow.arrived:
            return room.flow.arrived
        if offset + len(raw) > self._size:
            raise BadArguments("More bytes came than the file was said to have.")
        with anyio.move_on_after(PUSHING):
            await self._take(room, raw)
            if sha256 is not None and self._room is room and room.flow.arrived == self._size:
                if self._hash.hexdigest() != sha256:
                    raise Checksum("The file changed while it was sent.")
                self._sha256 = sha256
                self._tell()
                while self._room is room and not self._closed:
                    await self._changed.wait()
        self._tell()
        return None if self._closed else (self._there or room).flow.arrived

    @property
    def _there(self) -> Room | None:
        """Where bytes may be put now."""
        return None if self._room is None or self._room.closed else self._room

    async def _take(self, room: Room, raw: bytes) -> None:
        """As much as there is room for, at most all of it."""
        done = 0
        while done < len(raw) and self._room is room:
            credit = room.flow.asked - room.flow.arrived
            if credit == 0:
                if await room.span() is None:
                    return
                continue
            piece = raw[done : done + min(CHUNK_BYTES, credit)]
            self._hash.update(piece)
            done += len(piece)
            self._marks.append((room.flow.arrived + len(piece), self._hash.copy()))
            room.put(room.flow.arrived, piece)

    async def close(self) -> None:
        self._closed = True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise BadArguments("`data` is not Base64.") from None


class Streams:
    """Which chunks of which link go where; a number is never used again."""

    def __init__(self, numbers: Callable[[], int]) -> None:
        self._numbers = numbers
        self._open: dict[int, tuple[Link, Callable[[int, bytes], None]]] = {}

    def number(self) -> int:
        return self._numbers()

    def open(self, link: Link, take: Callable[[int, bytes], None]) -> int:
        stream = self._numbers()
        self._open[stream] = (link, take)
        return stream

    def close(self, stream: int) -> None:
        self._open.pop(stream, None)

    def received(self, link: Link, stream: int, offset: int, data: bytes) -> None:
        """A chunk; those of closed streams, and of others' links, are dropped."""
        found = self._open.get(stream)
        if found is not None and found[0] is link:
            found[1](offset, data)
