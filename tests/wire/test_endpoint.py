"""One end of a link, with a socket made of lists: no event loop is needed to test it."""

from collections.abc import Callable

import pytest

from chappie_bridge.wire.endpoint import ACK_AFTER, NOBODY, Endpoint
from chappie_bridge.wire.errors import Lost, Overloaded
from chappie_bridge.wire.ids import DeviceId, InstanceId, OperationId, SessionId
from chappie_bridge.wire.link import (
    ACK_EVERY,
    REPLAY_MESSAGES,
    Ack,
    LinkFault,
    Numbered,
    decode,
    encode,
    frame,
)
from chappie_bridge.wire.messages import Done, Failed, Message, Notice, Recall, Typed, Withdraw
from chappie_bridge.wire.ports import Peer
from chappie_bridge.wire.requests import ListSessions
from tests.peer.recorder import Recorder

AGENT = Peer("agent", DeviceId("d"), InstanceId("i_a"), "")
CALLER = Peer("caller", DeviceId("d"), InstanceId("i_c"), "")


class ListSocket:
    """Keeps what was written."""

    def __init__(self) -> None:
        self.frames: list[str] = []

    def write(self, frame: str) -> None:
        self.frames.append(frame)

    async def write_chunk(self, head: bytes, data: bytes) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def items(self) -> list[object]:
        return [decode(frame) for frame in self.frames]


class Timers:
    """Keeps what shall be called later."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, delay: float, call: Callable[[], None]) -> None:
        self.set.append((delay, call))

    def fire(self) -> None:
        timers, self.set = self.set, []
        for _, call in timers:
            call()


def endpoint(peer: Peer = NOBODY) -> tuple[Endpoint, Recorder, ListSocket, Timers]:
    heard, timers, socket = Recorder(), Timers(), ListSocket()
    end = Endpoint(peer, heard, timers)
    end.attach(socket, [])
    return end, heard, socket, timers


def notice(text: str) -> Message:
    return Notice(session=SessionId("s"), text=text)


def test_what_is_sent_while_the_socket_is_down_leaves_with_the_next_one() -> None:
    """B31: a cut is the link's affair."""
    end, _, first, _ = endpoint()
    end.send(notice("1"))
    assert end.detach(first)
    assert not end.up
    end.send(notice("2"))
    assert first.frames == [frame(1, 0, encode(notice("1")))]

    second = ListSocket()
    end.attach(second, end.missed_by(1))
    assert end.up
    assert second.items() == [Numbered(2, 0, notice("2"))]


def test_an_older_socket_has_no_say_about_the_link() -> None:
    """B33: the old socket's clean-up leaves its successor alone."""
    end, _, first, _ = endpoint()
    second = ListSocket()
    end.attach(second, [])
    assert not end.detach(first)
    assert end.up
    assert end.socket is second


def test_a_repeated_message_is_handed_over_once() -> None:
    """B41: after a replay the same message comes twice."""
    end, heard, _, _ = endpoint()
    for _ in range(2):
        end.feed_text(frame(1, 0, encode(notice("1"))))
    assert heard.messages == [notice("1")]


def test_what_came_in_is_acknowledged_by_what_goes_out() -> None:
    end, _, socket, timers = endpoint()
    end.feed_text(frame(1, 0, encode(notice("1"))))
    end.send(Withdraw(request=1))
    assert socket.items() == [Numbered(1, 1, Withdraw(request=1))]
    timers.fire()
    assert len(socket.frames) == 1


def test_what_came_in_is_acknowledged_after_a_while_if_nothing_goes_out() -> None:
    end, _, socket, timers = endpoint()
    for number in (1, 2):
        end.feed_text(frame(number, 0, encode(notice("x"))))
    assert [delay for delay, _ in timers.set] == [ACK_AFTER]
    assert socket.frames == []
    timers.fire()
    assert socket.items() == [Ack(2)]


def test_a_flood_is_acknowledged_without_waiting() -> None:
    end, _, socket, _ = endpoint()
    for number in range(1, 2 * ACK_EVERY + 1):
        end.feed_text(frame(number, 0, encode(notice("x"))))
    assert socket.items() == [Ack(ACK_EVERY), Ack(2 * ACK_EVERY)]


