"""Gives the bytes of files: to a transfer under way, and of offered files and native images for 24 hours.
Changes no file that is not its own."""

import base64
import contextlib
import hashlib
import mimetypes
import os
import secrets
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio import to_thread

from chappie_agents.faults import told_of
from chappie_agents.kept import Record, Records
from chappie_agents.resolved import NotRegular, reading
from chappie_agents.sinks import Permit
from chappie_agents.tools.tool import shown
from chappie_bridge.codec.unicode import clean_text
from chappie_bridge.wire.blocks import Content, Image, Spill
from chappie_bridge.wire.errors import (
    BadArguments,
    Overloaded,
    PathMissing,
    SourceChanged,
    TooLarge,
)
from chappie_bridge.wire.files import HashSource, OpenSource, SourceHashed, SourceOpened
from chappie_bridge.wire.link import CHUNK_BYTES
from chappie_bridge.wire.messages import Pull, Pulled
from chappie_bridge.wire.ports import Link

MAX_SOURCES = 64
"""Files that are given at the same time."""

IDLE = 600.0
"""Seconds after which a source that nobody asks for makes room for another, the one longest idle first.  Who
opened it may have gone without a word; who comes back opens it again."""

_READ = 1024 * 1024
_MARKS = 8
"""Places, one a pull, from which a hash is taken up again; together more than a window."""

_SNIFFED = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}


class _Place(NamedTuple):
    """A file as it was when it was offered."""

    path: Path
    size: int
    fingerprint: str
    name: str
    mime_type: str
    sha256: str | None


class _Source:
    """An open file and the hash of what was read of it, which runs ahead of what its sink has; `used` is when
    the broker last asked for anything of it."""

    def __init__(self, descriptor: int, place: _Place, now: float) -> None:
        self.descriptor, self.place, self.used = descriptor, place, now
        self.lock, self.sending = anyio.Lock(), anyio.Lock()
        self._begin()

    @property
    def idle(self) -> bool:
        """Nobody reads it, waits to read it, or sends what was read."""
        return not (self.lock.locked() or self.sending.locked())

    def _begin(self) -> None:
        self._hash = hashlib.sha256()
        self._hashed = 0
        self._marks = deque([(0, hashlib.sha256())], maxlen=_MARKS)

    def reopen(self, descriptor: int, place: _Place) -> None:
        """The path once more: the same file goes on with its hash, another one begins."""
        if (place.path, place.fingerprint) != (self.place.path, self.place.fingerprint):
            self._begin()
        os.close(self.descriptor)
        self.descriptor, self.place = descriptor, place

    @property
    def sha256(self) -> str | None:
        """Of the whole, once all of it was read."""
        return self._hash.hexdigest() if self._hashed == self.place.size else None

    def read(self, offset: int, length: int) -> list[bytes]:
        """In chunks.  Blocks.  :raises SourceChanged: Raises `OSError`."""
        end = min(offset + length, self.place.size)
        if offset > self._hashed:
            self._run(offset)
        chunks: list[bytes] = []
        while offset < end:
            wanted = min(CHUNK_BYTES, end - offset)
            data = os.pread(self.descriptor, wanted, offset)
            if len(data) < wanted:
                raise SourceChanged(f"{shown(self.place.path)} became shorter while it was read.")
            chunks.append(data)
            offset += wanted
            if self._hashed < offset:  # while it is in the processor's cache
                self._hash.update(data if self._hashed == offset - wanted else data[self._hashed - offset :])
                self._hashed = offset
        check(self.descriptor, self.place)
        self._mark()
        return chunks

    def digest(self, length: int) -> str:
        """Of the first `length` bytes.  Blocks; reads again only what no mark is near.  Raises `OSError`."""
        if length > self._hashed:
            self._run(length)
        if length == self._hashed:
            return self._hash.hexdigest()
        at, before = next(
            (mark for mark in reversed(self._marks) if mark[0] <= length), (0, hashlib.sha256())
        )
        return _read_on(self.descriptor, before.copy(), at, length).hexdigest()

    def _run(self, to: int) -> None:
        _read_on(self.descriptor, self._hash, self._hashed, to)
        self._hashed = to
        self._mark()

    def _mark(self) -> None:
        self._marks.append((self._hashed, self._hash.copy()))


