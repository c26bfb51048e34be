"""Chat Completions <-> a turn.  Pure: bytes and values, no I/O, no clock.

Spoken by Pi, OpenCode, Qwen Code, Cline, Aider and mini-swe-agent.
"""

from collections.abc import Iterator

from pydantic import JsonValue

from chappie_bridge.codec import programs
from chappie_bridge.codec.events import encode, event, sentence
from chappie_bridge.codec.loose import Record, body_of, compact, content, plain, record, series, string, texts
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
from chappie_bridge.wire.blocks import Image, ResourceLink, Text
from chappie_bridge.wire.errors import Failure

_READ = frozenset(
    {"model", "messages", "tools", "stream", "stream_options", "response_format", "prompt_cache_key", "stop"}
)


# --- request ------------------------------------------------------------------------------------


def decode(headers: Headers, body: JsonValue) -> Turn:
    """The turn of a request; `headers` by lower-case name.

    :raises BadArguments: the body has no list `messages`, or names an id that cannot be one.
    """
    request = body_of(body, "messages")
    messages = [record(message) for message in series(request.get("messages"))]
    system = "\n".join(
        text
        for message in messages
        if message.get("role") in ("system", "developer")
        for text in texts(message.get("content"))
    )
    who = programs.identify(headers, system)
    tools, others = sorted_tools(who.program, request.get("tools"), _tool)
    stop = request.get("stop")
    form = record(record(request.get("response_format")).get("json_schema")).get("schema")
    return turn_of(
        Request(
            api="chat",
            headers=headers,
            body=request,
            read=_READ,
            who=who,
            system=system,
            tools=tools,
            other_tools=others,
            history=_history(who.program, messages),
            form=record(form) if form is not None else None,
            stop=tuple(string(each) for each in ([stop] if isinstance(stop, str) else series(stop))),
            wants_usage=record(request.get("stream_options")).get("include_usage") is True,
        )
    )


def _tool(entry: Record) -> Iterator[OfferedTool]:
    if entry.get("type") == "function":
        function = record(entry.get("function"))
        yield from function_tool(function, function.get("parameters"))


def _history(who: Program, messages: list[Record]) -> tuple[Piece, ...]:
    history: list[Piece] = []
    batch: list[int] = []  # where the results stand that images may belong to
    for at, message in enumerate(messages):
        role, value = message.get("role"), message.get("content")
        if role == "tool":
            batch.append(len(history))
            history.append(Outcome(at, string(message.get("tool_call_id")), "", content(value)))
            continue
        if role == "user" and batch and _is_media(who, value):
            _attribute(who, history, batch, value)
            continue
        batch = []
        if role == "assistant":
            calls = (record(call) for call in series(message.get("tool_calls")))
            history.append(
                Answered(
                    at,
                    "\n".join(texts(value)),
                    tuple(
                        past_call(
                            who,
                            string(call.get("id")),
                            string(record(call.get("function")).get("name")),
                            string(record(call.get("function")).get("arguments")),
                        )
                        for call in calls
                    ),
                )
            )
        elif role == "user":
            history += user_pieces(who, at, value)
        elif role in ("system", "developer"):
            history += [Note(at, "system", text) for text in texts(value)]
        else:
            history.append(Unknown(at, dict(message)))
    return tuple(history)


def _is_media(who: Program, value: JsonValue) -> bool:
    media = programs.MEDIA.get(who)
    return media is not None and next(iter(texts(value)), "") == media.heading


def _attribute(who: Program, history: list[Piece], batch: list[int], value: JsonValue) -> None:
    """Give the images of a message to the results they come from: this protocol has no place for them
    in a result.  One to one where as many results say that they read an image, else to the last one
    with a line that says so."""
    parts = content(value)[1:]
    pictures = [part for part in parts if isinstance(part, Image | ResourceLink)]
    results = [(index, piece) for index in batch if isinstance(piece := history[index], Outcome)]
    mark = programs.MEDIA[who].mark
    readers = [
        (index, piece)
        for index, piece in results
        if mark.match(plain(piece.content)) and not any(isinstance(part, Image) for part in piece.content)
    ]
    targets = readers if len(readers) == len(pictures) else results if len(results) == 1 else []
    if len(targets) == len(parts):
        for (index, piece), part in zip(targets, parts, strict=True):
            history[index] = Outcome(piece.at, piece.call, "", (*piece.content, part))
        return
    index, piece = results[-1]
    line = "" if len(results) == 1 else "From the results of this batch; the program does not say which:"
    lead = (Text(text=line),) if line else ()
    history[index] = Outcome(piece.at, piece.call, "", (*piece.content, *lead, *parts))


# --- answer -------------------------------------------------------------------------------------

_NO_USAGE: dict[str, JsonValue] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


class Stream:
    """One streamed answer.  `answer_id` names it (any id of ours), `created` is in epoch seconds.

    `open` first and at once, `keep_alive` while the request is held, then `answer` until one `ends`, or
    `fail`.  Keeps nothing of the request but what its answer repeats.
    """

    def __init__(self, turn: Turn, answer_id: str, created: int) -> None:
        self._model, self._wants_usage = turn.model, turn.wants_usage
        self._id = f"chatcmpl-{answer_id}"
        self._created = created
        self._spoken = False

    def open(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def keep_alive(self) -> bytes:
        """A chunk with an empty delta; Qwen Code and Codex do not count comments."""
        return self._chunk({})

    def answer(self, answer: Answer) -> Iterator[bytes]:
        if answer.text:
            yield self._chunk({"content": f"\n\n{answer.text}" if self._spoken else answer.text})
            self._spoken = True
        for index, call in enumerate(answer.calls):
            yield self._chunk({"tool_calls": [{"index": index, **_call(call)}]})
        if answer.ends:
            yield self._chunk({}, "tool_calls" if answer.calls else "stop")
            if self._wants_usage:
                yield event({**self._frame(), "choices": [], "usage": _NO_USAGE})
            yield b"data: [DONE]\n\n"

    def fail(self, failure: Failure) -> bytes:
        """An error after the stream began."""
        return event(_error(failure))

    def _frame(self) -> dict[str, JsonValue]:
        return {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
        }

    def _chunk(self, delta: dict[str, JsonValue], finish: str | None = None) -> bytes:
        choice: JsonValue = {"index": 0, "delta": delta, "finish_reason": finish}
        return event({**self._frame(), "choices": [choice]})


def whole(turn: Turn, answer: Answer, answer_id: str, created: int) -> bytes:
    """The body for a request that does not stream."""
    message: dict[str, JsonValue] = {"role": "assistant", "content": answer.text or None}
    if answer.calls:
        message["tool_calls"] = [_call(call) for call in answer.calls]
    finish = "tool_calls" if answer.calls else "stop"
    return encode(
        {
            "id": f"chatcmpl-{answer_id}",
            "object": "chat.completion",
            "created": created,
            "model": turn.model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": _NO_USAGE,
        }
    )


def refusal(failure: Failure) -> bytes:
    """The body of a refused request; its status is `events.status`."""
    return encode(_error(failure))


def _call(call: AnswerCall) -> dict[str, JsonValue]:
    function: JsonValue = {"name": call.name, "arguments": compact(dict(call.arguments))}
    return {"id": call.id, "type": "function", "function": function}


def _error(failure: Failure) -> dict[str, JsonValue]:
    kind = "server_error" if failure.retryable or failure.code == "internal" else "invalid_request_error"
    return {"error": {"message": sentence(failure), "type": kind, "param": None, "code": failure.code}}
