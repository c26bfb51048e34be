"""Keeps what is too long for a message: exact bytes on this device's disk, ends in memory.  Decides nothing
about who may read them.

All of it blocks on the disk: call it from a worker thread where the bytes are many.
"""

import base64
import codecs
import contextlib
import hashlib
import os
import re
import secrets
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

from chappie_bridge.codec.unicode import clean_text
from chappie_bridge.wire.blocks import SPILL_ABOVE, SPILL_PART, Block, Content, Image, Spill, Text

STEP = 256
"""Files looked at, or removed, in one step of a sweep."""

_SLACK = 64
"""Bytes kept beyond a part, so that a cut can look at the characters on both sides of it."""

_BACK = 16
"""Characters a cut moves at most to stay out of a grapheme."""

_KEEP = SPILL_PART + _SLACK
_NAME = re.compile(r"[0-9a-f]{32}\.[a-z]{3,4}")
_SUFFIXES = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}


class Kept(NamedTuple):
    """What a sink made of its bytes."""

    content: Content  # nothing for no bytes
    size: int  # bytes written to the sink
    sha256: str | None  # hex; of what was spilled or of what could not be
    path: Path | None  # the file with the exact bytes, where there is one
    lossy: bool  # the text shown is a reading of bytes that are not UTF-8
    cut: bool  # the content is not the whole
    trouble: str | None  # why there is no file although there should be


