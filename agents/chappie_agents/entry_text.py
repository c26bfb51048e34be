"""The whole text of one transcript entry, spilled blocks included.  Blocks on the disk; changes nothing.

An entry's text is that of its text blocks, one directly after the other, as UTF-8; of a spilled block it
is the bytes of its file.  An entry without text blocks has the JSON of its arguments instead.
"""

import codecs
import contextlib
import hashlib
import mmap
import os
import re
import stat
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import NamedTuple

import pydantic_core

from chappie_agents.spool import Spool
from chappie_bridge.wire.blocks import Spill, Text
from chappie_bridge.wire.errors import BadArguments, PathMissing
from chappie_bridge.wire.values import Entry, EntryText, Match

READ = 24 * 1024
"""Bytes of text in one reply: below what a response to ChatGPT may hold."""

MATCHES = 200
"""Lines that one `find` returns."""

LINE = 300
"""Bytes of a found line that are shown, around the match."""

_STEP = 1024 * 1024
_LEAST = 4
"""Bytes that always hold a whole character."""


class Stretch(NamedTuple):
    """A part of the text: `data`, or `size` bytes of the file at `path`."""

    size: int
    data: bytes | None
    path: str


class Whole(NamedTuple):
    """What there is to say of the text without showing any of it."""

    stretches: tuple[Stretch, ...]
    total: int
    sha256: str
    lossy: bool


def arguments_json(entry: Entry) -> bytes:
    """The arguments of a call as compact JSON."""
    return pydantic_core.to_json(entry.arguments or {})


def survey(entry: Entry, spool: Spool) -> Whole:
    """Reads all of it once, for the hash, unless one file that tells its own hash is all there is.

    A spilled block whose file is gone (kept 24 h) is represented by its two ends, and `lossy`."""
    stretches: list[Stretch] = []
    known: str | None = None
    lossy = False
    for block in entry.content:
        if isinstance(block, Text):
            data = block.text.encode()
            stretches.append(Stretch(len(data), data, ""))
        elif isinstance(block, Spill) and block.of == "text":
            lossy = lossy or block.lossy
            if _present(block, spool):
                stretches.append(Stretch(block.size, None, block.path))
                known = block.sha256
            else:
                lossy = True
                gone = f"\n[… of {block.size} bytes only the two ends are still kept …]\n"
                data = (block.head + gone + block.tail).encode()
                stretches.append(Stretch(len(data), data, ""))
    if not stretches and entry.arguments is not None:
        data = arguments_json(entry)
        stretches.append(Stretch(len(data), data, ""))
    if len(stretches) != 1 or known is None:
        digest = hashlib.sha256()
        for stretch in stretches:
            for chunk in _chunks(stretch, spool):
                digest.update(chunk)
        known = digest.hexdigest()
    return Whole(tuple(stretches), sum(stretch.size for stretch in stretches), known, lossy)


def read(entry: Entry, whole: Whole, offset: int, spool: Spool) -> EntryText:
    """At most `READ` bytes from `offset`, or from the beginning of the character that it falls into.

    :raises BadArguments: beyond the end.  PathMissing: a file vanished in between."""
    if offset > whole.total:
        raise BadArguments(f"`offset` {offset} is beyond the end; the entry has {whole.total} bytes of text.")
    start = max(0, offset - _LEAST + 1)
    data = _bytes(whole, start, offset - start + READ, spool)
    begin = _character(data, offset - start)
    data = data[begin:]
    final = start + begin + len(data) >= whole.total
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final)
    end = start + begin + len(data) - len(decoder.getstate()[0])
    return EntryText(
        entry=entry.id,
        offset=start + begin,
        next_offset=None if final else end,
        total=whole.total,
        sha256=whole.sha256,
        text=text,
        lossy=whole.lossy or text.count("\ufffd") > data.count(b"\xef\xbf\xbd"),
    )


