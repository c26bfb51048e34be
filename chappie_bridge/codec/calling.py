"""A batch of calls as a program's own calls, checked against the tools of that very request.  Pure.

What does not fit is refused here, so that nothing odd is ever written into a program's transcript.
"""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from pydantic import JsonValue

from chappie_bridge.codec.loose import Record, record, series
from chappie_bridge.codec.turn import AnswerCall, OfferedTool
from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.values import ToolCall

MAX_FAULTS = 8
"""Sentences of one refusal; the rest is counted."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def calls_for(tools: Sequence[OfferedTool], calls: Sequence[ToolCall]) -> tuple[AnswerCall, ...]:
    """`calls` in the program's terms: namespaces apart, a custom tool's `input` as its raw text.

    Checked are names, required and unknown arguments, and their plain types; the rest is the program's.

    :raises BadArguments: the batch does not fit `tools`; nothing of it was sent.
    """
    offered = {tool.full_name: tool for tool in tools}
    ready: list[AnswerCall] = []
    faults: list[str] = []
    for index, call in enumerate(calls):
        tool = offered.get(call.name)
        found = list(_faults(tool, call.arguments)) if tool else [_unknown(call.name, offered)]
        faults += [f"Call {index}: {fault}" for fault in found]
        if tool and not found:
            ready.append(_ready(tool, call))
    if faults:
        more = len(faults) - MAX_FAULTS
        raise BadArguments(" ".join([*faults[:MAX_FAULTS], *([f"And {more} more."] if more > 0 else [])]))
    return tuple(ready)


def _ready(tool: OfferedTool, call: ToolCall) -> AnswerCall:
    if tool.kind == "custom":
        return AnswerCall(call.id, tool.name, {}, tool.namespace, cast("str", call.arguments["input"]))
    return AnswerCall(call.id, tool.name, call.arguments, tool.namespace)


def _faults(tool: OfferedTool, arguments: Record) -> Iterator[str]:
    schema = tool.definition().parameters
    fields = record(schema.get("properties"))
    for name in series(schema.get("required")):
        if name not in arguments:
            yield f"`{tool.full_name}` needs `{name}`."
    for name, value in arguments.items():
        if name in fields:
            if not _fits(value, record(fields[name]).get("type")):
                yield f"`{name}` of `{tool.full_name}` must be {_named(record(fields[name]).get('type'))}."
        elif tool.kind == "custom" or schema.get("additionalProperties") is False:
            yield f"`{tool.full_name}` has no `{name}`."
    try:
        json.dumps(arguments, allow_nan=False)
    except ValueError:
        yield f"`{tool.full_name}` has a number that JSON cannot hold."


def _fits(value: JsonValue, kind: JsonValue) -> bool:
    kinds = [kind] if isinstance(kind, str) else series(kind)
    known = [each for each in kinds if isinstance(each, str) and each in _TYPES]
    if not known or len(known) < len(kinds):
        return True
    return any(_is(value, each) for each in known)


def _is(value: JsonValue, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _named(kind: JsonValue) -> str:
    return " or ".join(str(each) for each in ([kind] if isinstance(kind, str) else series(kind)))


def _unknown(name: str, offered: Mapping[str, OfferedTool]) -> str:
    close = difflib.get_close_matches(name[:64], offered, n=1)
    if close:
        return f"No tool `{name[:64]}` here; there is `{close[0]}`."
    return f"No tool `{name[:64]}` here. Call `tools` for the list."
