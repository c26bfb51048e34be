"""The other end of `codec.delta`: any change of a JSON value as v1 deltas, cut and framed at random."""

import json
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from pydantic import JsonValue

ENCODING = 'event: delta_encoding\ndata: "v1"\n\n'


class Op(NamedTuple):
    path: str
    op: str
    value: JsonValue = None


def changes(before: JsonValue, after: JsonValue, random: Random, path: str = "") -> Iterator[Op]:
    """Operations, in order, that make `after` of `before`."""
    if isinstance(before, str) and isinstance(after, str) and path:
        kept = _common(before, after)
        if kept < len(before):
            units = len(after[:kept].encode("utf-16-le", "surrogatepass")) // 2
            yield Op(path, "truncate", units)
        yield from (Op(path, "append", piece) for piece in _pieces(after[kept:], random))
    elif isinstance(before, dict) and isinstance(after, dict) and path:
        yield from (Op(_below(path, key), "remove") for key in before if key not in after)
        new = {key: value for key, value in after.items() if key not in before}
        for key, value in after.items():
            if key in before:
                yield from changes(before[key], value, random, _below(path, key))
        if new and random.random() < 0.5:
            yield Op(path, "append", new)
        else:
            yield from (Op(_below(path, key), "add", value) for key, value in new.items())
    elif isinstance(before, list) and isinstance(after, list) and path:
        common = min(len(before), len(after))
        if len(after) < len(before):
            yield random.choice((Op(path, "truncate", common), None)) or Op(f"{path}/{common}", "remove")
        for _ in range(len(before) - common - 1):
            yield Op(path, "truncate", common)
        for index in range(common):
            yield from changes(before[index], after[index], random, f"{path}/{index}")
        if len(after) > common:
            yield Op(path, "append", after[common:])
    elif not _same(before, after):
        yield Op(path, "replace" if path else "add", after)


class Encoder:
    """Frames of one stream.  Leaves out what is inherited, groups into patches, mixes the forms of SSE."""

    def __init__(self, random: Random, newline: str = "\n") -> None:
        self._random = random
        self._newline = newline
        self._before = (0, "", "add")

    def begin(self) -> str:
        return self._sse(ENCODING)

    def root(self, channel: int, value: JsonValue) -> str:
        return self._frame(channel, Op("", "add", value))

    def grow(self, channel: int, before: JsonValue, after: JsonValue) -> str:
        """The frames that make `after` of `before` on a channel."""
        found: list[str] = []
        waiting: list[Op] = []
        for op in changes({"root": before}, {"root": after}, self._random, "/x"):
            inner = op._replace(path=op.path.removeprefix("/x/root"))
            if inner.path and self._random.random() < 0.3:
                waiting.append(inner)
                continue
            if waiting:
                found.append(self._patch(channel, waiting))
                waiting = []
            found.append(self._frame(channel, inner))
        if waiting:
            found.append(self._patch(channel, waiting))
        return "".join(found)

    def control(self, kind: str, **body: JsonValue) -> str:
        return self._data(json.dumps({"type": kind, **body}, ensure_ascii=False))

    def done(self) -> str:
        return self._data("[DONE]")

    def _patch(self, channel: int, ops: list[Op]) -> str:
        return self._frame(channel, Op("", "patch", [_written(op) for op in ops]))

    def _frame(self, channel: int, op: Op) -> str:
        now = (channel, op.path, op.op)
        frame: dict[str, JsonValue] = {
            key: value
            for key, was, value in zip(("c", "p", "o"), self._before, now, strict=True)
            if was != value or self._random.random() < 0.2
        }
        self._before = now
        if op.op != "remove":
            frame["v"] = op.value
        separators = (",", ":") if self._random.random() < 0.7 else (", ", ": ")
        text = json.dumps(frame, ensure_ascii=self._random.random() < 0.3, separators=separators)
        named = op.op == "remove" or self._random.random() < 0.7
        return self._data(text, "event: delta\n" if named else "")

    def _data(self, text: str, head: str = "") -> str:
        space = " " if self._random.random() < 0.8 else ""
        comment = ": ping\n\n" if self._random.random() < 0.1 else ""
        return self._sse(f"{comment}{head}data:{space}{text}\n\n")

    def _sse(self, text: str) -> str:
        return text.replace("\n", self._newline)


def split(data: bytes, random: Random, longest: int = 40) -> Iterator[bytes]:
    """`data` cut anywhere, inside of characters too."""
    at = 0
    while at < len(data):
        size = random.randint(1, longest)
        yield data[at : at + size]
        at += size


def _written(op: Op) -> JsonValue:
    written: dict[str, JsonValue] = {"p": op.path, "o": op.op}
    return written if op.op == "remove" else {**written, "v": op.value}


def _pieces(text: str, random: Random) -> Iterator[str]:
    while text:
        size = random.randint(1, 8)
        yield text[:size]
        text = text[size:]


def _below(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _common(one: str, other: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _same(one: JsonValue, other: JsonValue) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