def find(whole: Whole, needle: str, offset: int, spool: Spool) -> tuple[tuple[Match, ...], bool]:
    """Lines from byte `offset` on that hold `needle`, ASCII letters in either case, and whether there are
    more.  A line is shown around its first match.  :raises BadArguments: for an empty needle."""
    if not needle:
        raise BadArguments("`find` is empty; give the text to look for.")
    pattern = re.compile(re.escape(needle.encode(errors="replace")), re.IGNORECASE)
    matches: list[Match] = []
    base = 0
    for stretch in whole.stretches:
        with _mapped(stretch, spool) as data:
            at = max(0, offset - base)
            while at <= stretch.size and (hit := pattern.search(data, at)):
                begin = data.rfind(b"\n", 0, hit.start()) + 1
                if begin < at:  # a line that began before `offset`
                    begin = at
                end = data.find(b"\n", hit.end())
                end = stretch.size if end < 0 else end
                if len(matches) == MATCHES:
                    return tuple(matches), True
                matches.append(Match(offset=base + begin, line=_line(data, begin, hit.start(), end)))
                at = end + 1
        base += stretch.size
    return tuple(matches), False


def _line(data: "bytes | mmap.mmap", begin: int, hit: int, end: int) -> str:
    if end - begin <= LINE:
        return data[begin:end].decode(errors="replace").rstrip("\r")
    start = max(begin, min(hit - LINE // 3, end - LINE))
    shown = data[start : start + LINE].decode(errors="ignore")
    return ("…" if start > begin else "") + shown + ("…" if start + LINE < end else "")


def _character(data: bytes, place: int) -> int:
    """Where the character begins that `place` falls into; `place` itself where there is none."""
    for back in range(min(_LEAST, place + 1)):
        first = data[place - back] if place - back < len(data) else 0
        if first & 0xC0 != 0x80:
            length = 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2 if first >= 0xC0 else 1
            return place - back if back < length else place
    return place


def _bytes(whole: Whole, start: int, size: int, spool: Spool) -> bytes:
    parts: list[bytes] = []
    base = 0
    for stretch in whole.stretches:
        low, high = max(0, start - base), min(stretch.size, start + size - base)
        if low < high:
            if stretch.data is not None:
                parts.append(stretch.data[low:high])
            else:
                with opened(stretch.path, spool) as descriptor:
                    parts.append(os.pread(descriptor, high - low, low))
        base += stretch.size
    return b"".join(parts)


def _chunks(stretch: Stretch, spool: Spool) -> Iterator[bytes]:
    if stretch.data is not None:
        yield stretch.data
        return
    with opened(stretch.path, spool) as descriptor:
        offset = 0
        while chunk := os.pread(descriptor, min(_STEP, stretch.size - offset), offset):
            yield chunk
            offset += len(chunk)


@contextlib.contextmanager
def _mapped(stretch: Stretch, spool: Spool) -> "Generator[bytes | mmap.mmap]":
    if stretch.data is not None:
        yield stretch.data
    elif stretch.size == 0:
        yield b""
    else:
        with (
            opened(stretch.path, spool) as descriptor,
            mmap.mmap(descriptor, stretch.size, prot=mmap.PROT_READ) as mapped,
        ):
            yield mapped


def _present(block: Spill, spool: Spool) -> bool:
    try:
        with opened(block.path, spool) as descriptor:
            return os.fstat(descriptor).st_size == block.size
    except PathMissing:
        return False


@contextlib.contextmanager
def opened(path: str, spool: Spool) -> Generator[int]:
    """A descriptor of a spilled block's file.  :raises PathMissing: for any path that is not a file of
    this spool, or is kept no more; nothing else is ever opened."""
    name = Path(path)
    if name.parent != spool.directory or name.name in ("", ".", ".."):
        raise PathMissing("That is not a spilled block of this session.")
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise PathMissing("The full output is no longer kept; it is kept for 24 hours.") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PathMissing("That is not a spilled block of this session.")
        yield descriptor
    finally:
        os.close(descriptor)
