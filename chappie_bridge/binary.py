"""Binary frames of a websocket, made and cut out with few copies; all others are the protocol's.  No I/O.

`websockets` copies each frame six times on its way in and three times on its way out: with chunks of files
that was a third of what a transfer costs.
"""

import secrets
import struct
from collections.abc import Iterator
from typing import NamedTuple

try:
    from websockets.speedups import apply_mask
except ImportError:  # built without a compiler
    from websockets.utils import apply_mask

_BINARY = 0x82
"""The first byte of a binary message in one frame, without extensions."""

_MASKED = 0x80
_TWO_BYTES, _EIGHT_BYTES = 126, 127
_MASK = 4


def binary_frame(head: bytes, data: bytes, *, masked: bool) -> tuple[bytes, ...]:
    """What has to be written, one after another.  `head` has a multiple of 4 bytes: the mask goes on where it
    ended."""
    length, flag = len(head) + len(data), _MASKED if masked else 0
    if length < _TWO_BYTES:
        start = struct.pack("!BB", _BINARY, flag | length)
    elif length < 65536:
        start = struct.pack("!BBH", _BINARY, flag | _TWO_BYTES, length)
    else:
        start = struct.pack("!BBQ", _BINARY, flag | _EIGHT_BYTES, length)
    if not masked:
        return start + head, data
    mask = secrets.token_bytes(_MASK)
    return start + mask + apply_mask(head, mask), apply_mask(data, mask)


class Binary(NamedTuple):
    """A message: its first `apart` bytes, and the others."""

    head: bytes
    data: bytes


class _Start(NamedTuple):
    """The beginning of a frame: its own `size`, and the `length` of what follows.  `mask` None: not ours."""

    size: int
    length: int
    mask: bytes | None


class Cutter:
    """One direction of a connection, from its first frame on."""

    def __init__(self, *, masked: bool, limit: int, apart: int) -> None:
        """`masked`: as a server's peer has to; above `limit` bytes a frame is the protocol's to refuse;
        `apart`: a multiple of 4."""
        self._flag = _MASKED if masked else 0
        self._limit, self._apart = limit, apart
        self._kept = b""  # of a frame whose beginning has not come whole
        self._left = 0  # bytes that the frame under way still lacks
        self._mask: bytes | None = None
        self._pieces: list[memoryview] = []
        self._fragmented = False

    def feed(self, data: bytes) -> Iterator[Binary | bytes]:
        """In the order in which they came: messages, and the bytes between them, unchanged."""
        if self._kept:
            data, self._kept = self._kept + data, b""
        at = theirs = 0  # what begins at `theirs` is the protocol's
        view, end = memoryview(data), len(data)
        while at < end:
            if not self._left:
                start = self._start(data, at)
                if start is None:
                    self._kept = data[at:]
                    break
                self._mask, self._left = start.mask, start.length
                if start.mask is None:
                    self._left += start.size
                else:
                    if theirs < at:
                        yield data[theirs:at]
                    at = theirs = at + start.size
            step = min(self._left, end - at)
            self._left -= step
            at += step
            if self._mask is not None:
                self._pieces.append(view[at - step : at])
                theirs = at
                if not self._left:
                    yield self._whole(self._mask)
        if theirs < at:
            yield data if at - theirs == len(data) else data[theirs:at]

    def _start(self, data: bytes, at: int) -> _Start | None:
        """None: more is needed to tell."""
        if len(data) - at < 2:
            return None
        first, second = data[at], data[at + 1]
        size, length = 2, second & 0x7F
        if length >= _TWO_BYTES:
            size = 4 if length == _TWO_BYTES else 10
            if len(data) - at < size:
                return None
            length = int.from_bytes(data[at + 2 : at + size], "big")
        if second & _MASKED:
            size += _MASK
            if len(data) - at < size:
                return None
        ours = first == _BINARY and not self._fragmented and self._apart <= length <= self._limit
        if ours and second & _MASKED == self._flag:
            return _Start(size, length, data[at + size - _MASK : at + size] if self._flag else b"")
        if first & 0x08 == 0:  # no control frame
            self._fragmented = first & 0x80 == 0
        return _Start(size, length, None)

    def _whole(self, mask: bytes) -> Binary:
        pieces, self._pieces = self._pieces, []
        apart = self._apart
        if mask:
            joined = memoryview(b"".join(pieces))
            return Binary(apply_mask(joined[:apart], mask), apply_mask(joined[apart:], mask))
        if len(pieces[0]) < apart:
            pieces = [memoryview(b"".join(pieces))]
        return Binary(bytes(pieces[0][:apart]), b"".join((pieces[0][apart:], *pieces[1:])))
