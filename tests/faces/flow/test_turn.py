"""A turn against the strict peer, without I/O."""

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge.codec.conversation import HIDDEN
from chappie_bridge.faces.flow import turn
from chappie_bridge.faces.flow.hearing import LocalCall
from chappie_bridge.faces.flow.turn import (
    MAX_READS,
    RESTING,
    TURN,
    Conversation,
    Converse,
    Ended,
    Prepare,
    Read,
    State,
)
from tests.faces.flow.driver import MANNER, Driver, conversation
from tests.peer.deltas import ENCODING
from tests.peer.flow import FINISHED, Call, Cut, Flow, Raw, Say

Json = dict[str, Any]

ECHO = Call("echo", {"message": "again"})


def bodies(driver: Driver) -> list[Json]:
    return [step.body for step in driver.seen if isinstance(step, Converse)]


def test_a_plain_turn_prepares_answers_the_challenge_and_shows_the_text() -> None:
    driver = Driver(conversation(), Flow([[Say("thinking", "analysis", None), Say("Hello.")]]))
    assert driver.say("hi") == Ended(State.FINISHED)
    assert driver.text() == "Hello."
    assert driver.text("analysis") == "thinking"
    (body,) = bodies(driver)
    assert body["client_prepare_state"] == "success"
    assert "conversation_id" not in body
    assert "parent_message_id" not in body
    assert not driver.peer.refused


def test_a_second_turn_names_conversation_and_parent() -> None:
    driver = Driver(conversation(), Flow([[Say("one")], [Say("two")], [Say("three")]]))
    for _ in range(3):
        assert driver.say("more").state is State.FINISHED
    assert driver.text() == "onetwothree"
    assert bodies(driver)[2]["conversation_id"] == driver.peer.conversation


def test_a_conversation_goes_on_in_another_process() -> None:
    peer = Flow([[Say("one")], [ECHO], [Say("two")], [Say("three")]])
    first = Driver(conversation(), peer)
    first.say("begin")
    first.say("call")
    later = conversation(id=peer.conversation, parent=peer.last_assistant())
    later._new_id = lambda: "00000000-0000-0000-0000-0000000000ff"
    second = Driver(later, peer)
    assert second.say("go on") == Ended(State.FINISHED)
    assert second.text() == "three"
    assert not second.ran, "an earlier call that is repeated is not run again"


def test_without_a_prepare_answer_the_conversation_says_failure() -> None:
    driver = Driver(conversation(), Flow([[ECHO], [Say("done")]]), prepares=False)
    assert driver.say("hi") == Ended(State.FINISHED)
    assert [body["client_prepare_state"] for body in bodies(driver)] == ["failure", "failure"]


def test_what_is_typed_and_opened_is_prepared_and_its_token_is_used() -> None:
    talk = conversation()
    peer = Flow([[Say("ok")]])
    driver = Driver(talk, peer)
    (opening,) = talk.opened()
    assert isinstance(opening, Prepare)
    assert "partial_query" not in opening.body
    talk.prepared(peer.prepare(opening.body)["conduit_token"])
    (typing,) = talk.typed("wha")
    assert isinstance(typing, Prepare)
    assert typing.body["partial_query"] == {"content": {"content_type": "text", "parts": ["wha"]}}
    talk.prepared(peer.prepare(typing.body)["conduit_token"])
    assert driver.say("what?") == Ended(State.FINISHED)
    assert not [step for step in driver.seen if isinstance(step, Prepare)], "it was prepared already"


def test_a_call_is_run_once_and_its_return_is_exactly_as_described() -> None:
    driver = Driver(conversation(), Flow([[Say("let me see", "commentary", None), ECHO], [Say("done")]]))
    assert driver.say("use it") == Ended(State.FINISHED)
    assert [(call.tool, call.text) for call in driver.ran] == [("echo", '{"message": "again"}')]
    body = bodies(driver)[1]
    (message,) = body["messages"]
    call = driver.ran[0].id
    assert body["parent_message_id"] == call
    assert body["client_prepare_state"] == "success"
    assert json.loads(message["content"]["text"]) == {
        "call_id": call,
        "result": {"message": "ran echo"},
        "tool": "echo",
    }
    assert message["metadata"] == {HIDDEN: True}
    assert driver.peer.results == [{"message": "ran echo"}]


