"""What the lines of the programs' transcripts share: a line as entries of ours.  Pure."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from pydantic import JsonValue

from chappie_bridge.codec.loose import Record, block, blocks_of, compact, parsed, record, string
from chappie_bridge.wire.blocks import Block, Content, Image, Text
from chappie_bridge.wire.ids import CallId, EntryId
from chappie_bridge.wire.values import Entry

Kind = Literal["user", "assistant", "call", "result", "summary", "notice"]

STOPPED = "The person stopped the turn."
"""The notice by which every program's mark of an abort is told."""


class Line(NamedTuple):
    """A line of a transcript.  `id` and `parent` as the program gives them; `turns`: the line begins a turn
    of the person, so that another parent than the newest line means another branch."""

    entries: tuple[Entry, ...]
    id: str = ""
    parent: str | None = None
    turns: bool = False

    @property
    def stopped(self) -> bool:
        return any(
            entry.kind == "notice" and entry.content == (Text(text=STOPPED),) for entry in self.entries
        )


class Pen:
    """Writes the entries of one line: the first one has the line's own id, the others a number behind it."""

    def __init__(self, name: str, at: str) -> None:
        self._name, self._at = name, at
        self.entries: list[Entry] = []

    def write(self, kind: Kind, content: Content = (), **more: object) -> None:
        name = self._name if not self.entries else f"{self._name}.{len(self.entries)}"
        self.entries.append(
            Entry.model_validate(
                {"id": EntryId(name), "at": self._at, "kind": kind, "content": content, **more}
            )
        )

    def call(self, call: str, name: str, arguments: JsonValue) -> None:
        given = arguments if isinstance(arguments, dict) else {"input": arguments}
        self.write("call", call=CallId(call), name=name, arguments=given)

    def result(
        self, call: str, content: Content, *, failed: bool, name: str | None = None, spent: int | None = None
    ) -> None:
        self.write("result", content, call=CallId(call), name=name, is_error=failed, duration_ms=spent)

    def stopped(self) -> None:
        self.write("notice", (Text(text=STOPPED),))


def time(value: JsonValue) -> str:
    """ISO 8601 UTC with milliseconds, from that form or from milliseconds since the epoch."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        at = datetime.fromtimestamp(value / 1000, UTC)
    else:
        try:
            at = datetime.fromisoformat(string(value)).astimezone(UTC)
        except ValueError:
            at = datetime.fromtimestamp(0, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}Z"


def content(value: JsonValue) -> Content:
    """Content of any program; a block without a word of ours becomes its own JSON as text."""
    return tuple(_block(part) for part in blocks_of(value))


def spoken(value: JsonValue) -> Content:
    """The same without what is not said: thoughts, calls."""
    return tuple(known for part in blocks_of(value) if (known := _known(part)) is not None)


def arguments(text: JsonValue) -> JsonValue:
    """The arguments of a call that were written as JSON text."""
    value = parsed(string(text))
    return value if isinstance(value, dict) else {"input": string(text)}


def lines_of(raw: bytes) -> Iterator[Record]:
    """The objects among complete lines."""
    for line in raw.split(b"\n"):
        if line and isinstance(value := parsed(line.decode("utf-8", "replace")), dict):
            yield record(value)


def _block(part: JsonValue) -> Block:
    return _known(part) or Text(text=compact(part))


def _known(part: JsonValue) -> Block | None:
    given = record(part)
    if given.get("type") == "image" and isinstance(given.get("data"), str):
        return Image(data=string(given.get("data")), mime_type=string(given.get("mimeType")) or "image/png")
    return block(part)
