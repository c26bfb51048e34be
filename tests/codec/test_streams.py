"""Answers as the programs read them: golden streams, and round trips through parsers of the test's own."""

import gc
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from chappie_bridge.codec.events import BODY_KEEP_ALIVE, status
from chappie_bridge.codec.protocols import CODECS, Stream
from chappie_bridge.codec.turn import Answer, AnswerCall, Api, Turn
from chappie_bridge.wire.errors import (
    BadArguments,
    Failure,
    Forbidden,
    Internal,
    Overloaded,
    SessionOffline,
    TooLarge,
)
from chappie_bridge.wire.ids import CallId

GOLDEN = Path(__file__).parent.parent / "fixtures" / "streams"
APIS: tuple[Api, ...] = ("chat", "responses", "messages")
CALLS = (
    AnswerCall(CallId("call_chp_1"), "read", {"path": "a.txt"}),
    AnswerCall(CallId("call_chp_2"), "bash", {"command": "echo ü; ls"}),
)
CODEX_CALLS = (
    AnswerCall(CallId("call_chp_1"), "spawn_agent", {"message": "hi"}, namespace="multi_agent_v1"),
    AnswerCall(CallId("call_chp_2"), "apply_patch", {}, input="*** Begin Patch\n*** End Patch\n"),
)
Event = dict[str, Any]


@pytest.mark.parametrize(
    ("name", "api", "answers"),
    [
        ("chat-calls", "chat", [Answer("Looking.", CALLS)]),
        ("chat-text", "chat", [Answer("On it.", final=False), Answer("Done.")]),
        ("responses-calls", "responses", [Answer("Looking.", CODEX_CALLS)]),
        ("responses-text", "responses", [Answer("On it.", final=False), Answer("Done.")]),
        ("messages-calls", "messages", [Answer("Looking.", CALLS)]),
        ("messages-text", "messages", [Answer("On it.", final=False), Answer("Done.")]),
    ],
)
def test_a_stream_is_byte_for_byte_the_recorded_one(name: str, api: Api, answers: list[Answer]) -> None:
    stream = _stream(api)
    told = [stream.open(), stream.keep_alive()]
    for answer in answers:
        told += stream.answer(answer)
    assert b"".join(told) == (GOLDEN / f"{name}.sse").read_bytes()


TEXT = st.text(max_size=60)
NAME = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
Draft = tuple[str, dict[str, JsonValue], str | None, str | None]
"""Name, arguments, namespace, raw input of a call."""

ARGUMENTS: st.SearchStrategy[dict[str, JsonValue]] = st.dictionaries(TEXT, VALUE, max_size=4)
NO_ARGUMENTS: st.SearchStrategy[dict[str, JsonValue]] = st.builds(dict)
PLAIN: st.SearchStrategy[Draft] = st.tuples(NAME, ARGUMENTS, st.none(), st.none())
SPACED: st.SearchStrategy[Draft] = st.tuples(NAME, ARGUMENTS, NAME, st.none())
RAW: st.SearchStrategy[Draft] = st.tuples(NAME, NO_ARGUMENTS, st.none(), TEXT)


def _drafts(api: Api) -> st.SearchStrategy[list[Draft]]:
    return st.lists(PLAIN | SPACED | RAW if api == "responses" else PLAIN, max_size=4)


def _answer(text: str, drafts: list[Draft]) -> Answer:
    return Answer(
        text,
        tuple(
            AnswerCall(CallId(f"call_chp_{index}"), name, arguments, space, raw)
            for index, (name, arguments, space, raw) in enumerate(drafts)
        ),
    )


@pytest.mark.parametrize("api", APIS)
@given(data=st.data(), text=TEXT, keep_alives=st.integers(0, 3))
def test_an_answer_comes_back_out_of_its_events(
    api: Api, data: st.DataObject, text: str, keep_alives: int
) -> None:
    drafts = data.draw(_drafts(api))
    answer = _answer(text, drafts)
    stream = _stream(api)
    raw = stream.open() + b"".join(stream.keep_alive() for _ in range(keep_alives))
    raw += b"".join(stream.answer(answer))
    assert READERS[api](list(_events(raw))) == (text, drafts)


@pytest.mark.parametrize("api", APIS)
@given(data=st.data(), text=TEXT)
def test_an_answer_comes_back_out_of_its_whole_body(api: Api, data: st.DataObject, text: str) -> None:
    drafts = data.draw(_drafts(api))
    body = json.loads(CODECS[api].whole(_turn(api), _answer(text, drafts), "op_1", 7))
    assert WHOLE_READERS[api](body) == (text, drafts)


