"""The pure link: what is encoded comes back, what is lost is replayed, nothing arrives twice."""

import json
from collections import deque
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chappie_bridge.wire.errors import Failure, Forbidden, Overloaded, TooLarge, VersionMismatch, from_failure
from chappie_bridge.wire.ids import DeviceId, InstanceId, OperationId, SessionId
from chappie_bridge.wire.link import (
    ACK_EVERY,
    CHUNK_HEADER,
    Ack,
    Hello,
    LinkFault,
    Numbered,
    Unknown,
    Welcome,
    Window,
    check_protocol,
    chunk_head,
    decode,
    encode,
    frame,
    frame_ack,
    frame_hello,
    frame_refused,
    frame_welcome,
    unpack_head,
    unsupported,
)
from chappie_bridge.wire.messages import MAX_MESSAGE, Cancel, Message, Notice, Withdraw
from chappie_bridge.wire.table import MESSAGES
from tests.wire.strategies import json_values, messages, words

NUMBERS = st.integers(min_value=0, max_value=2**63)


@pytest.mark.parametrize("kind", MESSAGES)
def test_every_message_comes_back_as_it_was(kind: str) -> None:
    @settings(max_examples=15, deadline=None)
    @given(messages(kind), NUMBERS, NUMBERS)
    def comes_back(message: Message, number: int, ack: int) -> None:
        assert decode(frame(number, ack, encode(message))) == Numbered(number, ack, message)

    comes_back()


@given(
    st.binary() | words | json_values.map(json.dumps) | st.dictionaries(words, json_values).map(json.dumps)
)
def test_rubbish_is_a_link_fault_and_nothing_else(text: str | bytes) -> None:
    with suppress(LinkFault):
        decode(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[1]",
        "{}",
        '{"a":-1}',
        '{"a":1.5}',
        '{"a":true}',
        '{"n":1,"a":0,"m":[]}',
        '{"n":"1","a":0,"m":{}}',
        '{"a":0,"m":{"type":"done"}}',
        '{"hello":{}}',
        '{"welcome":3}',
        '{"refused":{}}',
        b'{"n":1,"a":0,"m":{"type":"notice","session":"s","text":"\xff"}}',
    ],
)
def test_what_no_peer_of_ours_sends_is_a_link_fault(text: str | bytes) -> None:
    with pytest.raises(LinkFault):
        decode(text)


def test_unknown_keys_are_ignored_so_versions_can_mix() -> None:
    body = '{"type":"withdraw","request":7,"later":{"than":"us"}}'
    assert decode(f'{{"n":1,"a":0,"m":{body},"z":1}}') == Numbered(1, 0, Withdraw(request=7))


def test_an_unknown_message_is_named_and_can_be_answered() -> None:
    answered = decode('{"n":4,"a":2,"m":{"type":"teleport","request":9}}')
    assert answered == Unknown(4, 2, "teleport", 9)
    assert isinstance(answered, Unknown)
    assert "teleport" in str(unsupported(answered))
    assert decode('{"n":4,"a":2,"m":{"type":"teleport"}}') == Unknown(4, 2, "teleport", None)
    assert decode('{"n":4,"a":2,"m":{"type":"teleport","request":"9"}}') == Unknown(4, 2, "teleport", None)
    assert decode('{"n":4,"a":2,"m":{"request":true}}') == Unknown(4, 2, "None", None)


def test_a_newer_form_of_a_known_message_is_answered_like_an_unknown_one() -> None:
    found = decode('{"n":1,"a":0,"m":{"type":"recall","request":3,"session":{"new":"form"}}}')
    assert found == Unknown(1, 0, "recall", 3)


def test_handshake_frames_come_back_as_they_were() -> None:
    hello = Hello(
        protocol=1, role="agent", instance=InstanceId("i_1"), of=InstanceId("i_b"), received=12, name="é"
    )
    welcome = Welcome(protocol=1, instance=InstanceId("i_b"), device=DeviceId("d"), resumed=True, received=3)
    assert decode(frame_hello(hello)) == hello
    assert decode(frame_welcome(welcome)) == welcome
    refused = decode(frame_refused(Forbidden("No.")))
    assert isinstance(refused, Failure)
    assert isinstance(from_failure(refused), Forbidden)
    assert decode(frame_ack(5)) == Ack(5)