def test_the_flag_can_be_left_out_and_a_message_is_always_there() -> None:
    talk = conversation(MANNER._replace(hidden=False))
    driver = Driver(talk, Flow([[ECHO], [Say("done")]]), run=lambda call: {"more": 1})
    assert driver.say("use it") == Ended(State.FINISHED)
    assert bodies(driver)[1]["messages"][0]["metadata"] == {}
    assert driver.peer.results == [{"message": "", "more": 1}]


def test_several_calls_of_one_stream_are_returned_one_by_one_in_their_order() -> None:
    peer = Flow([[ECHO, Call("echo", {"message": "2"}, FINISHED)], [], [ECHO], [Say("done")]])
    driver = Driver(conversation(), peer, run=lambda call: {"message": call.text})
    assert driver.say("both") == Ended(State.FINISHED)
    assert [json.loads(result["message"])["message"] for result in peer.results] == ["again", "2", "again"]


def test_results_may_come_in_another_order_than_the_calls() -> None:
    talk = conversation()
    peer = Flow([[ECHO, Call("echo", {"message": "2"})], [], [Say("done")]])
    waiting: list[LocalCall] = []

    class Later(Driver):
        def _done(self, step: turn.Step) -> list[turn.Step]:
            if isinstance(step, turn.Run):
                waiting.append(step.call)
                if len(waiting) < 2:
                    return []
                later = talk.ran(waiting[1].id, {"message": "second"})
                return [*later, *talk.ran(waiting[0].id, {"message": "first"})]
            return super()._done(step)

    assert Later(talk, peer).say("both") == Ended(State.FINISHED)
    assert [result["message"] for result in peer.results] == ["first", "second"]


def test_a_server_tool_is_shown_as_trail_and_never_run() -> None:
    script = [
        Say('{"q": 1}', None, None, "web.run"),
        Say("found", None, None, role="tool"),
        Say("Here."),
    ]
    driver = Driver(conversation(), Flow([script]))
    assert driver.say("search") == Ended(State.FINISHED)
    assert not driver.ran
    assert driver.text() == "Here."
    assert "found" in driver.text("commentary")


def test_a_local_tool_that_is_not_ours_is_shown_and_never_run() -> None:
    driver = Driver(conversation(), Flow([[Call("other", {"a": 1})]]))
    ended = driver.say("use it")
    assert ended.state is State.FAILED
    assert "local.other" in ended.reason
    assert not driver.ran
    assert '{"a": 1}' in driver.text("commentary")


def test_handoff_is_heard_with_and_without_its_prefix() -> None:
    arguments = {"prompt": "build", "reason": "files"}
    peer = Flow(
        [[Call("handoff", arguments, recipient="handoff")], [Call("handoff", arguments)], [Say("ok")]]
    )
    driver = Driver(
        conversation(), peer, run=lambda _: {"accepted": True, "thread_id": "s_1", "message": "x"}
    )
    assert driver.say("build it") == Ended(State.FINISHED)
    assert [call.tool for call in driver.ran] == ["handoff", "handoff"]


# --- streams that end badly ---


@pytest.mark.parametrize("status", ["in_progress", FINISHED])
def test_a_call_is_run_after_a_cut_only_if_its_status_says_that_it_is_whole(status: str) -> None:
    peer = Flow([[Call("echo", {"message": "x"}, status), Cut()], [Say("done")]], readable=False)
    driver = Driver(conversation(MANNER._replace(readable=False)), peer)
    ended = driver.say("use it")
    assert (ended.state, len(driver.ran)) == (
        (State.FINISHED, 1) if status == FINISHED else (State.FAILED, 0)
    )