class Sources:
    """The sources of one session."""

    def __init__(self, home: Path, permit: Permit, directory: Path, now: Callable[[], float]) -> None:
        """`home`: where offers and images are kept; paths are relative to `directory`; `now`: seconds since
        the epoch."""
        self._permit, self._directory, self._now = permit, directory, now
        self._offers = Records(home / "offers")
        self._images = home / "images"
        self._images.mkdir(mode=0o700, exist_ok=True)
        self._open: dict[str, _Source] = {}

    async def open(self, message: OpenSource) -> SourceOpened:
        """See `OpenSource`.  :raises BridgeError:"""
        followed = None
        if message.reference is not None:
            place = self._place(message.reference)
        elif message.path is not None:
            path = await self._permit(message.path, writing=False, origin=message.origin)
            if (self._directory / Path(message.path).expanduser()).is_symlink():
                followed = clean_text(str(path))[0]
            with told_of(path):
                place = await to_thread.run_sync(_look, path)
        else:
            raise BadArguments("A source is a path or a reference.")
        if message.keep:
            return await self._offer(message, place, followed)
        name = f"open:{message.transfer}"
        source = self._open.get(name)
        if source is None:
            if len(self._open) >= MAX_SOURCES and not self.expire(self._now() - IDLE, most=1):
                raise Overloaded("This device gives as many files as it may already.")
            with told_of(place.path):
                descriptor = await to_thread.run_sync(_descriptor, place)
            self._open[name] = _Source(descriptor, place, self._now())
            return _told(name, place, followed)
        async with source.lock:
            with told_of(place.path):
                descriptor = await to_thread.run_sync(_descriptor, place)
            source.reopen(descriptor, place)
            source.used = self._now()
        return _told(name, place, followed)

    async def digest(self, message: HashSource) -> SourceHashed:
        source = self._named(message.source)
        async with source.lock:
            with told_of(source.place.path):
                sha256 = await to_thread.run_sync(source.digest, message.length)
        return SourceHashed(sha256=sha256)

    async def close(self, name: str) -> None:
        """Nobody pulls it any more.  Unknown ones are ignored."""
        source = self._open.pop(name, None)
        if source is not None:
            async with source.lock:
                os.close(source.descriptor)

    async def pull(self, link: Link, message: Pull) -> Pulled:
        """See `Pull`, for everything but spilled blocks.  :raises BridgeError: :raises Lost:"""
        if message.source.startswith("open:"):
            return await self._pull_open(link, message)
        place = self._place(message.source)
        with told_of(place.path), reading(place.path) as descriptor:
            check(descriptor, place)
            if message.offset > place.size:
                raise BadArguments(f"`offset` {message.offset} is beyond the end of {place.size} bytes.")
            offset, end = message.offset, min(place.size, message.offset + message.length)
            while offset < end:
                length = min(CHUNK_BYTES, end - offset)
                data = await to_thread.run_sync(os.pread, descriptor, length, offset)
                check(descriptor, place)
                if len(data) < length:
                    raise SourceChanged
                await link.send_chunk(message.stream, offset, data)
                offset += length
        return Pulled(stream=message.stream, end=end, size=place.size)

    def keep(self, content: Content) -> None:
        """Images among native blocks can be read by their SHA-256 for the next day.  Blocks, for at most a
        small file each.  Raises `OSError`."""
        for block in content:
            if isinstance(block, Image):
                data = base64.b64decode(block.data)
                self._keep(hashlib.sha256(data).hexdigest(), data)
            elif isinstance(block, Spill) and block.of == "image":
                with contextlib.suppress(FileExistsError, FileNotFoundError):
                    os.link(block.path, self._images / block.sha256)

    def _keep(self, sha256: str, data: bytes) -> None:
        path = self._images / sha256
        try:
            os.utime(path)
            return
        except FileNotFoundError:
            pass
        part = path.with_name(f".{secrets.token_hex(8)}.part")
        part.write_bytes(data)
        part.replace(path)

    def expire(self, before: float, *, most: int = MAX_SOURCES) -> int:
        """Close sources that nobody asked for since then (seconds since the epoch), the oldest first, at most
        so many.  How many there were."""
        idle = [(each.used, name) for name, each in self._open.items() if each.used <= before and each.idle]
        for _, name in sorted(idle)[:most]:
            os.close(self._open.pop(name).descriptor)
        return min(len(idle), most)

    def tidy(self, before: float) -> None:
        """Forget what was offered before that (seconds since the epoch).  Blocks."""
        for _ in self._offers.expired(before):
            pass
        for path in self._images.iterdir():
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()

    def shut(self) -> None:
        """Blocks."""
        for source in self._open.values():
            os.close(source.descriptor)
        self._open.clear()

    # -- inside ----------------------------------------------------------------------------------

    async def _pull_open(self, link: Link, message: Pull) -> Pulled:
        source = self._named(message.source)
        async with source.lock:
            with told_of(source.place.path):
                chunks = await to_thread.run_sync(source.read, message.offset, message.length)
            end = message.offset + sum(map(len, chunks))
            sha256 = source.sha256 if end == source.place.size else None
            await source.sending.acquire()  # in the order of reading, but the next read begins already
        try:
            await _send(link, message.stream, message.offset, chunks)
        finally:
            source.sending.release()
        return Pulled(stream=message.stream, end=end, size=source.place.size, sha256=sha256)

    async def _offer(self, message: OpenSource, place: _Place, followed: str | None) -> SourceOpened:
        if message.limit is not None and place.size > message.limit:
            raise TooLarge(
                f"{shown(place.path)} has {place.size} bytes; at most {message.limit} can be read by"
                " reference.",
                hint="Split or compress it, or transfer it to another session.",
            )
        if place.sha256 is None:
            with told_of(place.path):
                place = await to_thread.run_sync(_hashed, place)
        if message.reference is not None:
            return _told(message.reference, place, followed)
        name = str(uuid.uuid4())
        record: Record = {**place._asdict(), "path": os.fsencode(place.path).hex()}
        with told_of(place.path):
            await to_thread.run_sync(self._offers.put, name, record)
        return _told(f"file:{name}", place, followed)

    def _place(self, reference: str) -> _Place:
        """Where an offered file or an image is.  :raises PathMissing: it is unknown or too old."""
        kind, _, name = reference.partition(":")
        if kind == "image" and len(name) == 64 and name.isalnum():
            return self._image(name)
        record = self._offers.get(name) if kind == "file" else None
        if record is None:
            raise PathMissing("This reference is not known here, or is older than 24 hours.")
        return _Place(
            path=Path(os.fsdecode(bytes.fromhex(str(record["path"])))),
            size=int(str(record["size"])),
            fingerprint=str(record["fingerprint"]),
            name=str(record["name"]),
            mime_type=str(record["mime_type"]),
            sha256=str(record["sha256"]),
        )

    def _image(self, sha256: str) -> _Place:
        path = self._images / sha256
        try:
            with path.open("rb") as file:
                start = file.read(16)
                status = os.fstat(file.fileno())
        except OSError:
            raise PathMissing("This image is not known here, or is older than 24 hours.") from None
        kind = next((kind for magic, kind in _SNIFFED.items() if start.startswith(magic)), None)
        name = f"image{mimetypes.guess_extension(kind) or '.bin'}" if kind else "image.bin"
        return _Place(
            path, status.st_size, _fingerprint(status), name, kind or "application/octet-stream", sha256
        )

    def _named(self, name: str) -> _Source:
        source = self._open.get(name)
        if source is None:
            raise SourceChanged("The source is not open any more.")
        source.used = self._now()
        return source


