"""The v1 delta stream: bytes in, events out.  Pure; never raises on input: what does not fit is a `Broken`
event, the last one.  It fails where it would have to guess."""

import json
import re
from typing import NamedTuple, NoReturn

from pydantic import JsonValue

from chappie_bridge.codec.places import MISSING, Drift, Place, change, copied, find

MAX_EVENT = 16 * 1024 * 1024
"""Bytes of one event."""

MAX_STREAM = 256 * 1024 * 1024
"""Bytes of one stream; what it holds is never more."""

MAX_CHANNELS = 4096
"""Messages of one stream."""


class Began(NamedTuple):
    """A new value on a channel: a new message.  `value` is what it began with."""

    channel: int
    value: JsonValue


class Grew(NamedTuple):
    """A text at `path` (JSON Pointer) has `text` more; neighbours may come as one."""

    channel: int
    path: str
    text: str


class Changed(NamedTuple):
    """Something else at or below `path` is different now."""

    channel: int
    path: str


class Control(NamedTuple):
    """A control object; kinds that nobody knows come too."""

    kind: str
    body: dict[str, JsonValue]


class Snapshot(NamedTuple):
    """A whole value outside the deltas, as the older protocol sends it."""

    value: dict[str, JsonValue]


class Ended(NamedTuple):
    """`[DONE]`: this stream is over; whether the turn is, the messages say."""


class Broken(NamedTuple):
    """This is not the v1 stream that is known here.  `event` counts from 1; nothing after it is read."""

    reason: str
    event: int


Event = Began | Grew | Changed | Control | Snapshot | Ended | Broken

_TEXT = re.compile(r'[^"\\\x01-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x01-\x1f]*+)*+')
"""The inside of a JSON text, marks included."""

_BARE = ('event: delta\ndata: {"v":"', 'data: {"v":"')
_MARK = "\0"
"""Stands for the border between a frame that ends in a text and a bare one: most of a stream is bare texts,
so that one search takes the place of a loop over them.  In JSON it cannot occur."""

_NAMED = ("event: delta\ndata: ", "data: ")


def _constant(name: str) -> NoReturn:
    raise ValueError(name)


_JSON = json.JSONDecoder(parse_constant=_constant)