def test_a_call_whose_text_is_cut_is_not_run() -> None:
    peer = Flow([[Call("echo", '{"message": "x', "in_progress")]], readable=False)
    driver = Driver(conversation(MANNER._replace(readable=False)), peer)
    assert driver.say("use it").state is State.FAILED
    assert not driver.ran


def test_a_cut_turn_goes_on_from_the_stored_conversation() -> None:
    peer = Flow([[Say("Hel"), Cut(40)], [Say("done")]])
    peer.stored = [[], [Call("echo", {"message": "x"}, FINISHED)]]
    driver = Driver(conversation(), peer)
    assert driver.say("use it").state is State.FINISHED
    assert driver.peer.refused == []


def test_what_was_shown_before_a_cut_is_not_shown_again() -> None:
    text = "größer als gedacht " * 30
    for less in range(1, 400, 7):
        driver = Driver(conversation(), Flow([[Say(text), Cut(less)]], seed=less))
        ended = driver.say("tell")
        assert ended.state is State.FINISHED, ended
        assert driver.text() == text


def test_a_turn_that_never_ends_is_given_up() -> None:
    driver = Driver(conversation(), Flow([[Say("half", status="in_progress", end=None), Cut()]]))
    assert driver.say("tell").state is State.FAILED
    assert len([step for step in driver.seen if isinstance(step, Read)]) == MAX_READS


def test_a_conversation_that_cannot_be_read_ends_clearly() -> None:
    driver = Driver(conversation(), Flow([[Say("half", status="in_progress"), Cut()]], readable=False))
    ended = driver.say("tell")
    assert ended.state is State.FAILED
    assert "could not be read" in ended.reason


def test_a_stored_conversation_that_does_not_follow_is_not_acted_on() -> None:
    talk = conversation()
    driver = Driver(talk, Flow([[Cut()]]))
    foreign = {
        "current_node": "x",
        "mapping": {
            "x": {"message": {"id": "x", "author": {"role": "assistant"}, "recipient": "local.echo"}}
        },
    }
    driver.peer.conversation_as_stored = lambda: foreign
    assert driver.say("tell").state is State.FAILED
    assert not driver.ran


@pytest.mark.parametrize(
    "data",
    [
        b'event: delta\ndata: {"p":"","o":"double","v":1}\n\n',
        b"data: nonsense\n\n",
        ENCODING.replace("v1", "v2").encode(),
    ],
)
def test_an_unknown_operation_fails_and_nothing_is_guessed(data: bytes) -> None:
    driver = Driver(conversation(), Flow([[ECHO, Raw(data)]]))
    ended = driver.say("use it")
    assert ended.state is State.FAILED
    assert "cannot be read" in ended.reason
    assert not driver.ran


def test_an_error_of_the_other_side_is_told() -> None:
    error = b'data: {"message":null,"conversation_id":"C","error":"try later"}\n\n'
    ended = Driver(conversation(), Flow([[Raw(error)]])).say("hi")
    assert ended == Ended(State.FAILED, "The other side reports: try later")


def test_a_refusal_ends_the_turn_and_the_next_one_begins_anew() -> None:
    peer = Flow([[Say("ok")]])
    driver = Driver(conversation(), peer, headers={"x-codex-turn-state": "1"})
    assert driver.say("hi").state is State.FAILED
    driver.headers = {}
    assert driver.say("hi") == Ended(State.FINISHED)


def test_calls_without_end_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "MAX_RETURNS", 3)
    driver = Driver(conversation(), Flow([[ECHO]] * 5))
    ended = driver.say("loop")
    assert ended.state is State.FAILED
    assert len(driver.peer.results) == 3


