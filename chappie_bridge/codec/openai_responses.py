"""Responses <-> a turn.  Pure: bytes and values, no I/O, no clock.

Spoken by Codex, and by Pi and OpenCode when configured so.
"""

from collections.abc import Iterator

from pydantic import JsonValue

from chappie_bridge.codec import programs
from chappie_bridge.codec.events import encode, event, sentence
from chappie_bridge.codec.loose import Record, body_of, compact, content, record, series, string, texts
from chappie_bridge.codec.programs import Headers
from chappie_bridge.codec.reading import Request, function_tool, past_call, sorted_tools, turn_of, user_pieces
from chappie_bridge.codec.turn import (
    Answer,
    AnswerCall,
    Answered,
    Note,
    OfferedTool,
    Outcome,
    PastCall,
    Piece,
    Program,
    Turn,
    Unknown,
)
from chappie_bridge.wire.errors import Failure

_READ = frozenset(
    {"model", "input", "instructions", "tools", "stream", "text", "prompt_cache_key", "client_metadata"}
)


# --- request ------------------------------------------------------------------------------------


def decode(headers: Headers, body: JsonValue) -> Turn:
    """The turn of a request; `headers` by lower-case name.

    :raises BadArguments: the body has no `input`, or names an id that cannot be one.
    """
    request = body_of(body, "input")
    given = request.get("input")
    told: list[JsonValue] = [{"role": "user", "content": given}] if isinstance(given, str) else series(given)
    items = [record(item) for item in told]
    system = "\n".join(
        [
            *texts(request.get("instructions")),
            *(
                text
                for item in items
                if item.get("role") in ("system", "developer")
                for text in texts(item.get("content"))
            ),
        ]
    )
    who = programs.identify(headers, system)
    tools, others = sorted_tools(who.program, request.get("tools"), _tools)
    asked = record(record(request.get("text")).get("format"))
    return turn_of(
        Request(
            api="responses",
            headers=headers,
            body=request,
            read=_READ,
            who=who,
            system=system,
            tools=tools,
            other_tools=others,
            history=_history(who.program, items),
            form=record(asked.get("schema")) if asked.get("type") == "json_schema" else None,
        )
    )


def _tools(entry: Record) -> Iterator[OfferedTool]:
    match entry.get("type"):
        case "function":
            yield from function_tool(entry, entry.get("parameters"))
        case "custom" if name := string(entry.get("name")):
            yield OfferedTool("custom", name, string(entry.get("description")), record(entry.get("format")))
        case "namespace":
            space = string(entry.get("name"))
            for inner in series(entry.get("tools")):
                function = record(inner)
                if function.get("type") == "function":
                    yield from function_tool(function, function.get("parameters"), space)
        case _:
            pass


def _history(who: Program, items: list[Record]) -> tuple[Piece, ...]:
    """Assistant items that stand together are one answer."""
    history: list[Piece] = []
    for at, item in enumerate(items):
        kind = item.get("type", "message")
        match kind, item.get("role"):
            case "message", "assistant":
                _answered(history, at, text="\n".join(texts(item.get("content"))))
            case "message", "user":
                history += user_pieces(who, at, item.get("content"), string(item.get("id")) or None)
            case "message", "system" | "developer":
                history += [Note(at, "system", text) for text in texts(item.get("content"))]
            case "function_call" | "custom_tool_call", _:
                field = "arguments" if kind == "function_call" else "input"
                call = past_call(
                    who,
                    string(item.get("call_id")),
                    string(item.get("name")),
                    string(item.get(field)),
                    string(item.get("namespace")) or None,
                )
                _answered(history, at, call=call)
            case "function_call_output" | "custom_tool_call_output", _:
                history.append(Outcome(at, string(item.get("call_id")), "", content(item.get("output"))))
            case _:
                history.append(Unknown(at, dict(item)))
    return tuple(history)


def _answered(history: list[Piece], at: int, *, text: str = "", call: PastCall | None = None) -> None:
    calls = (call,) if call else ()
    last = history[-1] if history else None
    if isinstance(last, Answered):
        joined = "\n".join(part for part in (last.text, text) if part)
        history[-1] = Answered(at, joined, last.calls + calls)
    else:
        history.append(Answered(at, text, calls))


# --- answer -------------------------------------------------------------------------------------

_NO_USAGE: dict[str, JsonValue] = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