def test_a_timer_that_fires_while_the_socket_is_down_does_nothing() -> None:
    end, _, socket, timers = endpoint()
    end.feed_text(frame(1, 0, encode(notice("x"))))
    end.detach(socket)
    timers.fire()
    assert socket.frames == []


def test_an_unknown_request_is_answered_unsupported_and_the_link_goes_on() -> None:
    end, heard, socket, _ = endpoint()
    unknown = end.feed_text('{"n":1,"a":0,"m":{"type":"teleport","request":9}}')
    assert unknown is not None
    assert unknown.type == "teleport"
    (answer,) = socket.items()
    assert isinstance(answer, Numbered)
    assert isinstance(answer.message, Failed)
    assert (answer.message.request, answer.message.failure.code) == (9, "unsupported")
    end.feed_text(frame(2, 1, encode(notice("still here"))))
    assert heard.messages == [notice("still here")]


@pytest.mark.parametrize(
    "body",
    [
        '{"type":"teleport"}',  # nobody waits
        '{"type":"registered","request":3,"session":7}',  # a reply: our answer would hit request 3 of theirs
    ],
)
def test_an_unknown_message_that_nobody_waits_for_is_not_answered(body: str) -> None:
    end, heard, socket, _ = endpoint()
    assert end.feed_text(f'{{"n":1,"a":0,"m":{body}}}') is not None
    assert socket.frames == []
    assert heard.messages == []


def test_a_role_sends_only_its_own_messages() -> None:
    """S18: a caller cannot speak as an agent, nor an agent as the broker."""
    for peer, message in (
        (AGENT, ListSessions(request=4)),
        (AGENT, Recall(request=4, session=SessionId("s"), operation=OperationId("o"))),
        (CALLER, Typed(request=4, session=SessionId("s"), content=())),
    ):
        end, heard, socket, _ = endpoint(peer)
        unknown = end.feed_text(frame(1, 0, encode(message)))
        assert unknown is not None
        assert heard.messages == []
        (answer,) = socket.items()
        assert isinstance(answer, Numbered)
        assert isinstance(answer.message, Failed)
    end, heard, _, _ = endpoint(CALLER)
    end.feed_text(frame(1, 0, encode(ListSessions(request=4))))
    end.feed_text(frame(2, 0, encode(Done(request=4))))  # anybody's
    assert len(heard.messages) == 2


def test_a_second_greeting_in_the_middle_is_a_fault() -> None:
    end, _, _, _ = endpoint()
    with pytest.raises(LinkFault, match="Hello"):
        end.feed_text('{"hello":{"protocol":1,"role":"agent","instance":"i"}}')


def test_a_full_window_refuses_and_loses_nothing() -> None:
    """S22: the queue towards a peer that takes nothing is bounded, with a retryable error."""
    end, _, socket, _ = endpoint()
    end.detach(socket)
    for _ in range(REPLAY_MESSAGES):
        end.send(Withdraw(request=1))
    with pytest.raises(Overloaded) as refused:
        end.send(Withdraw(request=1))
    assert refused.value.retryable
    assert end.unacknowledged == REPLAY_MESSAGES
    end.attach(socket, end.missed_by(0))
    end.feed_text(f'{{"a":{REPLAY_MESSAGES}}}')
    end.send(Withdraw(request=1))


def test_forgetting_starts_from_nothing_on_both_sides() -> None:
    end, heard, socket, _ = endpoint()
    end.send(notice("old"))
    end.feed_text(frame(1, 0, encode(notice("x"))))
    end.forget()
    assert (end.received, end.unacknowledged) == (0, 0)
    end.feed_text(frame(1, 0, encode(notice("y"))))
    end.send(notice("new"))
    assert socket.items()[-1] == Numbered(1, 1, notice("new"))
    assert heard.messages == [notice("x"), notice("y")]


def test_chunks_are_handed_over_as_they_are() -> None:
    end, heard, _, _ = endpoint()
    end.feed_chunk(bytes(7) + b"\x01" + bytes(7) + b"\x02", b"data")
    assert heard.chunks == [(1, 2, b"data")]
    with pytest.raises(LinkFault):
        end.feed_chunk(b"short", b"")


@pytest.mark.anyio
async def test_a_chunk_over_a_link_that_is_down_is_lost() -> None:
    end, _, socket, _ = endpoint()
    end.detach(socket)
    with pytest.raises(Lost):
        await end.send_chunk(1, 0, b"data")
