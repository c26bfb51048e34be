"""Anthropic Messages <-> a turn.  Pure: bytes and values, no I/O, no clock.

Spoken by Claude Code, and by Pi and OpenCode when configured so.
"""

from collections.abc import Iterator

from pydantic import JsonValue

from chappie_bridge.codec import programs
from chappie_bridge.codec.events import encode, event, sentence, status
from chappie_bridge.codec.loose import (
    Record,
    block,
    blocks_of,
    body_of,
    compact,
    content,
    record,
    series,
    string,
    texts,
)
from chappie_bridge.codec.programs import Headers
from chappie_bridge.codec.reading import Request, function_tool, past_call, sorted_tools, turn_of, user_pieces
from chappie_bridge.codec.turn import (
    Answer,
    AnswerCall,
    Answered,
    Note,
    OfferedTool,
    Outcome,
    Piece,
    Program,
    Turn,
    Unknown,
)
from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.errors import Failure

_READ = frozenset(
    {"model", "messages", "system", "tools", "stream", "output_config", "stop_sequences", "metadata"}
)


# --- request ------------------------------------------------------------------------------------


def decode(headers: Headers, body: JsonValue) -> Turn:
    """The turn of a request; `headers` by lower-case name.

    :raises BadArguments: the body has no list `messages`, or names an id that cannot be one.
    """
    request = body_of(body, "messages")
    messages = [record(message) for message in series(request.get("messages"))]
    system = "\n".join(texts(request.get("system")))
    who = programs.identify(headers, system)
    tools, others = sorted_tools(who.program, request.get("tools"), _tool)
    asked = record(record(request.get("output_config")).get("format"))
    return turn_of(
        Request(
            api="messages",
            headers=headers,
            body=request,
            read=_READ,
            who=who,
            system=system,
            tools=tools,
            other_tools=others,
            history=tuple(_history(who.program, messages)),
            form=record(asked.get("schema")) if asked.get("type") == "json_schema" else None,
            stop=tuple(string(each) for each in series(request.get("stop_sequences"))),
        )
    )


def _tool(entry: Record) -> Iterator[OfferedTool]:
    """A tool with a schema is a function; hosted tools have none."""
    if "input_schema" in entry:
        yield from function_tool(entry, entry.get("input_schema"))


def _history(who: Program, messages: list[Record]) -> Iterator[Piece]:
    for at, message in enumerate(messages):
        value = message.get("content")
        match message.get("role"):
            case "user":
                yield from _user(who, at, value)
            case "assistant":
                yield from _assistant(who, at, value)
            case "system":  # Claude Code puts its environment among the messages
                yield from (Note(at, "system", text) for text in texts(value))
            case _:
                yield Unknown(at, dict(message))


def _user(who: Program, at: int, value: JsonValue) -> Iterator[Piece]:
    spoken: list[JsonValue] = []
    for part in blocks_of(value):
        result = record(part)
        if result.get("type") != "tool_result":
            spoken.append(part)
            continue
        yield from user_pieces(who, at, spoken)
        spoken = []
        yield Outcome(
            at,
            string(result.get("tool_use_id")),
            "",
            content(result.get("content")),
            is_error=result.get("is_error") is True,
        )
    yield from user_pieces(who, at, spoken)


def _assistant(who: Program, at: int, value: JsonValue) -> Iterator[Piece]:
    said: list[str] = []
    calls = []
    for part in blocks_of(value):
        known, use = block(part), record(part)
        if isinstance(known, Text):
            said.append(known.text)
        elif use.get("type") == "tool_use":
            calls.append(
                past_call(who, string(use.get("id")), string(use.get("name")), compact(use.get("input")))
            )
        else:
            yield Unknown(at, part)
    yield Answered(at, "\n".join(said), tuple(calls))


# --- answer -------------------------------------------------------------------------------------

_NO_USAGE: dict[str, JsonValue] = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
}
_KINDS = {
    400: "invalid_request_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
}


class Stream:
    """One streamed answer.  `answer_id` names it (any id of ours); `created` has no place here.

    `open` first and at once, `keep_alive` while the request is held, then `answer` until one `ends`, or
    `fail`.  Keeps nothing of the request but what its answer repeats.
    """

    def __init__(self, turn: Turn, answer_id: str, created: int) -> None:
        del created
        self._model = turn.model
        self._id = answer_id
        self._blocks = 0

    def open(self) -> bytes:
        return _event("message_start", {"message": _message(self._model, self._id, [], None, None)})

    def keep_alive(self) -> bytes:
        return _event("ping", {})

    def answer(self, answer: Answer) -> Iterator[bytes]:
        if answer.text:
            delta: JsonValue = {"type": "text_delta", "text": answer.text}
            yield from self._block({"type": "text", "text": ""}, delta)
        for call in answer.calls:
            delta = {"type": "input_json_delta", "partial_json": compact(dict(call.arguments))}
            yield from self._block({**_use(call), "input": {}}, delta)
        if answer.ends:
            end: JsonValue = {"stop_reason": _reason(answer), "stop_sequence": answer.stop}
            yield _event("message_delta", {"delta": end, "usage": {"output_tokens": 0}})
            yield _event("message_stop", {})

    def fail(self, failure: Failure) -> bytes:
        """An error after the stream began."""
        return event(_error(failure), "error")

    def _block(self, begun: dict[str, JsonValue], delta: JsonValue) -> Iterator[bytes]:
        place: dict[str, JsonValue] = {"index": self._blocks}
        self._blocks += 1
        yield _event("content_block_start", {**place, "content_block": begun})
        yield _event("content_block_delta", {**place, "delta": delta})
        yield _event("content_block_stop", place)


def whole(turn: Turn, answer: Answer, answer_id: str, created: int) -> bytes:
    """The body for a request that does not stream; `created` has no place in it."""
    del created
    parts: list[JsonValue] = [{"type": "text", "text": answer.text}] if answer.text else []
    parts += [_use(call) for call in answer.calls]
    return encode(_message(turn.model, answer_id, parts, _reason(answer), answer.stop))


def refusal(failure: Failure) -> bytes:
    """The body of a refused request; its status is `events.status`."""
    return encode(_error(failure))


def _event(name: str, fields: dict[str, JsonValue]) -> bytes:
    return event({"type": name, **fields}, name)


def _reason(answer: Answer) -> str:
    return "tool_use" if answer.calls else "stop_sequence" if answer.stop else "end_turn"


def _message(
    model: str, answer_id: str, parts: list[JsonValue], reason: str | None, stop: str | None
) -> dict[str, JsonValue]:
    return {
        "id": f"msg_{answer_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": parts,
        "stop_reason": reason,
        "stop_sequence": stop,
        "usage": _NO_USAGE,
    }


def _use(call: AnswerCall) -> dict[str, JsonValue]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}


def _error(failure: Failure) -> dict[str, JsonValue]:
    kind = _KINDS.get(status(failure), "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": sentence(failure)}}
