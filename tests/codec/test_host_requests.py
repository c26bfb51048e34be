"""Every recorded request of a real agent program decodes to what its recording says it is."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from chappie_bridge.codec.loose import record, series
from chappie_bridge.codec.programs import MEDIA
from chappie_bridge.codec.protocols import CODECS, api_at
from chappie_bridge.codec.turn import Api, Side, Turn, Unknown
from chappie_bridge.wire.errors import BadArguments
from tests.codec.host_requests import decoded, host_requests

ASKED = [name for name, request in host_requests().items() if request.method == "POST"]

SIDES: dict[str, Side] = {
    **dict.fromkeys(("pi-18", "pi-19", "pi-31", "pi-32"), "compaction"),
    **dict.fromkeys(("codex-04", "codex-22", "codex-28"), "title"),
    **dict.fromkeys(("codex-12", "codex-32"), "compaction"),
    **dict.fromkeys(
        (f"opencode-{number:02}" for number in (1, 4, 7, 10, 16, 21, 24, 28, 35, 37, 40, 43, 46)), "title"
    ),
    **dict.fromkeys(("opencode-15", "opencode-33"), "compaction"),
    "claude-08": "title",
    **dict.fromkeys((f"claude-{number}" for number in range(10, 20)), "classifier"),
    **dict.fromkeys(("claude-21", "claude-22", "claude-38"), "compaction"),
    "qwen-02": "memory",
}
VERSIONS = {"pi": "1.6.0", "codex": "0.171.0", "opencode": "1.18.33", "claude": "2.1.332", "qwen": "0.24.4"}
APIS: dict[str, Api] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/messages?beta=true": "messages",
}


def test_all_186_requests_are_here() -> None:
    assert len(host_requests()) == 186
    assert [name for name in host_requests() if name not in ASKED] == ["claude-07"]
    assert api_at(host_requests()["claude-07"].path) is None


@pytest.mark.parametrize("name", ASKED)
def test_program_version_and_protocol_are_those_of_the_recording(name: str) -> None:
    turn, request = decoded(name), host_requests()[name]
    assert turn.program == request.program
    assert turn.version == VERSIONS.get(request.program)
    assert turn.api == APIS[request.path]


@pytest.mark.parametrize("name", ASKED)
def test_the_side_request_is_recognised_and_a_turn_is_never_taken_for_one(name: str) -> None:
    assert decoded(name).side == SIDES.get(name)


@pytest.mark.parametrize("name", ASKED)
def test_the_session_is_the_native_id_or_none(name: str) -> None:
    turn, headers = decoded(name), host_requests()[name].headers
    expected: str | None
    match turn.program:
        case "codex":
            root, thread = headers["session-id"], headers["thread-id"]
            expected = root if root == thread else f"{root}/{thread}"
        case "opencode":
            own, parent = headers["x-session-id"], headers.get("x-parent-session-id")
            expected = f"{parent}/{own}" if parent else own
        case "claude":
            own, agent = headers["x-claude-code-session-id"], headers.get("x-claude-code-agent-id")
            expected = f"{own}/{agent}" if agent else own
        case "pi":
            expected = headers.get("session_id") or headers.get("session-id")
        case _:
            expected = None
    assert turn.session_id == expected
    if expected is None:
        assert turn.session.how == ("calls" if turn.anchor == "calls" else "new")


@pytest.mark.parametrize("name", ASKED)
def test_the_directory_is_found_wherever_the_program_tells_it(name: str) -> None:
    turn = decoded(name)
    silent = turn.program in ("cline", "aider", "mini") or (
        turn.side in ("title", "compaction", "classifier")
        and turn.cwd is None
        and turn.program in ("pi", "opencode", "claude")
    )
    assert turn.cwd == (None if silent else "/home/user/project")


@pytest.mark.parametrize("name", ASKED)
def test_each_answer_of_the_recording_finds_its_results(name: str) -> None:
    """The request after an answer with calls has one result for each of them."""
    turn = decoded(name)
    for answered in (piece for piece in turn.history if type(piece).__name__ == "Answered"):
        for call in getattr(answered, "calls", ()):
            results = [piece for piece in turn.history if getattr(piece, "call", None) == call.id]
            assert len(results) == 1
            assert getattr(results[0], "name", None) == call.name


@pytest.mark.parametrize("name", ASKED)
def test_each_tool_is_offered_or_carried(name: str) -> None:
    turn = decoded(name)
    entries = series(turn.body.get("tools"))
    inner = [series(record(entry).get("tools")) for entry in entries]
    callable_entries = len(entries) - len(turn.other_tools)
    nested = sum(len(tools) - 1 for tools in inner if tools)
    assert len(turn.tools) == callable_entries + nested
    assert len({tool.full_name for tool in turn.tools}) == len(turn.tools)


@pytest.mark.parametrize("name", ASKED)
def test_nothing_of_a_request_is_lost(name: str) -> None:
    """Each text and image of the history stands in some piece, each field of the body in the turn."""
    turn, request = decoded(name), host_requests()[name]
    assert json.dumps(turn.body) == json.dumps(request.body)
    assert dict(turn.extra).items() <= dict(turn.body).items()
    told = "\n".join(map(repr, turn.history))
    for text in _leaves(turn.body.get("messages") or turn.body.get("input")):
        assert repr(_unwrapped(text))[1:-1] in told or _is_heading(turn, text)
    assert not turn.unknown


def test_a_retried_request_is_the_same_request() -> None:
    """The 500, the 429 and the dropped stream: each program sent the identical request again."""
    for program, numbers in (("pi", (34, 37)), ("codex", (37, 40)), ("claude", (46, 49))):
        first, last = (decoded(f"{program}-{number}") for number in numbers)
        assert first == last


ROLES = ("user", "assistant", "tool", "system", "function_call", "namespace", "custom", "tool_result")
FIELDS = ("messages", "input", "role", "content", "type", "text", "tool_calls", "function", "tools", "id")
SCRAPS = st.sampled_from(
    (*ROLES, *FIELDS, "call_id", "name", "arguments", "image_url", "url", "data:image/png;base64,AA==")
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8) | SCRAPS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SCRAPS, inner, max_size=6),
    max_leaves=30,
)
PROGRAMS = st.sampled_from(["pi", "codex", "opencode", "claude", "qwen", "cline", "other"])


@given(st.sampled_from(list(CODECS)), PROGRAMS, ANYTHING, st.lists(ANYTHING, max_size=5))
def test_no_json_makes_a_codec_fail_otherwise_than_by_refusing(
    api: Api, program: str, body: JsonValue, items: list[JsonValue]
) -> None:
    bodies: list[JsonValue] = [body, {"messages": items, "input": items, "tools": items}]
    for given_body in bodies:
        try:
            turn = CODECS[api].decode({"x-chappie-host": program}, given_body)
        except BadArguments:
            continue
        assert isinstance(turn, Turn)


@pytest.mark.parametrize(
    ("api", "item"),
    [
        ("chat", {"role": "critic", "content": "no"}),
        ("responses", {"type": "item_reference", "id": "x"}),
        ("messages", {"role": "critic", "content": "no"}),
    ],
)
def test_an_item_without_a_word_of_ours_is_carried_as_it_came(api: Api, item: JsonValue) -> None:
    turn = CODECS[api].decode({}, {"messages": [item], "input": [item]})
    assert turn.unknown == (Unknown(0, item),)


def test_a_body_without_its_list_is_refused() -> None:
    bodies: list[JsonValue] = [None, [], {}, {"messages": 1, "input": 1}]
    for codec in CODECS.values():
        for body in bodies:
            with pytest.raises(BadArguments):
                codec.decode({}, body)


def _leaves(value: JsonValue, key: str = "") -> Iterator[str]:
    if isinstance(value, str):
        if key in ("text", "content", "output", "arguments", "data") and value:
            yield value
        elif key in ("url", "image_url"):
            yield value.partition(",")[2]
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each, key)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _leaves(each, name)


def _unwrapped(text: str) -> str:
    start = "The user sent a new message while you were working:\n"
    return text.removeprefix(start).partition("\n\nThis is how Claude Code")[0]


def _is_heading(turn: Turn, text: str) -> bool:
    media = MEDIA.get(turn.program)
    return media is not None and text == media.heading