def check(descriptor: int, place: _Place) -> None:
    """:raises SourceChanged: the file is not as it was."""
    if _fingerprint(os.fstat(descriptor)) != place.fingerprint:
        raise SourceChanged(f"{shown(place.path)} changed since it was offered.")


def _fingerprint(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}"


def _look(path: Path) -> _Place:
    """Raises `OSError`."""
    with reading(path) as descriptor:
        status = os.fstat(descriptor)
        if status.st_size == 0 and os.pread(descriptor, 1, 0):
            raise NotRegular(0, "has no size of its own (a file of /proc, perhaps); read it with a tool")
    name = clean_text(path.name)[0]
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return _Place(path, status.st_size, _fingerprint(status), name, kind, None)


def _descriptor(place: _Place) -> int:
    """The file, still as it was.  Raises `OSError`.  :raises SourceChanged:"""
    with reading(place.path) as descriptor:
        check(descriptor, place)
        return os.dup(descriptor)


def _hashed(place: _Place) -> _Place:
    with reading(place.path) as descriptor:
        digest = _read_on(descriptor, hashlib.sha256(), 0, place.size)
        check(descriptor, place)
    return place._replace(sha256=digest.hexdigest())


def _read_on(descriptor: int, digest: "hashlib._Hash", start: int, end: int) -> "hashlib._Hash":
    while start < end:
        data = os.pread(descriptor, min(_READ, end - start), start)
        if not data:
            raise SourceChanged("The source became shorter while it was read.")
        digest.update(data)
        start += len(data)
    return digest


def _told(source: str, place: _Place, followed: str | None) -> SourceOpened:
    return SourceOpened(
        source=source,
        name=place.name,
        size=place.size,
        mime_type=place.mime_type,
        fingerprint=place.fingerprint,
        sha256=place.sha256,
        followed=followed,
    )


async def _send(link: Link, stream: int, offset: int, chunks: list[bytes]) -> None:
    for data in chunks:
        await link.send_chunk(stream, offset, data)
        offset += len(data)
