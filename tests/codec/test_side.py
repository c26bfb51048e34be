"""Side requests: titles in the asked form, digests, and a classifier that never gets a permission."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from chappie_bridge.codec import anthropic_messages, openai_chat, openai_responses, side
from chappie_bridge.codec.protocols import CODECS
from chappie_bridge.codec.turn import Turn
from tests.codec.host_requests import decoded, host_requests

CLASSIFIERS = [f"claude-{number}" for number in range(10, 20)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("codex-04", '{"title":"Also check b.txt please"}'),
        ("codex-22", '{"title":"First question"}'),
        ("codex-28", '{"title":"First question"}'),
        ("claude-08", '{"title":"Look at a.txt please"}'),
        ("opencode-01", "Look at a.txt"),
        ("opencode-04", "Look at a.txt"),
        ("opencode-07", "Look at a.txt"),
        ("opencode-46", "what color"),
    ],
)
def test_a_title_is_the_first_words_in_the_asked_form(name: str, text: str) -> None:
    answer = side.local_answer(decoded(name))
    assert answer
    assert answer.text == text
    assert answer.ends


@given(st.text(max_size=300))
def test_a_title_keeps_to_the_schema_whatever_the_person_typed(words: str) -> None:
    turn = _codex_title(words, {"title": {"type": "string", "minLength": 1, "maxLength": 36}}, ["title"])
    answer = side.local_answer(turn)
    assert answer
    value = json.loads(answer.text)
    assert list(value) == ["title"]
    assert 1 <= len(value["title"]) <= 36
    assert len(value["title"].splitlines()) == 1


def test_a_title_ends_at_a_word() -> None:
    turn = _codex_title(
        "Please refactor the whole authentication module today",
        {"title": {"type": "string", "maxLength": 20}},
        ["title"],
    )
    assert side.title(turn) == '{"title":"Please refactor the"}'


def test_fields_that_a_schema_requires_beside_the_title_are_filled_with_the_least() -> None:
    fields: dict[str, JsonValue] = {
        "title": {"type": "string"},
        "kind": {"enum": ["bug", "feature"]},
        "tags": {"type": "array"},
        "done": {"type": "boolean"},
        "more": {"type": "string"},
        "inner": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    }
    turn = _codex_title("Hi there", fields, ["title", "kind", "tags", "done", "inner"])
    assert json.loads(side.title(turn)) == {
        "title": "Hi there",
        "kind": "bug",
        "tags": [],
        "done": False,
        "inner": {"n": 0},
    }


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_security_classifier_is_always_answered_with_a_block(name: str) -> None:
    """The request asks for `<block>yes</block>` or `<block>no</block>`."""
    turn = decoded(name)
    answer = side.local_answer(turn)
    assert answer
    body = json.loads(CODECS["messages"].whole(turn, answer, "x", 0))
    text = body["content"][0]["text"]
    if turn.stop:
        assert (text, body["stop_reason"], body["stop_sequence"]) == (
            "<block>yes",
            "stop_sequence",
            "</block>",
        )
    else:
        assert (text, body["stop_reason"]) == ("<block>yes</block>", "end_turn")
    assert not turn.stream


def test_the_classifier_is_known_in_any_program_by_its_words_or_by_its_stop() -> None:
    monitor = "Intro.\nYou are a security monitor for autonomous AI coding agents.\nMore."
    asked: list[JsonValue] = [{"role": "user", "content": "may it?"}]
    by_words = anthropic_messages.decode({}, {"messages": asked, "system": monitor})
    by_stop = anthropic_messages.decode({}, {"messages": asked, "stop_sequences": ["</block>"]})
    by_chat = openai_chat.decode({}, {"messages": [{"role": "system", "content": monitor}, *asked]})
    for turn in (by_words, by_stop, by_chat):
        answer = side.local_answer(turn)
        assert turn.side == "classifier"
        assert answer
        assert "yes" in answer.text
        assert not turn.said


def test_nothing_is_remembered_for_a_program_that_asks_what_to_remember() -> None:
    answer = side.local_answer(decoded("qwen-02"))
    assert answer
    assert answer.ends
    assert not answer.calls


def test_a_turn_and_a_compaction_are_never_answered_here() -> None:
    for name, request in host_requests().items():
        if request.method == "POST":
            turn = decoded(name)
            local = side.local_answer(turn)
            assert (local is None) == (turn.side in (None, "compaction"))


def test_no_tools_alone_is_no_side_request() -> None:
    assert decoded("aider-01").side is None
    assert not decoded("aider-01").tools
    for name in ("claude-21", "qwen-02", "codex-28"):
        assert decoded(name).side
        assert decoded(name).tools


COMPACTIONS = [
    name
    for name, request in host_requests().items()
    if request.method == "POST" and decoded(name).side == "compaction"
]


@pytest.mark.parametrize("name", COMPACTIONS)
def test_a_digest_is_bounded_and_the_same_each_time(name: str) -> None:
    turn = decoded(name)
    digest = side.digest(turn)
    assert digest == side.digest(decoded(name))
    assert digest.ends
    assert 0 < len(digest.text) <= side.DIGEST + 100
    assert "without a model" in digest.text


def test_a_digest_tells_what_was_asked_what_was_called_and_what_failed() -> None:
    text = side.digest(decoded("codex-12")).text
    for part in (
        "- Also check b.txt please\n- Third question\n- Fourth question\n- Look at a.txt",
        '- exec_command {"cmd": "cat a.txt"}',
        "- exec_command aborted: Wall time: 5.9 seconds aborted by user",
        "## Last answer\nAfter abort.",
    ):
        assert part in text
    assert "CONTEXT CHECKPOINT" not in text


def test_claude_code_gets_its_digest_inside_the_tag_it_looks_for() -> None:
    text = side.digest(decoded("claude-38")).text
    assert text.count("<summary>") == text.count("</summary>") == 1
    assert "- First question\n- Second question" in text
    assert "CRITICAL" not in text


def test_the_conversation_that_a_prompt_tells_is_read_and_an_earlier_summary_survives() -> None:
    prompt = (
        "<conversation>\n[User]: fix it\n\n[Assistant]: I look.\n\n"
        '[Assistant tool calls]: bash(command="ls")\n\n[Tool result]: a.txt\n\n[Assistant]: Done.\n'
        "</conversation>\n\n<previous-summary>\nGoal: ship\n</previous-summary>\n\nWrite a summary."
    )
    text = side.digest(_pi_compaction(prompt)).text
    assert "## Earlier summary\nGoal: ship" in text
    assert "## What the person asked\n- fix it" in text
    assert '## What was called\n- bash(command="ls")' in text
    assert text.endswith("## Last answer\nDone.")


def test_a_long_history_is_digested_within_the_bound() -> None:
    lines = "\n\n".join(f"[User]: {'x' * 900} {number}\n\n[Assistant]: {'y' * 9000}" for number in range(90))
    text = side.digest(_pi_compaction(f"<conversation>\n{lines}\n</conversation>")).text
    assert len(text) <= side.DIGEST
    assert "(70 earlier ones left out)" in text
    assert " 89\n" in text


@given(st.text(max_size=200))
def test_any_prompt_has_a_digest(prompt: str) -> None:
    assert side.digest(_pi_compaction(prompt)).text


def _pi_compaction(prompt: str) -> Turn:
    system = "You are a context summarization assistant. Summarize."
    body: JsonValue = {
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    }
    turn = openai_chat.decode({"x-chappie-host": "pi"}, body)
    assert turn.side == "compaction"
    return turn


def _codex_title(words: str, fields: dict[str, JsonValue], required: list[JsonValue]) -> Turn:
    schema: JsonValue = {"type": "object", "properties": fields, "required": required}
    body: JsonValue = {
        "input": [{"role": "user", "content": f"Generate a title.\n\nUser prompt:\n{words}"}],
        "text": {"format": {"type": "json_schema", "schema": schema}},
    }
    headers = {"x-chappie-host": "codex", "x-codex-turn-metadata": '{"thread_source":"thread_title"}'}
    turn = openai_responses.decode(headers, body)
    assert turn.side == "title"
    return turn
