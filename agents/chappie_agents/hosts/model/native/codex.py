"""Codex's rollout: `~/.codex/sessions/YYYY/MM/DD/rollout-<time>-<thread id>.jsonl`.  Pure but for `find`."""

import os
from pathlib import Path

from pydantic import JsonValue

from chappie_agents.hosts.model.native.lines import Line, Pen, arguments, content, spoken, time
from chappie_bridge.codec.loose import Record, record, string
from chappie_bridge.codec.programs import is_aborted, is_failed, read_user
from chappie_bridge.wire.blocks import Block, Text


def find(home: Path, session: str) -> Path | None:
    """Blocks."""
    base = Path(os.environ.get("CODEX_HOME") or home / ".codex")
    return max((base / "sessions").glob(f"*/*/*/rollout-*-{session}.jsonl"), default=None)


def read(told: Record) -> Line | None:
    """One line; None for what is no part of a conversation.  Ids of items are the program's own; a line
    without one is named by its ordinal."""
    item = record(told.get("payload"))
    name = string(item.get("id")) or f"line-{told.get('ordinal')}"
    pen = Pen(name, time(told.get("timestamp")))
    match told.get("type"):
        case "response_item":
            _item(pen, item)
        case "compacted":
            pen.write("summary", (Text(text=string(item.get("message"))),))
        case "event_msg" if item.get("type") == "turn_aborted":
            pen.stopped()
        case _:
            return None
    return Line(tuple(pen.entries), name)


def _item(pen: Pen, item: Record) -> None:
    match item.get("type"), item.get("role"):
        case "message", "user":
            said = tuple(_said(item.get("content")))
            if said:
                pen.write("user", said)
        case "message", "assistant":
            pen.write("assistant", spoken(item.get("content")))
        case "function_call", _:
            space = string(item.get("namespace"))
            tool = string(item.get("name"))
            pen.call(
                string(item.get("call_id")),
                f"{space}.{tool}" if space else tool,
                arguments(item.get("arguments")),
            )
        case "custom_tool_call", _:
            pen.call(string(item.get("call_id")), string(item.get("name")), item.get("input"))
        case "function_call_output" | "custom_tool_call_output", _:
            given = content(item.get("output"))
            text = "\n".join(part.text for part in given if isinstance(part, Text))
            failed = is_failed("codex", "", text) or is_aborted("codex", "", text)
            pen.result(string(item.get("call_id")), given, failed=failed)
        case _:
            pass


def _said(value: JsonValue) -> list[Block]:
    """What the person typed; without the notes that the program puts in the person's place."""
    found: list[Block] = []
    for part in spoken(value):
        if isinstance(part, Text):
            reading = read_user("codex", part.text)
            if reading.kind == "said":
                found.append(Text(text=reading.text))
        else:
            found.append(part)
    return found
