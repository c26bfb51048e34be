"""The v1 delta stream: any tree comes back, whatever the cuts; what is unknown fails and nothing raises."""

import json
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue

from chappie_bridge.codec import delta
from chappie_bridge.codec.delta import (
    Began,
    Broken,
    Changed,
    Control,
    Decoder,
    Ended,
    Event,
    Grew,
    Snapshot,
)
from chappie_bridge.codec.delta_items import MAX_WAITING, Items
from tests.peer.deltas import ENCODING, Encoder, split

FIXTURES = Path(__file__).parent.parent / "fixtures/streams"

texts = st.text(max_size=12)
trees = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def fed(data: str | bytes, decoder: Decoder | None = None) -> list[Event]:
    return (decoder or Decoder()).feed(data.encode() if isinstance(data, str) else data)


def frame(value: JsonValue) -> str:
    return f"event: delta\ndata: {json.dumps(value)}\n\n"


def started(value: JsonValue) -> str:
    return ENCODING + frame({"p": "", "o": "add", "v": value, "c": 0})


def exactly(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True)


@given(st.lists(st.lists(trees, min_size=1, max_size=3), min_size=1, max_size=3), st.integers(0, 2**32))
def test_any_messages_come_back_whatever_the_cuts(channels: list[list[JsonValue]], seed: int) -> None:
    random = Random(seed)
    encoder = Encoder(random, random.choice(("\n", "\r\n")))
    stream = encoder.begin()
    for channel, values in enumerate(channels):
        stream += encoder.root(channel, values[0])
        for before, after in pairwise(values):
            stream += encoder.grow(channel, before, after)
        stream += encoder.control("message_marker", marker="last_token")
    stream += encoder.done()
    decoder = Decoder()
    events = [event for piece in split(stream.encode(), random) for event in decoder.feed(piece)]
    assert not [event for event in events if isinstance(event, Broken)]
    assert events[-1] == Ended()
    assert decoder.ended
    for channel, values in enumerate(channels):
        assert exactly(decoder.root(channel)) == exactly(values[-1])


@given(st.integers(0, 2**32), st.text(min_size=1, max_size=400), st.integers(1, 400))
@example(1, '"\\\n\U0001f600é\0', 3)
def test_bare_texts_come_back_in_one_piece_or_many(seed: int, text: str, longest: int) -> None:
    random = Random(seed)
    stream = started({"t": ""}) + frame({"p": "/t", "o": "append", "v": ""})
    for char in text:
        piece = json.dumps({"v": char}, ensure_ascii=random.random() < 0.5, separators=(",", ":"))
        stream += f"{random.choice(('event: delta', ': x'))}\ndata: {piece}\n\n"
        if random.random() < 0.1:
            stream += 'data: {"type":"message_marker"}\n\n'
    decoder = Decoder()
    events = [event for part in split(stream.encode(), random, longest) for event in decoder.feed(part)]
    assert "".join(event.text for event in events if isinstance(event, Grew)) == text
    assert decoder.root(0) == {"t": text}


# --- the four sequences of facts/chatgpt.md 6.6 ---

ANSWER = (FIXTURES / "delta-answer.sse").read_text(encoding="utf-8")

CALL = (FIXTURES / "delta-call.sse").read_text(encoding="utf-8")

cuts = pytest.mark.parametrize("size", [1, 7, 4096])
ends = pytest.mark.parametrize("newline", ["\n", "\r\n"])


def pieces(text: str, size: int, newline: str) -> list[bytes]:
    data = text.replace("\n", newline).encode()
    return [data[at : at + size] for at in range(0, len(data), size)]


@cuts
@ends
def test_a_plain_answer(size: int, newline: str) -> None:
    decoder = Decoder()
    events = [event for piece in pieces(ANSWER, size, newline) for event in decoder.feed(piece)]
    root = decoder.root(0)
    assert isinstance(root, dict)
    message = root["message"]
    assert isinstance(message, dict)
    assert message["content"] == {"content_type": "text", "parts": ["Good morning."]}
    assert (message["status"], message["end_turn"]) == ("finished_successfully", True)
    assert message["metadata"] == {"is_complete": True}
    assert root["conversation_id"] == "C1"
    assert [event.kind for event in events if isinstance(event, Control)] == [
        "message_marker",
        "title_generation",
        "message_stream_complete",
    ]
    assert events[-1] == Ended()


