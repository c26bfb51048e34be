"""How what devices and clients send is shown on a page: bounded, without control characters.  Pure.

Markup is escaped by the templates; what comes from here is text.
"""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import JsonValue

from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.blocks import Image
from chappie_bridge.wire.values import Entry

NAME = 120
"""Characters of a name."""

PATH = 400
"""Characters of a path, a command or a title."""

PROSE = 12_000
"""Characters of a text; the rest is read with `chappie-bridge history`."""

LINE = 2_000
"""Characters of one line of it."""

_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")

_HERE = Path(__file__).parent


def name(value: object) -> str:
    return display(str(value), NAME)


def path(value: object) -> str:
    return display(str(value), PATH)


def prose(value: str, limit: int = PROSE) -> str:
    """Lines stay lines; what is over `limit` is left out, and said."""
    lines = value[:limit].replace("\r\n", "\n").expandtabs(4).split("\n")
    shown = "\n".join(display(line, LINE) for line in lines)
    return shown if len(value) <= limit else f"{shown}\n… {len(value) - limit:,} more characters"


def arguments(value: dict[str, JsonValue]) -> str:
    """A call's arguments to be read; texts of several lines as such."""
    parts = (
        f"{display(key, NAME)}: {item}"
        if isinstance(item, str)
        else f"{display(key, NAME)}: {json.dumps(item)}"
        for key, item in value.items()
    )
    return prose("\n".join(parts))


def gist(entry: Entry) -> str:
    """One line for an entry that is folded."""
    for block in entry.content:
        text = block.text if block.type == "text" else block.head if block.type == "spill" else ""
        first = text.strip().partition("\n")[0]
        if first:
            return display(first, NAME)
    return f"{len(entry.content)} blocks" if entry.content else "nothing"


def picture(block: Image) -> str:
    """The image as an address, or "" when it is none that a browser should be given."""
    if block.mime_type not in _IMAGES or not _BASE64.fullmatch(block.data):
        return ""
    return f"data:{block.mime_type};base64,{block.data}"


def size(value: int | None) -> str:
    """Bytes for a reader."""
    if value is None:
        return "?"
    number, unit = float(value), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"


def took(value: int | None) -> str:
    """Milliseconds for a reader."""
    if value is None:
        return ""
    if value < 1000:
        return f"{value} ms"
    seconds = value / 1000
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def moment(value: str) -> str:
    """ISO 8601 UTC, for who has no script that says it in local time."""
    return display(value[:19].replace("T", " "), 19) + " UTC"


def stamp(value: float) -> str:
    """Seconds since the epoch as ISO 8601 UTC."""
    return datetime.fromtimestamp(value, UTC).isoformat(timespec="seconds")


def query(value: object) -> str:
    """A value inside an address."""
    return quote(str(value), safe="")


def templates() -> Environment:
    """What the pages are made with.  A name that a page lacks is a bug, never an empty place."""
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates", encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for each in (name, path, prose, arguments, gist, picture, size, took, moment, stamp, query):
        made.filters[each.__name__] = each
    return made


def static(file: str) -> bytes:
    return (_HERE / "static" / file).read_bytes()