class Spool:
    """A directory (0700) of files (0600) with random names.

    One process writes; names are never reused, so whoever holds a path holds these bytes or none.
    """

    def __init__(self, directory: Path) -> None:
        """Makes the directory if need be.  Raises `OSError`."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(directory.stat().st_mode) != 0o700:
            directory.chmod(0o700)
        self.directory = directory
        self._open: set[str] = set()

    def sink(self, mime_type: str | None = None) -> "Sink":
        """A place to write bytes of unknown length to; with `mime_type` they are an image."""
        return Sink(self, mime_type)

    def spill_text(self, text: str) -> Spill:
        """All of `text` on the disk, its ends in the block.  Lone surrogates become U+FFFD.

        Raises `OSError`.
        """
        text = clean_text(text)[0]
        data = text.encode()
        return Spill(
            of="text",
            head=first_part(text),
            tail=last_part(text),
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            path=str(self._store(data, "txt")),
        )

    def spill_image(self, data: bytes, mime_type: str) -> Spill:
        """The exact bytes on the disk.  Raises `OSError`."""
        return Spill(
            of="image",
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            path=str(self._store(data, _SUFFIXES.get(mime_type, "bin"))),
            mime_type=mime_type,
        )

    def fit(self, content: Content) -> Content:
        """`content` with each block above `SPILL_ABOVE` bytes spilled.

        Where the disk takes no more, the ends of a text stay and a sentence says what is missing.
        """
        return tuple(part for block in content for part in self._fit(block))

    def _fit(self, block: Block) -> Content:
        if fits(block):
            return (block,)
        try:
            if isinstance(block, Text):
                return (self.spill_text(block.text),)
            if isinstance(block, Image):
                return (self.spill_image(base64.b64decode(block.data), block.mime_type),)
        except OSError as error:
            note = Text(text=f"The whole could not be kept on the device: {error.strerror or error}.")
            if isinstance(block, Text):
                text = clean_text(block.text)[0]
                return Text(text=first_part(text)), Text(text=last_part(text)), note
            return (note,)
        return (block,)

    def create(self, suffix: str) -> tuple[BinaryIO, Path]:
        """A new file, unbuffered, safe from `sweep` until `release`d.  Raises `OSError`."""
        path = self.directory / f"{secrets.token_hex(16)}.{suffix}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        self._open.add(path.name)
        return os.fdopen(descriptor, "wb", buffering=0), path

    def release(self, path: Path) -> None:
        """The file is complete and ages from now on."""
        self._open.discard(path.name)

    def _store(self, data: bytes, suffix: str) -> Path:
        file, path = self.create(suffix)
        try:
            with file:
                write_all(file, data)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            self.release(path)
        return path

    def sweep(self, *, older_than_seconds: float, max_bytes: int, now: float) -> Iterator[int]:
        """Removes files older than that, then the oldest until `max_bytes` are left.

        Each step looks at or removes at most `STEP` files and yields how many it removed; take the next
        step when there is time.  `now` is in seconds since the epoch.  Files being written and names that
        are not ours stay.
        """
        young: list[tuple[float, int, str]] = []
        seen = removed = 0
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name) and entry.name not in self._open:
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if now - status.st_mtime > older_than_seconds:
                            Path(entry).unlink()
                            removed += 1
                        else:
                            young.append((status.st_mtime, status.st_size, entry.name))
                seen += 1
                if seen % STEP == 0:
                    yield removed
                    removed = 0
        young.sort()
        total = sum(size for _, size, _ in young)
        for index, (_, size, name) in enumerate(young):
            if total <= max_bytes:
                break
            with contextlib.suppress(FileNotFoundError):
                (self.directory / name).unlink()
                removed += 1
            total -= size
            if index % STEP == STEP - 1:
                yield removed
                removed = 0
        yield removed


class Sink:
    """Takes bytes as they come; holds at most `SPILL_ABOVE` of them, the rest goes to a file.

    Use as a context manager: leaving it without `close` removes the file.
    """

    def __init__(self, spool: Spool, mime_type: str | None) -> None:
        self.size = 0
        self._spool = spool
        self._mime_type = mime_type
        self._start = bytearray()
        self._head = self._tail = b""
        self._hash = hashlib.sha256()
        self._file: BinaryIO | None = None
        self._path: Path | None = None
        self._trouble: str | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._closed:
            self._drop()

    @property
    def spilled(self) -> bool:
        """Has it more than fits in a block?  From then on `write` goes to the disk."""
        return self.size > SPILL_ABOVE

    def write(self, chunk: bytes) -> None:
        """Never raises for a full disk: the ends and the hash go on, and `close` says what is missing."""
        spilled = self.spilled
        self.size += len(chunk)
        if spilled:
            self._take(chunk)
        else:
            self._start += chunk
            if self.spilled:
                start = bytes(self._start)
                self._start.clear()
                self._head = start[:_KEEP]
                self._open_file()
                self._take(start)

    def _take(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self._tail = chunk[-_KEEP:] if len(chunk) >= _KEEP else (self._tail + chunk)[-_KEEP:]
        if self._file is not None:
            try:
                write_all(self._file, chunk)
            except OSError as error:
                self._drop()
                self._trouble = error.strerror or str(error)

    def _open_file(self) -> None:
        suffix = "txt" if self._mime_type is None else _SUFFIXES.get(self._mime_type, "bin")
        try:
            self._file, self._path = self._spool.create(suffix)
        except OSError as error:
            self._trouble = error.strerror or str(error)

    def _drop(self) -> None:
        if self._file is not None and self._path is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)
            self._spool.release(self._path)
        self._file = self._path = None

    def close(self) -> Kept:
        """Ends it.  Bytes that are not UTF-8 are kept in a file whatever their number."""
        self._closed = True
        kept = self._image() if self._mime_type is not None else self._text()
        if self._file is not None and self._path is not None:
            self._file.close()
            self._spool.release(self._path)
        return kept

    def _image(self) -> Kept:
        if not self.spilled:
            image = Image(data=base64.b64encode(self._start).decode("ascii"), mime_type=self._mime_type or "")
            return self._kept((image,))
        return self._kept(self._spilled("", "", lossy=False))

    def _text(self) -> Kept:
        if self.spilled:
            head, rough = _read_head(self._head)
            tail, coarse = _read_tail(self._tail)
            return self._kept(self._spilled(head, tail, lossy=rough or coarse), lossy=rough or coarse)
        data = bytes(self._start)
        try:
            return self._kept((Text(text=data.decode()),) if data else ())
        except UnicodeDecodeError:
            text = data.decode(errors="replace")
        self._open_file()
        self._take(data)
        if not _above(text):
            return self._kept((Text(text=text),), lossy=True)
        return self._kept(self._spilled(first_part(text), last_part(text), lossy=True), lossy=True)

    def _spilled(self, head: str, tail: str, *, lossy: bool) -> Content:
        if self._path is None:
            return tuple(Text(text=part) for part in (head, tail) if part)
        spill = Spill(
            of="text" if self._mime_type is None else "image",
            head=head,
            tail=tail,
            size=self.size,
            sha256=self._hash.hexdigest(),
            path=str(self._path),
            mime_type=self._mime_type,
            lossy=lossy,
        )
        return (spill,)

    def _kept(self, content: Content, *, lossy: bool = False) -> Kept:
        cut = self.spilled or any(isinstance(block, Spill) for block in content) or len(content) > 1
        sha256 = self._hash.hexdigest() if self.spilled or lossy else None
        return Kept(content, self.size, sha256, self._path, lossy, cut, self._trouble)


def write_all(file: BinaryIO, data: bytes) -> None:
    """An unbuffered file may take less than it is given.  Raises `OSError`."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def fits(block: Block) -> bool:
    """Is it at most `SPILL_ABOVE` bytes long, or a reference?"""
    if isinstance(block, Image):
        return len(block.data) // 4 * 3 - block.data.count("=", -2) <= SPILL_ABOVE
    return not isinstance(block, Text) or not _above(block.text)


