"""What a response is made of, and what is said of a middle that was removed.  Pure; counts nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, NamedTuple

from pydantic import JsonValue
from pydantic_core import to_json

Call = int | str | None
"""Whose text it is: the index of a call, the id of something that accompanies the result, or nobody's."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """The request that reads a whole text again: `tool` with `arguments` and an `offset` in bytes.
    `start` is where the part's text begins in what that request reads."""

    tool: str
    arguments: Mapping[str, JsonValue]
    start: int = 0

    def at(self, offset: int) -> str:
        """The request as the reader writes it: `history {"entry":"e_1","offset":4096}`."""
        return f"{self.tool} {compact({**self.arguments, 'offset': self.start + offset})}"


@dataclass(frozen=True, slots=True)
class Part:
    """One block of a response.  Texts hold no lone surrogates (`codec.unicode.clean`).

    `head` (a JSON object), `header`: `text` is sent whole.  `text`: may lose its middle; with `tail` the
    middle is missing already (a spill): `text` is its beginning and `size` its bytes.  `image`: `size`
    counts the characters of its Base64, `text` is the block, as JSON, of a reference to it.  `link`:
    `text` is the block as JSON.  `lossy`: `text` and `tail` are a reading of bytes that are not text, so
    that what is said of bytes is approximate.
    """

    kind: Literal["head", "header", "text", "image", "link"]
    text: str = ""
    call: Call = None
    read: Pointer | None = None
    tail: str | None = None
    size: int = 0
    lossy: bool = False

    def read_at(self, offset: int) -> str | None:
        """The request that reads on `offset` bytes into this text, if there is one."""
        return self.read.at(offset) if self.read else None


class Trimmed(NamedTuple):
    """What a part lost, as the head reports it."""

    part: int
    """Index among the parts."""
    call: Call
    offset: int
    """Bytes of the part's text before what was removed."""
    removed_bytes: int
    removed_tokens: int
    exact: bool
    """False where the tokens are estimated."""
    read: str | None


class Trimming(NamedTuple):
    parts: tuple[Part, ...]
    """As many as were given, in the same order: a text that lost its middle has the marker in its place,
    an image over the bounds is a `link`, a `head` has its `trimmed`; all others are the same objects."""
    trimmed: tuple[Trimmed, ...]


class Detail(Enum):
    """How much is said of each removed middle, for fewer and fewer tokens."""

    FULL = "its read pointer in its place and in the head"
    BRIEF = "its read pointer in its place"
    BARE = "its bytes in its place, one sum in the head"


def marker(lost: Trimmed, detail: Detail) -> str:
    """The line in the place of what was removed."""
    if detail is Detail.BARE:
        return f"[… {lost.removed_bytes} bytes removed …]"
    tokens = f"{lost.removed_tokens} tokens" if lost.exact else f"≈ {lost.removed_tokens} tokens"
    pointer = f"; to read them: {lost.read}" if lost.read else ""
    return f"[… {lost.removed_bytes} bytes, {tokens} removed{pointer} …]"


def record(lost: Trimmed, detail: Detail) -> dict[str, JsonValue]:
    """What the head says of it."""
    said: dict[str, JsonValue] = {
        "call": lost.call,
        "removedBytes": lost.removed_bytes,
        "removedTokens": lost.removed_tokens,
    }
    if detail is Detail.FULL:
        said["read"] = lost.read
    return said


def with_report(head: Part, trimmed: Sequence[Trimmed], detail: Detail) -> Part:
    """`head`, a JSON object, with its `trimmed`: data that looks like a marker has no record there."""
    records = [record(lost, detail) for lost in trimmed]
    if detail is Detail.BARE:
        records = [
            {
                "parts": len(trimmed),
                "removedBytes": sum(lost.removed_bytes for lost in trimmed),
                "removedTokens": sum(lost.removed_tokens for lost in trimmed),
            }
        ]
    opened = head.text.rstrip().removesuffix("}")
    comma = "" if opened.endswith("{") else ","
    return replace(head, text=f'{opened}{comma}"trimmed":{compact(records)}}}')


def compact(value: object) -> str:
    """JSON in as few characters as it takes.  `value` holds no lone surrogates."""
    return to_json(value).decode()