def test_after_a_stop_late_answers_change_nothing_and_a_new_turn_works() -> None:
    for steps in range(1, 5):
        talk = conversation()
        peer = Flow([[ECHO], [Say("late")], [Say("ok")]])
        driver = Driver(talk, peer)
        todo = talk.send("hi")
        for _ in range(steps):
            todo = [*todo[1:], *driver._done(todo[0])]
        talk.stopped()
        for late in (
            talk.prepared(None),
            talk.heard(b"x"),
            talk.closed(),
            talk.ran("c", {}),
            talk.read(None),
        ):
            assert late == []
        assert talk.challenged("late") == []
        assert talk.refused("late") == []
        assert talk.state is State.STOPPED
        peer.script[:] = [[Say("ok")]]
        if peer.current is None or talk.parent == peer.last_assistant():
            assert driver.say("again").state is State.FINISHED


# --- the contract, one deviation at a time ---


def message(body: Json) -> Json:
    found: Json = body["messages"][0]
    return found


def returned(body: Json, **changes: Any) -> None:
    content = message(body)["content"]
    text = {**json.loads(content["text"]), **changes}
    content["text"] = json.dumps({key: value for key, value in text.items() if value is not ...})


OTHER = "11111111-1111-4111-8111-111111111111"

DEVIATIONS: dict[str, tuple[Any, str]] = {
    "another call_id": (lambda b: returned(b, call_id=OTHER), "call_id"),
    "no call_id": (lambda b: returned(b, call_id=...), "call_id"),
    "no tool": (lambda b: returned(b, tool=...), "tool"),
    "another tool": (lambda b: returned(b, tool="handoff"), "tool must be"),
    "no result": (lambda b: returned(b, result=...), "result"),
    "no result.message": (lambda b: returned(b, result={"accepted": True}), "result.message"),
    "another parent": (lambda b: b.update(parent_message_id=OTHER), "parent_message_id"),
    "no parent": (lambda b: b.pop("parent_message_id"), "parent_message_id"),
    "the tool as recipient": (lambda b: message(b).update(recipient="echo"), "recipient"),
    "another channel": (lambda b: message(b).update(channel="final"), "channel"),
    "no channel": (lambda b: message(b).pop("channel"), "fields of a message"),
    "end_turn true": (lambda b: message(b).update(end_turn=True), "end_turn"),
    "no end_turn": (lambda b: message(b).pop("end_turn"), "fields of a message"),
    "a language": (lambda b: message(b)["content"].update(language="json"), "language"),
    "text content": (lambda b: message(b)["content"].update(content_type="text"), "content is code"),
    "another author": (lambda b: message(b)["author"].update(name="handoff"), "author.name"),
    "the assistant's role": (lambda b: message(b)["author"].update(role="assistant"), "role"),
    "in progress": (lambda b: message(b).update(status="in_progress"), "status"),
    "another weight": (lambda b: message(b).update(weight=0), "weight"),
    "no id": (lambda b: message(b).pop("id"), "id"),
    "the call's own id": (lambda b: message(b).update(id=b["parent_message_id"]), "id was used"),
    "other metadata": (lambda b: message(b).update(metadata={"x": 1}), "metadata"),
    "a flag that is false": (lambda b: message(b).update(metadata={HIDDEN: False}), "metadata"),
    "another conversation": (lambda b: b.update(conversation_id=OTHER), "conversation_id"),
    "no conversation": (lambda b: b.pop("conversation_id"), "conversation_id"),
    "prepare state sent": (lambda b: b.update(client_prepare_state="sent"), "client_prepare_state"),
    "prepare state failure": (lambda b: b.update(client_prepare_state="failure"), "client_prepare_state"),
    "no challenge": (lambda b: b.pop("app_attest_challenge"), "app_attest_challenge"),
    "an old challenge": (lambda b: b.update(app_attest_challenge="challenge-0"), "app_attest_challenge"),
    "another encoding": (lambda b: b.update(supported_encodings=["v2"]), "supported_encodings"),
    "no encodings": (lambda b: b.pop("supported_encodings"), "supported_encodings"),
    "no signatures": (lambda b: b.pop("local_function_signatures"), "local_function_signatures"),
    "no handoff": (lambda b: b["local_function_signatures"].pop(0), "handoff"),
    "another action": (lambda b: b.update(action="variant"), "action"),
    "no model": (lambda b: b.pop("model"), "model"),
    "a scale of another mode": (lambda b: b.update(thinking_effort="xhigh"), "thinking_effort"),
    "no timezone": (lambda b: b.pop("timezone"), "timezone"),
    "no offset": (lambda b: b.pop("timezone_offset_min"), "timezone_offset_min"),
    "partial_query": (lambda b: b.update(partial_query={}), "unknown fields"),
    "two messages": (lambda b: b["messages"].append(message(b)), "one message"),
}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_one_deviation_of_a_return_is_refused(name: str) -> None:
    deviate, rule = DEVIATIONS[name]

    def change(kind: str, body: Json) -> Json:
        body = json.loads(json.dumps(body))
        if kind == "return":
            deviate(body)
        return body

    driver = Driver(conversation(), Flow([[ECHO], [Say("done")]]), change=change)
    ended = driver.say("use it")
    assert ended.state is State.FAILED
    assert rule in ended.reason
    assert driver.peer.results == []


