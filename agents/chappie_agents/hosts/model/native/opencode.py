"""OpenCode's database `~/.local/share/opencode/opencode.db`, read only: messages and their parts as entries.

A part is written again while it grows; its entry keeps its place.  A text is there empty at first and filled
when its stream ends, by when the calls after it may already run: they wait for it.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from chappie_agents.hosts.model.native.lines import STOPPED, time
from chappie_bridge.codec.loose import Record, compact, parsed, record, series, string
from chappie_bridge.wire.blocks import Block, Content, Image, Text
from chappie_bridge.wire.ids import CallId, EntryId
from chappie_bridge.wire.values import Entry

PAGE = 500
"""Parts read at a time."""

_PARTS = """
select part.id, part.time_created, part.time_updated, part.data,
       message.id, message.data, message.time_updated
from part join message on message.id = part.message_id
where part.session_id = ? and max(part.time_updated, message.time_updated) >= ?
order by part.id limit ? offset ?
"""


class Changes(NamedTuple):
    """Entries that are new or were written again, in their order; `upto` is where the next look begins: no
    later than at a text that is still empty, so that what follows it is seen again with it."""

    entries: tuple[Entry, ...]
    upto: int


def database(home: Path) -> Path:
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else home / ".local" / "share") / "opencode" / "opencode.db"


def changes(path: Path, session: str, since: int) -> Changes:
    """What changed in a session since a time in milliseconds, that moment included.  Blocks.

    Raises `sqlite3.Error`."""
    entries: list[Entry] = []
    held: list[Entry] = []
    upto = since
    # Of a text that will be filled: its message, and when it was written.
    empty: tuple[str, int] | None = None
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        offset = 0
        while True:
            rows = connection.execute(_PARTS, (session, since, PAGE, offset)).fetchall()
            for part, created, updated, data, message, about, renewed in rows:
                upto = max(upto, updated, renewed)
                told, whose = record(parsed(data)), record(parsed(about))
                if empty is not None and empty[0] != message:  # nobody will fill it any more
                    entries += held
                    held, empty = [], None
                if empty is None and _to_be_filled(told, whose):
                    empty = message, updated
                (entries if empty is None else held).extend(_entries(part, created, told, message, whose))
            if len(rows) < PAGE:
                return Changes(tuple(entries), upto if empty is None else min(upto, empty[1]))
            offset += PAGE


def _to_be_filled(told: Record, about: Record) -> bool:
    """A text that has come to its end, or whose message has, stays as it is."""
    if told.get("type") != "text" or string(told.get("text")) or about.get("role") != "assistant":
        return False
    ended = record(told.get("time")).get("end") or record(about.get("time")).get("completed")
    return not ended and "error" not in about


def _entries(part: str, created: int, told: Record, message: str, about: Record) -> Iterator[Entry]:
    at = time(created)
    mine = about.get("role") == "user"
    match told.get("type"):
        case "text" if told.get("synthetic") is not True and string(told.get("text")):
            kind = "user" if mine else "summary" if about.get("summary") is True else "assistant"
            said: Content = (Text(text=string(told.get("text"))),)
            yield Entry(id=EntryId(part), at=at, kind=kind, content=said)
        case "file" if mine:
            yield Entry(id=EntryId(part), at=at, kind="user", content=(_file(told),))
        case "tool":
            yield from _tool(part, at, told)
        case _:
            pass
    if record(about.get("error")).get("name") == "MessageAbortedError":
        name = EntryId(f"{message}.stopped")
        yield Entry(id=name, at=at, kind="notice", content=(Text(text=STOPPED),))


def _tool(part: str, at: str, told: Record) -> Iterator[Entry]:
    state = record(told.get("state"))
    call, tool = CallId(string(told.get("callID"))), string(told.get("tool"))
    given = state.get("input")
    yield Entry(
        id=EntryId(part),
        at=at,
        kind="call",
        call=call,
        name=tool,
        arguments=given if isinstance(given, dict) else {},
    )
    if state.get("status") not in ("completed", "error"):
        return
    broken = state.get("status") == "error"
    text = string(state.get("error" if broken else "output"))
    code = record(state.get("metadata")).get("exit")
    attached = [_file(record(each)) for each in series(state.get("attachments"))]
    spent = record(state.get("time"))
    start, end = spent.get("start"), spent.get("end")
    yield Entry(
        id=EntryId(f"{part}.result"),
        at=time(end),
        kind="result",
        call=call,
        name=tool,
        content=(*((Text(text=text),) if text else ()), *attached),
        is_error=broken or (isinstance(code, int) and code != 0),
        duration_ms=end - start if isinstance(start, int) and isinstance(end, int) else None,
    )


def _file(told: Record) -> Block:
    url, kind = string(told.get("url")), string(told.get("mime"))
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64") and kind.startswith("image/"):
        return Image(data=data, mime_type=kind)
    return Text(text=compact({name: value for name, value in told.items() if name in ("filename", "mime")}))
