"""The tool `read`: text by lines, images as images, nothing else.  Never waits for a pipe or a device."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from anyio import from_thread, to_thread
from pydantic import Field

from chappie_agents.resolved import reading
from chappie_agents.spool import Kept, Sink
from chappie_agents.tools.tool import (
    Arguments,
    GivenPath,
    ToolContext,
    ToolFailed,
    shown,
    speaking_of,
    status,
    tool,
)
from chappie_bridge.wire.blocks import Content, Text

CHUNK = 256 * 1024
SNIFF = 64 * 1024
"""Bytes at the beginning of a file that decide what it is."""

_PLAIN = bytes({*range(0x20, 0x7F), *range(0x80, 0x100), *b"\t\n\r\f\b\x1b"})
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class Read(Arguments):
    path: Annotated[
        GivenPath, Field(description="The file: relative to the working directory, absolute or ~/.")
    ]
    offset: Annotated[int | None, Field(ge=1, description="First line to read, counted from 1.")] = None
    limit: Annotated[int | None, Field(ge=1, description="Number of lines to read.")] = None


def image_type(start: bytes) -> str | None:
    """MIME type by the first bytes, whatever the file is called."""
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if start.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if start.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return None


def is_text(start: bytes) -> bool:
    """Hardly any control characters; and no NUL in what is not UTF-8 either (an older code page)."""
    controls = len(start.translate(None, _PLAIN))
    if controls * 100 > len(start):
        return False
    if b"\0" not in start:
        return True
    try:
        start[: SNIFF - 3].decode()
    except UnicodeDecodeError as error:
        return error.start >= SNIFF - 6
    return True


async def _read(arguments: Read, context: ToolContext) -> Content:
    path = await context.permit("read", arguments.path)
    return await to_thread.run_sync(_content, path, arguments, context)


def _content(path: Path, arguments: Read, context: ToolContext) -> Content:
    with speaking_of(path), reading(path) as descriptor:
        size = os.fstat(descriptor).st_size
        start = os.read(descriptor, SNIFF)
        mime_type = image_type(start)
        if mime_type is None and not is_text(start):
            raise ToolFailed(_binary(path, descriptor, start, size, context.output_max))
        chunks = _chunks(descriptor, start)
        with context.spool.sink(mime_type) as sink:
            if mime_type is None and (arguments.offset or arguments.limit):
                return _range(path, chunks, sink, arguments, context.output_max)
            if size > context.output_max:
                raise ToolFailed(_too_large(path, size, context.output_max))
            _fill(path, chunks, sink, context.output_max)
            kept = sink.close()
        if mime_type is not None and kept.trouble is None:
            return kept.content
        notable = kept.cut or kept.lossy or not kept.size
        return (*kept.content, _said(kept)) if notable else kept.content


def _chunks(descriptor: int, start: bytes) -> Iterator[bytes]:
    while start:
        from_thread.check_cancelled()
        yield start
        start = os.read(descriptor, CHUNK)


def _fill(path: Path, chunks: Iterator[bytes], sink: Sink, most: int) -> None:
    for chunk in chunks:
        sink.write(chunk)
        if sink.size > most:
            raise ToolFailed(_too_large(path, sink.size, most))


class _Range:
    """The chunks of some lines.  A line ends with LF; what precedes it (CR) belongs to the line."""

    def __init__(self, chunks: Iterator[bytes], first: int, count: int | None) -> None:
        self._chunks = chunks
        self._skip = first - 1
        self._count = count
        self.passed = 0  # lines that ended, wanted or not
        self.more = False

    def __iter__(self) -> Iterator[bytes]:
        last = b"\n"
        for whole in self._chunks:
            chunk, last = whole, whole[-1:]
            if self._skip:
                ends = chunk.count(b"\n")
                if ends < self._skip:
                    self._skip -= ends
                    self.passed += ends
                    continue
                self.passed += self._skip
                chunk = chunk.split(b"\n", self._skip)[-1]
                self._skip = 0
            if self._count is None:
                self.passed += chunk.count(b"\n")
                yield chunk
                continue
            ends = chunk.count(b"\n")
            if ends < self._count:
                self._count -= ends
                self.passed += ends
                yield chunk
                continue
            rest = chunk.split(b"\n", self._count)[-1]
            self.passed += self._count
            yield chunk[: len(chunk) - len(rest)]
            self.more = bool(rest) or next(self._chunks, None) is not None
            return
        if last != b"\n":
            self.passed += 1


def _range(path: Path, chunks: Iterator[bytes], sink: Sink, arguments: Read, most: int) -> Content:
    first = arguments.offset or 1
    lines = _Range(chunks, first, arguments.limit)
    _fill(path, (chunk for chunk in lines if chunk), sink, most)
    if not sink.size:
        raise ToolFailed(f"{shown(path)} has {lines.passed} lines; there is no line {first}.")
    kept = sink.close()
    said = _said(kept, firstLine=first, lines=lines.passed - first + 1, more=lines.more)
    return (*kept.content, said)


def _said(kept: Kept, **facts: int | bool) -> Text:
    return status(
        **facts,
        bytes=kept.size,
        truncated=kept.cut or None,
        outputPath=str(kept.path) if kept.path else None,
        outputLost=kept.trouble,
        lossy=kept.lossy or None,
    )


def _too_large(path: Path, size: int, most: int) -> str:
    return (
        f"{shown(path)} has {size} bytes, more than the {most} that one read takes. "
        "Read it in parts with offset and limit, search it with grep, or use transfer."
    )


def _binary(path: Path, descriptor: int, start: bytes, size: int, most: int) -> str:
    said = f"{shown(path)} is binary: {size} bytes"
    if size <= most:
        digest = hashlib.sha256()
        for chunk in _chunks(descriptor, start):
            digest.update(chunk)
        said += f", SHA-256 {digest.hexdigest()}"
    if start.startswith(_UTF_16):
        return said + ". It looks like UTF-16 text: convert it with `iconv -f UTF-16 -t UTF-8`."
    return said + ". Use transfer to get the file itself."


READ = tool(
    "read",
    """Read a text file, whole or by lines, exactly as it is; PNG, JPEG, GIF and WebP files come as
    images. A very long text comes as its two ends: continue with offset and limit. Other binary files
    are refused; transfer moves them.""",
    Read,
    _read,
    parallel=True,
)