@pytest.mark.parametrize(
    ("deviate", "rule"),
    [
        (lambda b: b.update(client_prepare_state="success"), "client_prepare_state"),
        (lambda b: b.pop("client_prepare_state"), "client_prepare_state"),
        (lambda b: b.update(messages=[]), "unknown fields"),
        (lambda b: b.pop("model"), "model"),
    ],
)
def test_a_prepare_that_is_wrong_is_refused_and_the_turn_says_failure(deviate: Any, rule: str) -> None:
    def change(kind: str, body: Json) -> Json:
        body = json.loads(json.dumps(body))
        if kind == "prepare":
            deviate(body)
        return body

    driver = Driver(conversation(), Flow([[Say("ok")]]), change=change)
    assert driver.say("hi").state is State.FINISHED
    assert rule in driver.peer.refused[0]
    assert bodies(driver)[0]["client_prepare_state"] == "failure"


def test_both_forms_of_the_hidden_flag_are_accepted() -> None:
    for hidden in (True, False):
        driver = Driver(conversation(MANNER._replace(hidden=hidden)), Flow([[ECHO], [Say("ok")]]))
        assert driver.say("hi") == Ended(State.FINISHED)


def test_an_answer_to_a_challenge_is_good_once() -> None:
    peer = Flow([[Say("one")], [Say("two")]])
    once = peer.challenge()
    peer.challenge = lambda: once
    driver = Driver(conversation(), peer)
    assert driver.say("hi").state is State.FINISHED
    assert "was used" in driver.say("hi").reason


# --- the table ---


def test_every_state_knows_what_may_come_late() -> None:
    for state, event in product(State, ("ran", "opened", "typed")):
        assert TURN.next(state, event) is state
    for state, event in product(RESTING, ("heard", "closed", "read", "refused", "stopped", "challenged")):
        assert TURN.next(state, event) is state


texts = st.text(max_size=20)
channels = st.sampled_from(["final", "commentary", "analysis", None])
items = st.one_of(
    st.builds(Say, texts, channels, st.just(None)),
    st.builds(Call, st.sampled_from(["echo", "handoff"]), st.dictionaries(texts, texts, max_size=2)),
)


@given(st.lists(st.lists(items, max_size=3), max_size=4), st.integers(0, 2**32))
def test_any_scripted_turn_ends_and_every_call_is_returned_once(
    scripts: list[list[Say | Call]], seed: int
) -> None:
    calls = sum(isinstance(item, Call) for script in scripts for item in script)
    peer = Flow([*scripts, *([[]] * calls), [Say("the end")] * 1], seed=seed)
    run = {"accepted": True, "thread_id": "s", "message": "m"}
    talk: Conversation = conversation(MANNER._replace(readable=False))
    driver = Driver(talk, peer, run=lambda _: {**run})
    ended = driver.say("go")
    assert ended.state in (State.FINISHED, State.FAILED)
    assert len({call.id for call in driver.ran}) == len(driver.ran) == len(peer.results)
    assert not peer.refused