class Decoder:
    """One stream.  `assume`: begin as if its encoding had been named (joined late)."""

    def __init__(self, *, assume: bool = False) -> None:
        self.ended = False
        self._buffer = bytearray()
        self._seen = 0
        self._read = 0
        self._count = 0
        self._broken = False
        self._reset(assume)

    def _reset(self, started: bool) -> None:
        self._started = started
        self._channel, self._path, self._op = 0, "", "add"
        self._roots: dict[int, JsonValue] = {}
        self._tail: _Tail | None = None

    def root(self, channel: int) -> JsonValue:
        """The whole value of a channel as it is now; None where there is none."""
        self._settle()
        return self._roots.get(channel)

    def value(self, channel: int) -> JsonValue:
        """The same at no cost; a text that still grows is not up to date in it."""
        return self._roots.get(channel)

    def feed(self, data: bytes) -> list[Event]:
        """What `data` brings; an event that is not complete yet waits for more."""
        events: list[Event] = []
        if not self._broken:
            try:
                self._take(data, events)
            except Drift as drift:
                self._broken = True
                self._buffer.clear()
                events.append(Broken(str(drift), self._count))
        return events

    def _take(self, data: bytes, events: list[Event]) -> None:
        self._buffer += data
        self._read += len(data)
        if self._read > MAX_STREAM:
            raise Drift(f"the stream has more than {MAX_STREAM} bytes")
        end = self._boundary(max(self._seen - 2, 0))
        self._seen = len(self._buffer)
        if not end:
            if len(self._buffer) > MAX_EVENT:
                raise Drift(f"an event has more than {MAX_EVENT} bytes")
            return
        whole = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._seen = len(self._buffer)
        fault = ""
        try:
            text = whole.decode()
        except UnicodeDecodeError as error:
            text, fault = whole[: error.start].decode(), "the stream is not UTF-8"
        if _MARK in text:
            text, fault = text[: text.index(_MARK)], "the stream holds a character that JSON cannot"
        text = text.replace("\r\n", "\n") if "\r" in text else text
        self._events(text, events)
        if fault:
            self._count += 1
            raise Drift(fault)

    def _boundary(self, start: int) -> int:
        """Where the last complete event ends; 0: nowhere."""
        plain, carriage = self._buffer.rfind(b"\n\n", start), self._buffer.rfind(b"\n\r\n", start)
        return max(plain + 2 if plain >= 0 else 0, carriage + 3 if carriage >= 0 else 0)

    def _events(self, text: str, events: list[Event]) -> None:
        """The complete events of `text`; what follows the last is dropped."""
        for prefix in _BARE:
            text = text.replace(f'"}}\n\n{prefix}', _MARK)
        position = 1 if self._count == 0 and text.startswith("\ufeff") else 0
        inside = False  # a bare frame, behind its prefix?
        end = -1
        while True:
            if not inside and (prefix := _bare(text, position)):
                position, inside = position + len(prefix), True
            if inside and self._tail is not None:
                position, inside = self._run(text, position, self._tail, events)
                if not inside:
                    continue
            if end < position:
                end = text.find("\n\n", position)
            if end < 0:
                return
            mark = text.find(_MARK, position, end)
            event = text[position:end] if mark < 0 else f'{text[position:mark]}"}}'
            self._event(f"{_BARE[0]}{event}" if inside else event, events)
            position, inside = (end + 2, False) if mark < 0 else (mark + 1, True)

    def _run(self, text: str, start: int, tail: "_Tail", events: list[Event]) -> tuple[int, bool]:
        """The bare texts from `start` on, as one: halves of a character that came apart are whole again.
        Gives where it ended, and whether that is inside of a frame that is no bare text after all."""
        found = _TEXT.match(text, start)
        stop = found.end() if found else start
        whole = text.startswith('"}\n\n', stop)
        if not whole:
            stop = text.rfind(_MARK, start, stop)
            if stop < 0:
                return start, True
        raw = text[start:stop]
        self._count += raw.count(_MARK) + 1
        raw = raw.replace(_MARK, "")
        more: str = json.loads(f'"{raw}"') if "\\" in raw else raw
        tail.parts.append(more)
        events.append(Grew(self._channel, self._path, more))
        return (stop + 4, False) if whole else (stop + 1, True)

    def _event(self, text: str, events: list[Event]) -> None:
        for prefix in _NAMED:
            if text.startswith(prefix):
                if "\n" not in text[len(prefix) :] and text.startswith("{", len(prefix)):
                    self._count += 1
                    return self._frame(_object(text[len(prefix) :]), prefix is _NAMED[0], events)
                break
        name = ""
        lines: list[str] = []
        for line in text.split("\n"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                lines.append(value)
        data = "\n".join(lines).strip()
        if not data:
            return None
        self._count += 1
        if name == "delta_encoding":
            return self._encoding(data)
        if data == "[DONE]":
            self.ended = True
            return events.append(Ended())
        if name in ("", "message", "delta"):
            return self._frame(_object(data), name == "delta", events)
        body = _parsed(data)
        events.append(Control(name, body if isinstance(body, dict) else {}))
        return None

    def _encoding(self, data: str) -> None:
        if data not in ('"v1"', "v1"):
            raise Drift(f"the encoding is {data[:40]!r}, not v1")
        if self.ended:  # another stream after the end of one
            self.ended = False
            self._reset(True)
        self._started = True

    def _frame(self, frame: dict[str, JsonValue], named: bool, events: list[Event]) -> None:
        if named or ("v" in frame and "type" not in frame):
            if not self._started:
                raise Drift("a delta came before its encoding was named")
            self._delta(frame, events)
        elif isinstance(kind := frame.get("type"), str):
            events.append(Control(kind, frame))
        elif "message" in frame or "error" in frame:
            events.append(Snapshot(frame))
        else:
            raise Drift("an event is neither delta nor control object")

    def _delta(self, frame: dict[str, JsonValue], events: list[Event]) -> None:
        channel, path, op = (
            frame.get("c", self._channel),
            frame.get("p", self._path),
            frame.get("o", self._op),
        )
        if type(channel) is not int or channel < 0:
            raise Drift("`c` is not a number from 0")
        if not isinstance(path, str) or not isinstance(op, str):
            raise Drift("`p` and `o` are not text")
        if (channel, path, op) != (self._channel, self._path, self._op):
            self._settle()
            self._channel, self._path, self._op = channel, path, op
        if op == "patch":
            self._settle()
            self._patch(frame.get("v"), events)
            return
        value = frame.get("v", MISSING)
        if value is MISSING and op != "remove":
            raise Drift(f"`{op}` has no `v`")
        if self._tail is not None and isinstance(value, str):
            self._tail.parts.append(value)
            events.append(Grew(channel, path, value))
        else:
            self._settle()
            self._apply(path, op, None if value is MISSING else frame.get("v"), events, last=True)

    def _patch(self, value: JsonValue, events: list[Event]) -> None:
        if self._path or not isinstance(value, list):
            raise Drift("`patch` is a list of deltas for a whole value")
        for item in value:
            if not isinstance(item, dict) or not isinstance(path := item.get("p"), str):
                raise Drift("a delta of a patch has no `p`")
            op = item.get("o")
            if not isinstance(op, str) or op == "patch" or ("v" not in item and op != "remove"):
                raise Drift("a delta of a patch has no `o` or no `v`")
            self._apply(path, op, item.get("v"), events)

    def _apply(
        self, path: str, op: str, value: JsonValue, events: list[Event], *, last: bool = False
    ) -> None:
        channel = self._channel
        if path == "" and op in ("add", "replace"):
            if channel not in self._roots and len(self._roots) >= MAX_CHANNELS:
                raise Drift(f"the stream has more than {MAX_CHANNELS} messages")
            self._roots[channel] = value
            events.append(Began(channel, copied(value)))
            return
        if channel not in self._roots:
            raise Drift(f"channel {channel} has no value yet")
        place = find(self._roots, channel, path)
        if op == "append" and isinstance(value, str) and isinstance(place.get(), str):
            self._tail = _Tail(place, [value])
            events.append(Grew(channel, path, value))
            if not last:
                self._settle()
            return
        change(place, op, value)
        events.append(Changed(channel, path))

    def _settle(self) -> None:
        """Write a text that was growing to its place."""
        if (tail := self._tail) is not None:
            self._tail = None
            before = tail.place.get()
            tail.place.put("".join((before if isinstance(before, str) else "", *tail.parts)))


def _bare(text: str, position: int) -> str:
    return next((prefix for prefix in _BARE if text.startswith(prefix, position)), "")


class _Tail(NamedTuple):
    """A text that grows: joined when somebody looks, so that many small pieces cost what they are."""

    place: Place
    parts: list[str]


def _parsed(data: str) -> JsonValue:
    try:
        value: JsonValue = _JSON.decode(data)
    except (ValueError, RecursionError):
        return None
    return value


def _object(data: str) -> dict[str, JsonValue]:
    value = _parsed(data)
    if not isinstance(value, dict):
        raise Drift("an event is not a JSON object")
    return value
