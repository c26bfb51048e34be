"""Qwen Code's chat file: `~/.qwen/projects/<directory>/chats/<session id>.jsonl`.  Pure."""

from pydantic import JsonValue

from chappie_agents.hosts.model.native.lines import Line, Pen, time
from chappie_bridge.codec.loose import Record, compact, record, series, string
from chappie_bridge.wire.blocks import Content, Text


def read(told: Record) -> Line | None:
    """One line; None for what is no part of a conversation."""
    kind, name = told.get("type"), string(told.get("uuid"))
    parent = string(told.get("parentUuid")) or None
    if not name:
        return None
    pen = Pen(name, time(told.get("timestamp")))
    parts = [record(part) for part in series(record(told.get("message")).get("parts"))]
    said = _texts(parts)
    if kind == "user" and said and told.get("provenance") == "real_user":
        pen.write("user", said)
    elif kind == "assistant":
        if said:
            pen.write("assistant", said)
        for part in parts:
            if call := record(part.get("functionCall")):
                pen.call(string(call.get("id")), string(call.get("name")), call.get("args"))
    elif kind == "tool_result":
        for part in parts:
            if answer := record(part.get("functionResponse")):
                status = record(told.get("toolCallResult")).get("status")
                given = _output(answer.get("response"))
                tool = string(answer.get("name"))
                pen.result(string(answer.get("id")), given, failed=status == "error", name=tool)
    return Line(tuple(pen.entries), name, parent, turns=kind == "user")


def _texts(parts: list[Record]) -> Content:
    return tuple(
        Text(text=text)
        for part in parts
        if isinstance(text := part.get("text"), str) and text and not part.get("thought")
    )


def _output(value: JsonValue) -> Content:
    given = record(value)
    text = given.get("output", given.get("error"))
    return (Text(text=text if isinstance(text, str) else compact(value)),)
