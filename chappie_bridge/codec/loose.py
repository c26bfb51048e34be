"""Reading JSON whose shape others decide.  Pure: a surprise is an empty value here, never an exception."""

import json
from collections.abc import Iterable, Iterator, Mapping

from pydantic import JsonValue

from chappie_bridge.wire.blocks import Block, Content, Image, ResourceLink, Text
from chappie_bridge.wire.errors import BadArguments

Record = Mapping[str, JsonValue]
NOTHING: Record = {}


def string(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


def record(value: JsonValue) -> Record:
    return value if isinstance(value, dict) else NOTHING


def series(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def parsed(text: str) -> JsonValue:
    """The JSON in `text`; None when it is none (or too deep to read)."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def compact(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers by lower-case name; of a name that comes twice the first value counts."""
    found: dict[str, str] = {}
    for name, value in headers:
        found.setdefault(name.lower(), value)
    return found


def body_of(body: JsonValue, items: str) -> Record:
    """`body` as a record whose field `items` is a list (or text).

    :raises BadArguments: it is not.
    """
    request = record(body)
    if not isinstance(request.get(items), list | str):
        raise BadArguments(f"The request has no list `{items}`.")
    return request


def blocks_of(value: JsonValue) -> list[JsonValue]:
    """A message's content as a list of blocks; plain text is one text block, nothing is none."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}] if value else []
    return series(value)


def block(value: JsonValue) -> Block | None:
    """A block of any of the three protocols as ours; None for a kind that we have no word for."""
    part = record(value)
    match part.get("type"):
        case "text" | "input_text" | "output_text" if isinstance(text := part.get("text"), str):
            return Text(text=text)
        case "image_url":
            return _image(string(record(part.get("image_url")).get("url")))
        case "input_image":
            return _image(string(part.get("image_url")))
        case "image":
            source = record(part.get("source"))
            if source.get("type") == "base64":
                return Image(data=string(source.get("data")), mime_type=string(source.get("media_type")))
            return _image(string(source.get("url")))
        case _:
            return None


def content(value: JsonValue) -> Content:
    """What a tool gave back.  A block without a word of ours becomes its own JSON as text: it is seen."""
    return tuple(block(part) or Text(text=compact(part)) for part in blocks_of(value))


def plain(blocks: Iterable[Block]) -> str:
    """The text among `blocks`, joined by line ends."""
    return "\n".join(part.text for part in blocks if isinstance(part, Text))


def texts(value: JsonValue) -> Iterator[str]:
    """The text blocks of a message's content."""
    for part in blocks_of(value):
        known = block(part)
        if isinstance(known, Text):
            yield known.text


def _image(url: str) -> Block | None:
    head, comma, data = url.partition(",")
    if head.startswith("data:") and head.endswith(";base64") and comma:
        return Image(data=data, mime_type=head.removeprefix("data:").split(";", 1)[0])
    return ResourceLink(uri=url, name="image") if url else None