class Stream:
    """One streamed answer.  `answer_id` names it (any id of ours), `created` is in epoch seconds.

    `open` first and at once, `keep_alive` while the request is held, then `answer` until one `ends`, or
    `fail`.  Keeps nothing of the request but what its answer repeats.
    """

    def __init__(self, turn: Turn, answer_id: str, created: int) -> None:
        self._model = turn.model
        self._id = answer_id
        self._created = created
        self._number = -1
        self._output: list[JsonValue] = []

    def open(self) -> bytes:
        return self._event("response.created", {"response": self._response("in_progress")})

    def keep_alive(self) -> bytes:
        """A repeated `response.in_progress`, without what was said so far; Codex does not count comments."""
        begun = _response(self._model, "in_progress", [], self._id, self._created)
        return self._event("response.in_progress", {"response": begun})

    def answer(self, answer: Answer) -> Iterator[bytes]:
        if answer.text:
            yield from self._message(answer.text)
        for call in answer.calls:
            yield from self._call(call)
        if answer.ends:
            yield self._event("response.completed", {"response": self._response("completed")})

    def fail(self, failure: Failure) -> bytes:
        """An error after the stream began."""
        error: JsonValue = {"code": failure.code, "message": sentence(failure)}
        return self._event("response.failed", {"response": {**self._response("failed"), "error": error}})

    def _message(self, text: str) -> Iterator[bytes]:
        place: dict[str, JsonValue] = {"output_index": len(self._output)}
        item = _message(text, f"msg_{self._id}_{len(self._output)}")
        inner: dict[str, JsonValue] = {**place, "item_id": item["id"], "content_index": 0}
        empty: JsonValue = {"type": "output_text", "text": "", "annotations": []}
        full: JsonValue = {"type": "output_text", "text": text, "annotations": []}
        begun: JsonValue = {**item, "status": "in_progress", "content": []}
        yield self._event("response.output_item.added", {**place, "item": begun})
        yield self._event("response.content_part.added", {**inner, "part": empty})
        yield self._event("response.output_text.delta", {**inner, "delta": text})
        yield self._event("response.output_text.done", {**inner, "text": text})
        yield self._event("response.content_part.done", {**inner, "part": full})
        yield self._event("response.output_item.done", {**place, "item": item})
        self._output.append(item)

    def _call(self, call: AnswerCall) -> Iterator[bytes]:
        place: dict[str, JsonValue] = {"output_index": len(self._output)}
        item = _call(call)
        inner: dict[str, JsonValue] = {**place, "item_id": item["id"]}
        field = "arguments" if call.input is None else "input"
        name = "response.function_call_arguments" if call.input is None else "response.custom_tool_call_input"
        begun: JsonValue = {**item, "status": "in_progress", field: ""}
        yield self._event("response.output_item.added", {**place, "item": begun})
        yield self._event(f"{name}.delta", {**inner, "delta": item[field]})
        yield self._event(f"{name}.done", {**inner, field: item[field]})
        yield self._event("response.output_item.done", {**place, "item": item})
        self._output.append(item)

    def _response(self, status: str) -> dict[str, JsonValue]:
        return _response(self._model, status, self._output, self._id, self._created)

    def _event(self, name: str, fields: dict[str, JsonValue]) -> bytes:
        self._number += 1
        return event({"type": name, "sequence_number": self._number, **fields}, name)


def whole(turn: Turn, answer: Answer, answer_id: str, created: int) -> bytes:
    """The body for a request that does not stream."""
    output: list[JsonValue] = [_message(answer.text, f"msg_{answer_id}_0")] if answer.text else []
    output += [_call(call) for call in answer.calls]
    return encode(_response(turn.model, "completed", output, answer_id, created))


def refusal(failure: Failure) -> bytes:
    """The body of a refused request; its status is `events.status`."""
    kind = "server_error" if failure.retryable or failure.code == "internal" else "invalid_request_error"
    return encode(
        {"error": {"message": sentence(failure), "type": kind, "param": None, "code": failure.code}}
    )


def _response(
    model: str, status: str, output: list[JsonValue], answer_id: str, created: int
) -> dict[str, JsonValue]:
    return {
        "id": f"resp_{answer_id}",
        "object": "response",
        "created_at": created,
        "status": status,
        "model": model,
        "output": list(output),
        "error": None,
        "incomplete_details": None,
        "usage": _NO_USAGE if status == "completed" else None,
    }


def _message(text: str, item_id: str) -> dict[str, JsonValue]:
    part: JsonValue = {"type": "output_text", "text": text, "annotations": []}
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def _call(call: AnswerCall) -> dict[str, JsonValue]:
    """The item of a call; its own id is made of the call's."""
    if call.input is not None:
        return {
            "id": f"ctc_{call.id}",
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.name,
            "input": call.input,
        }
    item: dict[str, JsonValue] = {
        "id": f"fc_{call.id}",
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": compact(dict(call.arguments)),
    }
    return {**item, "namespace": call.namespace} if call.namespace else item