def test_a_message_over_the_cap_is_refused_before_it_has_a_number() -> None:
    """B76: 3 MB over the link is a typed error for that message only."""
    with pytest.raises(TooLarge):
        encode(Notice(session=SessionId("s"), text="x" * (3 * MAX_MESSAGE)))
    with pytest.raises(TooLarge):  # the cap counts bytes, not characters
        encode(Notice(session=SessionId("s"), text="é" * (MAX_MESSAGE // 2)))
    fits = encode(Notice(session=SessionId("s"), text="x" * (MAX_MESSAGE - 100)))
    assert len(fits) <= MAX_MESSAGE


def test_an_older_protocol_than_any_we_speak_is_refused() -> None:
    check_protocol(1)
    check_protocol(99)
    with pytest.raises(VersionMismatch):
        check_protocol(0)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_the_head_of_a_chunk_comes_back_as_it_was(stream: int, offset: int) -> None:
    head = chunk_head(stream, offset)
    assert len(head) == CHUNK_HEADER
    assert unpack_head(head) == (stream, offset)


@given(st.binary(max_size=CHUNK_HEADER - 1))
def test_a_chunk_shorter_than_its_header_is_a_link_fault(data: bytes) -> None:
    with pytest.raises(LinkFault):
        unpack_head(data)


class Side:
    """A window, what it was told to say, what it heard, and the frames on their way to it."""

    def __init__(self) -> None:
        self.window = Window()
        self.said: list[int] = []
        self.heard: list[int] = []
        self.coming: deque[str] = deque()

    def hear(self, text: str) -> None:
        item = decode(text)
        assert isinstance(item, Numbered | Ack)
        if self.window.take(item):
            assert isinstance(item, Numbered)
            assert isinstance(item.message, Withdraw)
            self.heard.append(item.message.request)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["say", "say", "say", "deliver", "deliver", "twice", "ack", "cut"]),
        st.sampled_from([0, 1]),
        st.integers(0, 3),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_each_message_arrives_once_and_in_order_over_every_cut(steps: list[tuple[str, int, int]]) -> None:
    """B41 B44: frames are lost with their socket, delivered late, or twice; the model hears each once."""
    sides = (Side(), Side())

    def reconnect() -> None:
        for near, far in (sides, sides[::-1]):
            near.coming.clear()
            near.coming.extend(far.window.replay(near.window.received))

    for step, which, count in steps:
        near, far = sides[which], sides[1 - which]
        if step == "say":
            near.said.append(len(near.said))
            far.coming.append(near.window.number(encode(Withdraw(request=near.said[-1]))))
        elif step == "ack":
            far.coming.append(frame_ack(near.window.acknowledge()))
        elif step == "cut":  # the first `count` frames on their way still arrive, the rest are lost
            for _ in range(min(count, len(near.coming))):
                near.hear(near.coming.popleft())
            reconnect()
        elif near.coming:
            text = near.coming.popleft()
            near.hear(text)
            if step == "twice":
                near.hear(text)
        assert near.heard == far.said[: len(near.heard)]
    reconnect()
    for side in sides:
        while side.coming:
            side.hear(side.coming.popleft())
    assert sides[0].heard == sides[1].said
    assert sides[1].heard == sides[0].said
    for near, far in (sides, sides[::-1]):
        near.hear(frame_ack(far.window.acknowledge()))
        assert near.window.unacknowledged == 0


def test_a_gap_is_a_link_fault() -> None:
    window = Window()
    assert window.take(Numbered(1, 0, Withdraw(request=1)))
    with pytest.raises(LinkFault):
        window.take(Numbered(3, 0, Withdraw(request=1)))


def test_acknowledging_what_was_never_sent_is_a_link_fault() -> None:
    window = Window()
    window.number("{}")
    with pytest.raises(LinkFault):
        window.take(Ack(2))
    with pytest.raises(LinkFault):
        window.replay(2)


def test_a_peer_that_never_acknowledges_overloads_its_own_link_only() -> None:
    """S22: both bounds of the replay buffer hold, and an acknowledgement frees it."""
    few = Window(max_messages=2)
    few.number("{}")
    few.number("{}")
    with pytest.raises(Overloaded):
        few.number("{}")
    few.take(Ack(1))
    few.number("{}")

    small = Window(max_bytes=10)
    small.number("x" * 6)
    with pytest.raises(Overloaded):
        small.number("x" * 5)
    small.take(Ack(1))
    small.number("x" * 10)


def test_an_acknowledgement_is_owed_after_a_number_of_messages() -> None:
    window = Window()
    for number in range(1, ACK_EVERY):
        window.take(Numbered(number, 0, Withdraw(request=1)))
    assert not window.owes_ack()
    window.take(Numbered(ACK_EVERY, 0, Withdraw(request=1)))
    assert window.owes_ack()
    assert window.acknowledge() == ACK_EVERY
    assert not window.owes_ack()


def test_replayed_frames_keep_their_numbers_and_acknowledge_what_is_here_now() -> None:
    window = Window()
    cancel = Cancel(operation=OperationId("o"), session=SessionId("s"), reason="")
    window.number(encode(cancel))
    window.number(encode(cancel))
    window.take(Numbered(1, 1, Withdraw(request=1)))
    assert [decode(text) for text in window.replay(1)] == [Numbered(2, 1, cancel)]