@pytest.mark.parametrize("api", APIS)
@given(text=TEXT, progress=st.lists(TEXT.filter(bool), max_size=3))
def test_progress_leaves_the_request_open_and_loses_nothing(api: Api, text: str, progress: list[str]) -> None:
    stream = _stream(api)
    raw = stream.open()
    for each in progress:
        part = b"".join(stream.answer(Answer(each, final=False)))
        assert not _is_over(part)
        raw += part + stream.keep_alive()
    raw += b"".join(stream.answer(Answer(text)))
    assert _is_over(raw)
    told, _ = READERS[api](list(_events(raw)))
    assert told.replace("\n", "") == "".join([*progress, text]).replace("\n", "")


@pytest.mark.parametrize("api", APIS)
def test_every_line_is_ascii_and_every_event_one_line(api: Api) -> None:
    """U+2028 splits lines in some clients; a lone surrogate cannot be sent as UTF-8 at all."""
    stream = _stream(api)
    raw = b"".join(stream.answer(Answer("a\u2028b\ud800\r\n", CALLS)))
    assert raw.isascii()
    for event in raw.rstrip(b"\n").split(b"\n\n"):
        assert all(re.match(rb"(data|event): ", line) for line in event.split(b"\n"))


@pytest.mark.parametrize("api", APIS)
def test_a_keep_alive_is_a_real_event_and_never_a_comment(api: Api) -> None:
    """Codex and Qwen Code cut a stream that has only comments."""
    stream = _stream(api)
    stream.open()
    (event,) = _events(stream.keep_alive())
    match api:
        case "chat":
            assert event["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]
        case "responses":
            assert event["type"] == "response.in_progress"
        case "messages":
            assert event == {"type": "ping"}


def test_an_hour_of_keep_alives_adds_nothing_to_a_stream() -> None:
    for api in APIS:
        stream = _stream(api)
        stream.open()
        first, last = stream.keep_alive(), b""
        for _ in range(360):
            last = stream.keep_alive()
        assert len(last) <= len(first) + 4  # a longer sequence number


@pytest.mark.parametrize("api", APIS)
def test_a_held_stream_does_not_keep_its_request_alive(api: Api) -> None:
    """A request can be megabytes long and is held for an hour."""
    stream = _stream(api)
    stream.open()
    todo: list[object] = [vars(stream)]
    while todo:
        each = todo.pop()
        assert not isinstance(each, Turn)
        todo += gc.get_referents(each) if isinstance(each, dict | list | tuple) else []


def test_white_space_keeps_a_whole_answer_alive() -> None:
    body = CODECS["chat"].whole(_turn("chat"), Answer("x"), "op_1", 7)
    assert json.loads(BODY_KEEP_ALIVE * 60 + body)["choices"][0]["message"]["content"] == "x"


@pytest.mark.parametrize("api", APIS)
def test_usage_is_zero(api: Api) -> None:
    body = json.loads(CODECS[api].whole(_turn(api), Answer("x"), "op_1", 7))
    numbers = [value for value in body["usage"].values() if isinstance(value, int)]
    assert numbers
    assert not any(numbers)


def test_chat_tells_usage_in_the_stream_only_where_it_is_asked_for() -> None:
    silent = CODECS["chat"].decode({}, {"messages": []})
    events = list(_events(b"".join(CODECS["chat"].stream(silent, "op_1", 7).answer(Answer("x")))))
    assert not any("usage" in event for event in events)


def test_ids_come_from_the_given_ids() -> None:
    """A batch that is delivered again after a restart has the same ids, so nothing runs twice."""
    for api in APIS:
        once, again = (b"".join(_stream(api).answer(Answer("a", CALLS))) for _ in range(2))
        assert once == again
        assert b"op_1" in once + _stream(api).open()


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (BadArguments("No."), 400, "invalid_request_error"),
        (Forbidden(), 403, "permission_error"),
        (TooLarge(), 413, "request_too_large"),
        (Overloaded(), 503, "overloaded_error"),
        (SessionOffline(), 503, "overloaded_error"),
        (Internal(), 500, "api_error"),
    ],
)
def test_a_refusal_has_each_protocols_own_shape(
    error: BadArguments | Forbidden, code: int, kind: str
) -> None:
    failure = error.failure()
    assert status(failure) == code
    messages = json.loads(CODECS["messages"].refusal(failure))
    assert messages == {"type": "error", "error": {"type": kind, "message": failure.message}}
    for api in ("chat", "responses"):
        inner = json.loads(CODECS[api].refusal(failure))["error"]
        assert (inner["code"], inner["message"]) == (failure.code, failure.message)
        assert inner["type"] == ("server_error" if code >= 500 else "invalid_request_error")


def test_only_what_another_try_can_mend_is_told_to_be_tried_again() -> None:
    """Programs repeat after 5xx, up to eight times."""
    assert status(Failure(code="denied", message="")) < 500
    assert status(Failure(code="from_the_future", message="", retryable=True)) == 503