@cuts
@ends
def test_a_local_call_with_inherited_keys_and_a_patch_that_goes_on(size: int, newline: str) -> None:
    decoder = Decoder()
    for piece in pieces(CALL, size, newline):
        decoder.feed(piece)
    root = decoder.root(1)
    assert isinstance(root, dict)
    message = root["message"]
    assert isinstance(message, dict)
    assert message["content"] == {"content_type": "code", "language": "json", "text": '{"a": 2, "b": 3}'}
    assert (message["recipient"], message["end_turn"]) == ("local.adder", False)
    assert message["status"] == "finished_successfully"


def test_the_other_operations() -> None:
    decoder = Decoder()
    parts = {"content": {"parts": ["hello world"]}, "metadata": {"a/b": 1, "list": ["p"]}}
    fed(started({"message": parts}), decoder)
    for change in (
        {"p": "/message/content/parts/0", "o": "truncate", "v": 5},
        {"p": "/message/metadata/a~1b", "o": "replace", "v": 2},
        {"p": "/message/metadata/list", "o": "append", "v": ["q"]},
        {"v": ["r", "s"]},
    ):
        assert not [event for event in fed(frame(change), decoder) if isinstance(event, Broken)]
    assert decoder.root(0) == {
        "message": {"content": {"parts": ["hello"]}, "metadata": {"a/b": 2, "list": ["p", "q", "r", "s"]}}
    }
    fed(frame({"p": "/message/metadata/list/0", "o": "remove"}), decoder)
    fed(frame({"p": "/message/metadata/list/0", "o": "add", "v": "z"}), decoder)
    root = decoder.root(0)
    assert isinstance(root, dict)
    assert root["message"]["metadata"]["list"] == ["z", "q", "r", "s"]


@pytest.mark.parametrize(
    "stream",
    [
        frame({"p": "", "o": "add", "v": {}}),
        'event: delta_encoding\ndata: "v2"\n\n',
        ENCODING + frame({"p": "", "o": "add"}),
        started({"t": "x"}) + frame({"p": "/t", "o": "append"}),
    ],
    ids=["before the encoding", "another encoding", "no value", "no value for append"],
)
def test_what_must_fail(stream: str) -> None:
    assert isinstance(fed(stream)[-1], Broken)


# --- what else fails, and what does not ---


@pytest.mark.parametrize(
    "change",
    [
        {"p": "/t", "o": "double", "v": 1},
        {"p": "/t", "o": "append", "v": 1},
        {"p": "/n", "o": "append", "v": "x"},
        {"p": "/none", "o": "append", "v": "x"},
        {"p": "/none", "o": "remove"},
        {"p": "/none/deeper", "o": "add", "v": 1},
        {"p": "/l/5", "o": "add", "v": 1},
        {"p": "/l/1", "o": "replace", "v": 1},
        {"p": "/l/01", "o": "replace", "v": 1},
        {"p": "/l/-1", "o": "remove"},
        {"p": "t", "o": "add", "v": 1},
        {"p": "/t", "o": "truncate", "v": -1},
        {"p": "/t", "o": "truncate", "v": True},
        {"p": "/n", "o": "truncate", "v": 1},
        {"p": "/t", "o": "patch", "v": []},
        {"p": "", "o": "patch", "v": {}},
        {"p": "", "o": "patch", "v": [{"p": "/t", "v": 1}]},
        {"p": "", "o": "patch", "v": [{"p": "", "o": "patch", "v": []}]},
        {"c": 1, "p": "/t", "o": "append", "v": "x"},
        {"c": -1, "p": "", "o": "add", "v": 1},
        {"c": True, "p": "", "o": "add", "v": 1},
        {"p": 3, "o": "add", "v": 1},
        {"p": "/a" * 100, "o": "add", "v": 1},
    ],
    ids=str,
)
def test_a_delta_that_does_not_fit_fails_and_nothing_after_it_is_read(change: JsonValue) -> None:
    decoder = Decoder()
    fed(started({"t": "x", "n": 1, "l": [0]}), decoder)
    events = fed(frame(change) + frame({"c": 0, "p": "/t", "o": "append", "v": "y"}), decoder)
    assert [type(event) for event in events] == [Broken]
    assert decoder.feed(frame({"v": "z"}).encode()) == []


