"""What every Link promises (`ports.Link`), on each of its implementations."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

import anyio
import pytest

from chappie_bridge.inproc import connect
from chappie_bridge.wire.errors import Lost, TooLarge
from chappie_bridge.wire.ids import DeviceId, InstanceId, SessionId
from chappie_bridge.wire.link import CHUNK_BYTES
from chappie_bridge.wire.messages import MAX_MESSAGE, Message, Notice, Withdraw
from chappie_bridge.wire.ports import Link, Peer
from tests.peer.link_rig import DEVICE, LOCAL, TOKEN, a_dial, a_hub, room, running
from tests.peer.recorder import Recorder

pytestmark = pytest.mark.anyio


class Ends(NamedTuple):
    """The attendants at both ends; both have heard `link_up`."""

    agent: Recorder
    broker: Recorder
    device: DeviceId


Answer = Callable[[Link, Message], None]
Pair = Callable[..., AbstractAsyncContextManager[Ends]]


@asynccontextmanager
async def in_process(agent: Recorder, broker: Recorder) -> AsyncIterator[Ends]:
    end, _ = connect(
        agent,
        Peer("broker", LOCAL, InstanceId("i_broker"), ""),
        broker,
        Peer("agent", LOCAL, InstanceId("i_dial"), "n"),
    )
    await agent.until_events("up")
    await broker.until_events("up")
    yield Ends(agent, broker, LOCAL)
    end.close()
    await broker.until(lambda: broker.names[-1] == "gone")
    await agent.until(lambda: agent.names[-1] == "gone")


@asynccontextmanager
async def over_unix(agent: Recorder, broker: Recorder) -> AsyncIterator[Ends]:
    with room() as directory:
        async with a_hub(broker).serve_unix(directory / "s"):
            async with running(a_dial(directory / "s", agent, name="n")):
                await agent.until_events("up")
                yield Ends(agent, broker, LOCAL)
            await broker.until(lambda: broker.names[-1] == "gone")
            await agent.until(lambda: agent.names[-1] == "gone")


@asynccontextmanager
async def over_tcp(agent: Recorder, broker: Recorder) -> AsyncIterator[Ends]:
    async with a_hub(broker).serve_tcp("127.0.0.1", 0) as port:
        async with running(a_dial(f"ws://127.0.0.1:{port}", agent, name="n", token=TOKEN)):
            await agent.until_events("up")
            yield Ends(agent, broker, DEVICE)
        await broker.until(lambda: broker.names[-1] == "gone")
        await agent.until(lambda: agent.names[-1] == "gone")


@pytest.fixture(params=[in_process, over_unix, over_tcp], ids=lambda pair: pair.__name__)
def pair(request: pytest.FixtureRequest) -> Pair:
    found: Pair = request.param
    return found


def numbers(recorder: Recorder) -> list[int]:
    return [message.request for message in recorder.messages if isinstance(message, Withdraw)]


async def test_both_ends_hear_of_the_link_once_and_who_is_there(pair: Pair) -> None:
    async with pair(Recorder(), Recorder()) as ends:
        assert ends.agent.names == ends.broker.names == ["up"]
        assert ends.agent.link.up
        assert ends.broker.link.up
        assert ends.broker.link.peer == Peer("agent", ends.device, InstanceId("i_dial"), "n")
        assert ends.agent.link.peer[:3] == ("broker", ends.device, InstanceId("i_broker"))


async def test_a_goodbye_ends_the_link_at_both_ends(pair: Pair) -> None:
    async with pair(Recorder(), Recorder()) as ends:
        links = ends.agent.link, ends.broker.link
    assert ends.agent.events == [("up", links[0]), ("gone", links[0])]
    assert ends.broker.events == [("up", links[1]), ("gone", links[1])]
    for link in links:
        assert not link.up
        with pytest.raises(Lost):
            await link.send_chunk(1, 0, b"late")


async def test_messages_arrive_once_and_in_order_in_both_directions(pair: Pair) -> None:
    async with pair(Recorder(), Recorder()) as ends:
        for number in range(500):
            ends.agent.link.send(Withdraw(request=number))
            ends.broker.link.send(Withdraw(request=-number))
        await ends.broker.until(lambda: len(ends.broker.messages) >= 500)
        await ends.agent.until(lambda: len(ends.agent.messages) >= 500)
        assert numbers(ends.broker) == list(range(500))
        assert numbers(ends.agent) == [-number for number in range(500)]


async def test_sending_never_delivers_from_inside_the_sender(pair: Pair) -> None:
    """Whoever sends may be in the middle of a change of its own."""
    depth = 0

    def bounce(link: Link, message: Message) -> None:
        nonlocal depth
        depth += 1
        assert depth == 1
        if isinstance(message, Withdraw) and message.request > 0:
            link.send(Withdraw(request=message.request - 1))
        depth -= 1

    async with pair(Recorder(bounce), Recorder(bounce)) as ends:
        ends.agent.link.send(Withdraw(request=101))
        assert ends.broker.messages == []
        await ends.agent.until(lambda: 0 in numbers(ends.agent))
        assert numbers(ends.broker) == list(range(101, 0, -2))
        assert numbers(ends.agent) == list(range(100, -1, -2))


async def test_a_message_near_the_cap_passes(pair: Pair) -> None:
    """B61 B76: far above 64 KiB, and a small one after it."""
    big = Notice(session=SessionId("s"), text="é\n" * ((MAX_MESSAGE - 1000) // 4))
    async with pair(Recorder(), Recorder()) as ends:
        ends.broker.link.send(big)
        ends.broker.link.send(Withdraw(request=1))
        await ends.agent.until(lambda: len(ends.agent.messages) == 2)
        assert ends.agent.messages == [big, Withdraw(request=1)]


@pytest.mark.parametrize("pair", [over_unix, over_tcp], ids=lambda pair: pair.__name__)
async def test_a_message_over_the_cap_is_an_error_for_it_alone(pair: Pair) -> None:
    """B61 B76: 3 MB over the link: a typed error, and the link stays up."""
    async with pair(Recorder(), Recorder()) as ends:
        with pytest.raises(TooLarge):
            ends.agent.link.send(Notice(session=SessionId("s"), text="x" * 3_000_000))
        ends.agent.link.send(Withdraw(request=1))
        await ends.broker.until(lambda: ends.broker.messages == [Withdraw(request=1)])
        assert ends.broker.names == ["up"]


async def test_a_fault_behind_one_message_does_not_cut_the_link(pair: Pair) -> None:
    def fail(link: Link, message: Message) -> None:
        if message == Withdraw(request=1):
            raise RuntimeError("a bug behind the link")

    async with pair(Recorder(), Recorder(fail)) as ends:
        ends.agent.link.send(Withdraw(request=1))
        ends.agent.link.send(Withdraw(request=2))
        await ends.broker.until(lambda: numbers(ends.broker) == [1, 2])
        assert ends.broker.names == ["up"]


async def test_chunks_arrive_as_they_are(pair: Pair) -> None:
    data = bytes(range(256)) * (CHUNK_BYTES // 256)
    async with pair(Recorder(), Recorder()) as ends:
        for place in range(20):
            await ends.agent.link.send_chunk(2**64 - 1, place * CHUNK_BYTES, data)
        await ends.broker.until(lambda: len(ends.broker.chunks) == 20)
        assert ends.broker.chunks == [(2**64 - 1, place * CHUNK_BYTES, data) for place in range(20)]


async def test_a_message_overtakes_a_long_stream_of_chunks(pair: Pair) -> None:
    order: list[str] = []
    chunk = bytes(CHUNK_BYTES)

    class Slow(Recorder):
        def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> None:
            order.append("chunk")
            super().received_chunk(link, stream, offset, b"")

        def received(self, link: Link, message: Message) -> None:
            order.append("message")
            super().received(link, message)

    async with pair(Recorder(), Slow()) as ends:

        async def stream() -> None:
            for place in range(200):
                await ends.agent.link.send_chunk(1, place * CHUNK_BYTES, chunk)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream)
            await ends.broker.until(lambda: len(order) >= 1)
            ends.agent.link.send(Withdraw(request=1))
        await ends.broker.until(lambda: len(order) == 201)
        # What the kernel already holds comes first, and nothing of ours but one chunk.
        assert order.index("message") < 100