@pytest.mark.parametrize(
    ("api", "kind"), [("chat", None), ("responses", "response.failed"), ("messages", "error")]
)
def test_an_error_after_the_stream_began_is_an_event(api: Api, kind: str | None) -> None:
    stream = _stream(api)
    stream.open()
    (event,) = _events(stream.fail(Failure(code="lost", message="Gone.", hint="Try again.")))
    assert event.get("type") == kind
    error = event["response"]["error"] if api == "responses" else event["error"]
    assert error["message"] == "Gone. Try again."


# --- parsers of the test's own: they know the protocols, nothing of the code --------------------


def _events(raw: bytes) -> Iterator[Event]:
    for block in raw.decode("utf-8").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line)
        if lines and lines["data"] != "[DONE]":
            event = json.loads(lines["data"])
            assert lines.get("event", event.get("type")) == event.get("type")
            yield event


def _is_over(raw: bytes) -> bool:
    return any(end in raw for end in (b"data: [DONE]", b'"response.completed"', b'"message_stop"'))


def _read_chat(events: list[Event]) -> tuple[str, list[Draft]]:
    text, calls, finish = "", dict[int, Event](), None
    for event in events:
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls", ()):
                call = calls.setdefault(part["index"], {"id": part["id"], "name": "", "arguments": ""})
                call["name"] += part["function"]["name"]
                call["arguments"] += part["function"]["arguments"]
            finish = choice["finish_reason"] or finish
    assert finish == ("tool_calls" if calls else "stop")
    assert [call["id"] for call in calls.values()] == [f"call_chp_{index}" for index in range(len(calls))]
    return text, [(call["name"], json.loads(call["arguments"]), None, None) for call in calls.values()]


def _read_responses(events: list[Event]) -> tuple[str, list[Draft]]:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    built: dict[str, str] = {}
    done: list[Event] = []
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                built[event["item"]["id"]] = ""
            case kind if kind.endswith(".delta"):
                built[event["item_id"]] += event["delta"]
            case "response.output_item.done":
                assert event["output_index"] == len(done)
                done.append(event["item"])
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"] == done
    for item in done:
        if item["type"] == "message":
            assert built[item["id"]] == item["content"][0]["text"]
        else:
            assert built[item["id"]] == item.get("arguments", item.get("input"))
    return _items(done)


def _items(items: list[Event]) -> tuple[str, list[Draft]]:
    text = "".join(item["content"][0]["text"] for item in items if item["type"] == "message")
    calls: list[Draft] = []
    for item in items:
        if item["type"] == "function_call":
            calls.append((item["name"], json.loads(item["arguments"]), item.get("namespace"), None))
        elif item["type"] == "custom_tool_call":
            calls.append((item["name"], {}, None, item["input"]))
    return text, calls


def _read_messages(events: list[Event]) -> tuple[str, list[Draft]]:
    blocks: list[Event] = []
    open_block: int | None = None
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert (open_block, event["index"]) == (None, len(blocks))
                open_block = event["index"]
                blocks.append({**event["content_block"], "json": ""})
            case "content_block_delta":
                assert event["index"] == open_block
                delta = event["delta"]
                blocks[-1]["text"] = blocks[-1].get("text", "") + delta.get("text", "")
                blocks[-1]["json"] += delta.get("partial_json", "")
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    uses = [block for block in blocks if block["type"] == "tool_use"]
    assert events[-2]["delta"]["stop_reason"] == ("tool_use" if uses else "end_turn")
    return text, [(use["name"], json.loads(use["json"]), None, None) for use in uses]


def _whole_chat(body: Event) -> tuple[str, list[Draft]]:
    message = body["choices"][0]["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return message["content"] or "", [
        (call["name"], json.loads(call["arguments"]), None, None) for call in calls
    ]


def _whole_messages(body: Event) -> tuple[str, list[Draft]]:
    text = "".join(part["text"] for part in body["content"] if part["type"] == "text")
    return text, [
        (part["name"], part["input"], None, None) for part in body["content"] if part["type"] == "tool_use"
    ]


READERS = {"chat": _read_chat, "responses": _read_responses, "messages": _read_messages}
WHOLE_READERS = {
    "chat": _whole_chat,
    "responses": lambda body: _items(body["output"]),
    "messages": _whole_messages,
}


def _turn(api: Api) -> Turn:
    body: JsonValue = {
        "model": "chappie",
        "messages": [],
        "input": [],
        "stream_options": {"include_usage": True},
    }
    return CODECS[api].decode({}, body)


def _stream(api: Api) -> Stream:
    return CODECS[api].stream(_turn(api), "op_1", 7)