@pytest.mark.parametrize(
    "event",
    [
        "data: nonsense\n\n",
        "data: [1]\n\n",
        'data: {"what": 1}\n\n',
        'event: delta\ndata: {"v":"a\tb"}\n\n',
        'event: delta\ndata: {"v":"\\x"}\n\n',
        'event: delta\ndata: {"v":"a"}{"v":"b"}\n\n',
        'event: delta\ndata: {"v":NaN}\n\n',
        'event: delta\ndata: {"v":"a\0b"}\n\n',
        "event: delta\ndata: " + "[" * 100_000 + "\n\n",
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_event_fails(event: str) -> None:
    text = started({"t": ""}) + frame({"p": "/t", "o": "append", "v": "x"})
    events = fed(text + event + frame({"v": "y"}))
    assert isinstance(events[-1], Broken)


def test_the_failure_names_the_event() -> None:
    events = fed(started({"t": ""}) + ": a comment\n\n" + 'data: {"type":"x"}\n\n' + "data: no\n\n")
    assert events[-1] == Broken("an event is not a JSON object", 4)


def test_a_stream_cut_inside_a_character_gives_what_was_whole() -> None:
    text = started({"t": ""}) + frame({"p": "/t", "o": "append", "v": "whole"})
    cut = 'event: delta\ndata: {"v":"é'.encode()[:-1]
    decoder = Decoder()
    assert not [event for event in fed(text.encode() + cut, decoder) if isinstance(event, Broken)]
    assert decoder.root(0) == {"t": "whole"}
    assert not decoder.ended


def test_bytes_that_are_no_text_fail_after_what_was_before_them() -> None:
    decoder = Decoder()
    events = fed(started({"t": "x"}).encode() + b'event: delta\ndata: {"v":"\xff"}\n\n', decoder)
    assert [type(event) for event in events] == [Began, Broken]


def test_halves_of_a_character_in_two_frames_are_one_again() -> None:
    text = started({"t": ""}) + frame({"p": "/t", "o": "append", "v": "x"})
    pair = 'event: delta\ndata: {"v":"\\ud83d"}\n\nevent: delta\ndata: {"v":"\\ude00"}\n\n'
    decoder = Decoder()
    fed(text + pair, decoder)
    assert decoder.root(0) == {"t": "x\U0001f600"}


def test_other_events_and_older_forms_are_told_apart() -> None:
    stream = ENCODING + (
        "event: ping\ndata: 1\n\nid: 3\nretry: 5\n\n: nothing\n\ndata:\n\n"
        'data: {"message": null, "conversation_id": "C", "error": "x"}\n\n'
        'data: {"type": "never_heard_of", "v": 1}\n\n'
    )
    assert fed(stream) == [
        Control("ping", {}),
        Snapshot({"message": None, "conversation_id": "C", "error": "x"}),
        Control("never_heard_of", {"type": "never_heard_of", "v": 1}),
    ]


def test_a_new_value_is_told_as_it_began_however_much_comes_with_it() -> None:
    events = fed(started({"t": ["a"]}) + frame({"p": "/t/0", "o": "append", "v": "b"}))
    assert events == [Began(0, {"t": ["a"]}), Grew(0, "/t/0", "b")]


def test_an_event_in_several_lines_and_a_byte_order_mark() -> None:
    text = '\ufeffevent: delta_encoding\ndata: v1\n\nevent: delta\ndata: {"p":"","o":"add",\ndata: "v":1}\n\n'
    assert fed(text) == [Began(0, 1)]


def test_after_done_another_stream_may_begin() -> None:
    decoder = Decoder()
    fed(started({"t": "old"}) + "data: [DONE]\n\n", decoder)
    assert decoder.ended
    fed(ENCODING + frame({"v": {"t": "new"}}), decoder)
    assert decoder.root(0) == {"t": "new"}
    assert not decoder.ended


def test_a_change_is_told_by_its_path() -> None:
    decoder = Decoder()
    fed(started({"t": "", "s": None}), decoder)
    assert fed(frame({"p": "/s", "o": "replace", "v": "done"}), decoder) == [Changed(0, "/s")]
    assert fed(frame({"p": "/t", "o": "append", "v": "a"}), decoder) == [Grew(0, "/t", "a")]


@pytest.mark.parametrize(
    ("name", "value", "stream"),
    [
        ("MAX_EVENT", 100, b"data: " + b"x" * 200),
        ("MAX_STREAM", 100, b": nothing\n\n" * 20),
        ("MAX_CHANNELS", 1, (started(1) + frame({"c": 1, "v": 1})).encode()),
    ],
)
def test_everything_has_a_bound(
    monkeypatch: pytest.MonkeyPatch, name: str, value: int, stream: bytes
) -> None:
    """S22: what a stream may hold has a bound."""
    monkeypatch.setattr(delta, name, value)
    assert isinstance(fed(stream)[-1], Broken)


lines = st.sampled_from(
    [
        "event: delta",
        "event: delta_encoding",
        'data: "v1"',
        'data: {"p":"","o":"add","v":{"a":["x"]}}',
        'data: {"p":"/a/0","o":"append","v":"y"}',
        'data: {"v":"z"}',
        'data: {"v":["z"]}',
        'data: {"c":1}',
        'data: {"type":"x"}',
        "data: [DONE]",
        "",
        "",
        "\0",
        "data: {",
    ]
)


@given(st.lists(lines | st.text(max_size=5) | st.just('data: {"v":"\\ud83d"}')), st.integers(0, 2**32))
def test_no_input_raises_and_cuts_do_not_matter(given_lines: list[str], seed: int) -> None:
    data = "\n".join(given_lines).encode("utf-8", "replace")
    random = Random(seed)
    whole, cut = Decoder(), Decoder()
    once = whole.feed(data)
    many = [event for piece in split(data, random, 9) for event in cut.feed(piece)]
    assert _merged(once) == _merged(many)


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    Decoder(assume=True).feed(b'data: {"v":{"t":""}}\n\ndata: {"p":"/t","o":"append","v":"x"}\n\n' + data)


def _merged(events: list[Event]) -> list[object]:
    """Neighbouring texts as one: how many events they are depends on the cuts."""
    found: list[object] = []
    for event in events:
        if isinstance(event, Began):
            found.append(("began", event.channel))
        elif isinstance(event, Grew) and found and isinstance(found[-1], Grew) and found[-1][:2] == event[:2]:
            found[-1] = Grew(event.channel, event.path, found[-1].text + event.text)
        else:
            found.append(event)
    return found


# --- the same over a WebSocket ---


def item(name: str, parent: str | None, encoded: str) -> str:
    return json.dumps(
        {
            "type": "message",
            "topic_id": "conversation-turn-1",
            "payload": {
                "type": "conversation-turn-stream",
                "payload": {
                    "type": "stream-item",
                    "encoded_item": encoded,
                    "stream_item_id": name,
                    "parent_stream_item_id": parent,
                    "server_timestamp_ms": 1,
                },
            },
            "offset": name,
        }
    )


@given(st.integers(0, 2**32))
def test_items_out_of_order_and_twice_are_one_stream(seed: int) -> None:
    random = Random(seed)
    parts = [part.decode() for part in split(ANSWER.encode(), random, 60)]
    frames = [item(f"i{at}", f"i{at - 1}" if at else None, part) for at, part in enumerate(parts)]
    later = frames[1:] + random.choices(frames, k=5)
    random.shuffle(later)
    items = Items()
    for each in [frames[0], *later, json.dumps({"type": "pong"}), "no JSON"]:
        assert not [event for event in items.feed(each) if isinstance(event, Broken)]
    root = items.decoder.root(0)
    assert isinstance(root, dict)
    assert root["message"]["content"]["parts"] == ["Good morning."]
    assert items.decoder.ended


def test_who_joins_late_assumes_v1() -> None:
    items = Items()
    assert items.feed(item("i7", "i6", frame({"p": "", "o": "add", "v": 1})).encode()) == [Began(0, 1)]


def test_items_that_wait_for_ever_have_a_bound() -> None:
    items = Items()
    items.feed(item("first", None, ""))
    events = [event for at in range(MAX_WAITING + 1) for event in items.feed(item(f"a{at}", f"b{at}", ""))]
    assert [type(event) for event in events] == [Broken]
    assert items.feed(item("second", "first", ENCODING)) == []