def _above(text: str) -> bool:
    """Is it longer than `SPILL_ABOVE` in UTF-8?  Counts only where the answer is not plain."""
    if len(text) * 4 <= SPILL_ABOVE:
        return False
    return len(text) > SPILL_ABOVE or len(text.encode(errors="surrogatepass")) > SPILL_ABOVE


def _joined(before: str, after: str) -> bool:
    """Do the two characters belong together for a reader?  A cheap reading of Unicode's rules."""
    return (
        unicodedata.category(after)[0] == "M"
        or after == "\u200d"
        or before == "\u200d"
        or "\U0001f3fb" <= after <= "\U0001f3ff"
        or (before == "\r" and after == "\n")
        or ("\U0001f1e6" <= before <= "\U0001f1ff" and "\U0001f1e6" <= after <= "\U0001f1ff")
    )


def first_part(text: str) -> str:
    """The longest beginning of at most `SPILL_PART` bytes, cut between characters, not in a grapheme."""
    data = text[: SPILL_PART + 1].encode()
    if len(data) <= SPILL_PART:
        return text[: SPILL_PART + 1]
    whole = cut = len(data[:SPILL_PART].decode(errors="ignore"))
    while cut > max(0, whole - _BACK) and _joined(text[cut - 1], text[cut]):
        cut -= 1
    return text[: whole if _joined_at(text, cut) else cut]


def last_part(text: str) -> str:
    """The longest end of at most `SPILL_PART` bytes, cut between characters, not in a grapheme."""
    data = text[-SPILL_PART - 1 :].encode()
    if len(data) <= SPILL_PART:
        return text[-SPILL_PART - 1 :]
    whole = cut = len(text) - len(data[-SPILL_PART:].decode(errors="ignore"))
    while cut < min(len(text) - 1, whole + _BACK) and _joined(text[cut - 1], text[cut]):
        cut += 1
    return text[whole if _joined_at(text, cut) else cut :]


def _joined_at(text: str, cut: int) -> bool:
    return 0 < cut < len(text) and _joined(text[cut - 1], text[cut])


def _decode(data: bytes, *, final: bool) -> tuple[str, bool]:
    """Text and whether it is lossy; without `final` a character cut off at the end is left out."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final), False
    except UnicodeDecodeError:
        return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final), True


def _read_head(data: bytes) -> tuple[str, bool]:
    text, lossy = _decode(data, final=False)
    return first_part(text), lossy


def _read_tail(data: bytes) -> tuple[str, bool]:
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    text, lossy = _decode(data[start:], final=True)
    return last_part(text), lossy
