"""The dialling end of a link, on real sockets and through a relay that fails where a test says."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from chappie_agents import dial as dialling
from chappie_agents.dial import FIRST_PAUSE, LONGEST_PAUSE, NEAR_PAUSE, Dial
from websockets.asyncio.server import ServerConnection, serve, unix_serve
from websockets.typing import Subprotocol

from chappie_bridge.wire.errors import BadArguments, BridgeError, Forbidden, Overloaded, VersionMismatch
from chappie_bridge.wire.ids import DeviceId, InstanceId
from chappie_bridge.wire.link import SUBPROTOCOL, Welcome, decode, encode, frame, frame_refused, frame_welcome
from chappie_bridge.wire.messages import Withdraw
from tests.peer.flaky import Fault, Flaky
from tests.peer.link_rig import LOCAL, TOKEN, a_dial, a_hub, room, running
from tests.peer.recorder import Recorder

pytestmark = pytest.mark.anyio

OURS = [Subprotocol(SUBPROTOCOL)]


class Pauses:
    """Instead of sleeping: notes how long it would have been, and lets the test act."""

    def __init__(self, then: Callable[[int], None] = lambda count: None) -> None:
        self.taken: list[float] = []
        self._then = then

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        self._then(len(self.taken))
        await asyncio.sleep(0)


@asynccontextmanager
async def talking(
    *, to_broker: dict[int, Fault] | None = None, to_dial: dict[int, Fault] | None = None
) -> AsyncIterator[tuple[Recorder, Recorder, Flaky]]:
    """An agent and a broker with a flaky relay between them."""
    agent, broker = Recorder(), Recorder()
    with room() as directory:
        flaky = Flaky(directory / "f", directory / "s", to_broker=to_broker, to_dial=to_dial)
        async with (
            a_hub(broker).serve_unix(directory / "s"),
            flaky.running(),
            running(a_dial(directory / "f", agent, pause=Pauses())),
        ):
            await agent.until(lambda: bool(agent.events))
            yield agent, broker, flaky


def numbers(recorder: Recorder) -> list[int]:
    return [message.request for message in recorder.messages if isinstance(message, Withdraw)]


# --- cuts ---


@pytest.mark.parametrize("direction", ["to_broker", "to_dial"])
@pytest.mark.parametrize(
    ("fault", "place"),
    [(fault, place) for fault in ("cut", "cut after") for place in (1, 2, 3, 6)]
    + [("twice", place) for place in (2, 3, 6)],
)
async def test_each_message_arrives_once_wherever_the_socket_breaks(
    fault: Fault, direction: str, place: int
) -> None:
    """B31 B41 B44: cut or repeated at the Hello, the Welcome, the first, a later message."""
    async with talking(**{direction: {place: fault}}) as (agent, broker, flaky):
        await broker.until(lambda: bool(broker.events))
        link = broker.events[0][1]
        for number in range(8):
            agent.events[0][1].send(Withdraw(request=number))
            link.send(Withdraw(request=100 + number))
        await broker.until(lambda: len(broker.messages) >= 8)
        await agent.until(lambda: len(agent.messages) >= 8)
        assert numbers(broker) == list(range(8))
        assert numbers(agent) == list(range(100, 108))
        assert agent.names[0] == broker.names[0] == "up"
        assert "gone" not in agent.names + broker.names
        assert flaky.connections == (1 if fault == "twice" else 2)


async def test_many_cuts_in_a_row_lose_nothing() -> None:
    """B31: every seventh frame in each direction is the last of its socket."""
    cuts: dict[int, Fault] = dict.fromkeys(range(4, 200, 7), "cut")
    async with talking(to_broker=dict(cuts), to_dial=dict(cuts)) as (agent, broker, flaky):
        for number in range(100):
            agent.link.send(Withdraw(request=number))
            broker.events[0][1].send(Withdraw(request=number))
            await anyio.lowlevel.checkpoint()
        await broker.until(lambda: len(broker.messages) >= 100)
        await agent.until(lambda: len(agent.messages) >= 100)
        assert numbers(broker) == numbers(agent) == list(range(100))
        assert flaky.connections > 3
        assert {link for _, link in broker.events} == {broker.link}


async def test_messages_wait_for_the_first_socket() -> None:
    agent, broker = Recorder(), Recorder()
    with room() as directory:
        dial = a_dial(directory / "s", agent)
        assert not dial.up
        for number in range(3):
            dial.send(Withdraw(request=number))
        async with a_hub(broker).serve_unix(directory / "s"), running(dial):
            await broker.until(lambda: len(broker.messages) == 3)
            assert numbers(broker) == [0, 1, 2]


async def test_ten_thousand_messages_that_waited_are_replayed() -> None:
    """B31: what waited while the broker was away arrives, message for message."""
    agent, broker = Recorder(), Recorder()
    with room() as directory:
        dial = a_dial(directory / "s", agent)
        for _ in range(10_000):
            dial.send(Withdraw(request=2**40))
        async with a_hub(broker).serve_unix(directory / "s"), running(dial):
            await broker.until(lambda: len(broker.messages) == 10_000)
            await anyio.wait_all_tasks_blocked()
            assert broker.names == ["up"]


# --- faults ---


@pytest.mark.parametrize(
    "faults",
    [
        {"to_broker": {2: "drop"}},
        {"to_dial": {2: "drop"}},
        {"to_broker": {2: "garble"}},
        {"to_dial": {2: "garble"}},
    ],
    ids=str,
)
async def test_after_nonsense_both_ends_begin_again(faults: dict[str, dict[int, Fault]]) -> None:
    """A replay would only repeat it: neither side keeps a memory the other may not share."""
    async with talking(**faults) as (agent, broker, _):
        for number in (1, 2):
            agent.link.send(Withdraw(request=number))
            broker.link.send(Withdraw(request=number))
        await agent.until(lambda: agent.names == ["up", "gone", "up"])
        await broker.until(lambda: broker.names == ["up", "gone", "up"])
        assert agent.events[0][1] is agent.events[2][1]  # a Dial stays one peer
        assert broker.events[0][1] is broker.events[1][1] is not broker.events[2][1]
        agent.messages.clear()
        broker.messages.clear()
        agent.link.send(Withdraw(request=7))
        broker.link.send(Withdraw(request=8))
        await broker.until(lambda: numbers(broker) == [7])
        await agent.until(lambda: numbers(agent) == [8])


async def test_a_broker_that_talks_before_its_welcome_is_left() -> None:
    attempts = 0

    async def babble(connection: ServerConnection) -> None:
        nonlocal attempts
        attempts += 1
        await connection.send(frame(1, 0, encode(Withdraw(request=1))))
        await connection.wait_closed()
        assert connection.close_code == 1002
        if attempts == 3:
            done.set()

    agent, done = Recorder(), anyio.Event()
    with room() as directory:
        async with (
            unix_serve(babble, directory / "s", subprotocols=OURS),
            running(a_dial(directory / "s", agent, pause=Pauses())),
        ):
            await done.wait()
            assert agent.events == []


# --- backing off ---


async def test_twenty_refused_attempts_back_off_and_leave_one_link() -> None:
    """B47: exponential with jitter, health tells, and one live channel at the end."""
    agent, broker = Recorder(), Recorder()
    reached = anyio.Event()
    with room() as directory:
        flaky = Flaky(directory / "f", directory / "s")

        def then(count: int) -> None:
            if count == 20:
                reached.set()

        pauses = Pauses(then)
        dial = a_dial(directory / "f", agent, jitter=lambda: 1.0, pause=pauses)
        async with running(dial):
            await reached.wait()
            assert dial.failures >= 19
            assert pauses.taken[:20] == [min(FIRST_PAUSE * 2.0**count, NEAR_PAUSE) for count in range(20)]
            assert agent.events == []
            async with a_hub(broker).serve_unix(directory / "s"), flaky.running():
                await agent.until_events("up")
                assert flaky.connections == 1
                assert broker.names == ["up"]


async def test_a_broker_of_another_machine_is_tried_less_and_less_often() -> None:
    """B47: half a minute at most."""
    taken = anyio.Event()
    pauses = Pauses(lambda count: taken.set() if count == 12 else None)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - not Django's
    async with running(a_dial(f"ws://127.0.0.1:{port}", Recorder(), jitter=lambda: 1.0, pause=pauses)):
        await taken.wait()
    assert pauses.taken[:12] == [min(FIRST_PAUSE * 2.0**count, LONGEST_PAUSE) for count in range(12)]


async def test_jitter_spreads_each_pause_over_its_second_half() -> None:
    for jitter, expected in ((0.0, FIRST_PAUSE / 2), (0.5, FIRST_PAUSE * 0.75), (1.0, FIRST_PAUSE)):
        taken = anyio.Event()
        pauses = Pauses(lambda count, taken=taken: taken.set())
        with room() as directory:
            async with running(a_dial(directory / "s", Recorder(), jitter=lambda j=jitter: j, pause=pauses)):
                await taken.wait()
        assert pauses.taken[0] == pytest.approx(expected)


async def test_a_link_that_breaks_as_soon_as_it_is_up_backs_off_too() -> None:
    """B47: reconnecting is no success; staying up is."""
    agent = Recorder()
    enough = anyio.Event()
    pauses = Pauses(lambda count: enough.set() if count == 6 else None)

    async def slam(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(
            frame_welcome(
                Welcome(protocol=1, instance=InstanceId("i_b"), device=DeviceId("d"), resumed=False)
            )
        )
        connection.transport.abort()

    with room() as directory:
        async with (
            unix_serve(slam, directory / "s", subprotocols=OURS),
            running(a_dial(directory / "s", agent, jitter=lambda: 1.0, pause=pauses)),
        ):
            await enough.wait()
    assert pauses.taken[:6] == [min(FIRST_PAUSE * 2.0**count, NEAR_PAUSE) for count in range(6)]


async def test_a_steady_link_that_breaks_is_dialled_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "STEADY", 0.0)
    pauses = Pauses()
    agent, broker = Recorder(), Recorder()
    with room() as directory:
        flaky = Flaky(directory / "f", directory / "s", to_broker={2: "cut", 4: "cut", 6: "cut"})
        dial = a_dial(directory / "f", agent, jitter=lambda: 1.0, pause=pauses)
        async with a_hub(broker).serve_unix(directory / "s"), flaky.running(), running(dial):
            await agent.until_events("up")
            for number in range(3):
                dial.send(Withdraw(request=number))
                await broker.until(lambda number=number: len(broker.messages) == number + 1)
            assert pauses.taken == [FIRST_PAUSE] * 3
            assert dial.failures == 1


async def test_a_broker_that_never_answers_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """B44: a Welcome that does not come is no reason to wait for ever."""
    monkeypatch.setattr(dialling, "GREETING", 0.05)
    twice = anyio.Event()
    pauses = Pauses(lambda count: twice.set() if count == 2 else None)

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    with room() as directory:
        server = await asyncio.start_unix_server(mute, directory / "s")
        async with server, running(a_dial(directory / "s", Recorder(), pause=pauses)):
            await twice.wait()


# --- refusals ---


async def test_a_wrong_token_ends_the_dial_at_once() -> None:
    pauses = Pauses()
    async with a_hub(Recorder()).serve_tcp("127.0.0.1", 0) as port:
        for token in (None, "wrong"):
            dial = a_dial(f"ws://127.0.0.1:{port}", Recorder(), token=token, pause=pauses)
            with pytest.raises(Forbidden) as refused:
                await dial.run()
            assert refused.value.hint
    assert pauses.taken == []


async def test_what_is_no_broker_ends_the_dial_at_once() -> None:
    async def another(connection: ServerConnection) -> None:
        pass

    async with serve(another, "127.0.0.1", 0, subprotocols=[Subprotocol("chappie.v9")]) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(VersionMismatch, match=r"chappie\.v1"):
            await a_dial(f"ws://127.0.0.1:{port}", Recorder()).run()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, VersionMismatch),
        (302, VersionMismatch),
        (403, Forbidden),
        (401, Forbidden),
        (200, VersionMismatch),
    ],
)
async def test_a_plain_web_server_ends_the_dial_at_once(status: int, error: type[BridgeError]) -> None:
    async with web_server(status) as path:
        with pytest.raises(error, match=str(status)):
            await a_dial(path, Recorder()).run()


@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_a_server_in_trouble_is_tried_again(status: int) -> None:
    thrice = anyio.Event()
    pauses = Pauses(lambda count: thrice.set() if count == 3 else None)
    async with web_server(status) as path, running(a_dial(path, Recorder(), pause=pauses)):
        await thrice.wait()


@asynccontextmanager
async def web_server(status: int) -> AsyncIterator[Path]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d X\r\nLocation: ws://192.0.2.1/\r\nContent-Length: 2\r\n\r\n[]" % status)
        writer.close()

    with room() as directory:
        server = await asyncio.start_unix_server(answer, directory / "s")
        async with server:
            yield directory / "s"


async def test_a_refusal_in_place_of_the_welcome_says_whether_to_come_again() -> None:
    answers: list[BridgeError] = [Overloaded(), Overloaded(), VersionMismatch("Too old.")]

    async def refuse(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(frame_refused(answers.pop(0)))

    pauses = Pauses()
    with room() as directory:
        async with unix_serve(refuse, directory / "s", subprotocols=OURS):
            with pytest.raises(VersionMismatch, match="Too old"):
                await a_dial(directory / "s", Recorder(), pause=pauses).run()
    assert len(pauses.taken) == 2


async def test_too_old_a_broker_ends_the_dial_at_once() -> None:
    async def old(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(
            frame_welcome(
                Welcome(protocol=0, instance=InstanceId("i_b"), device=DeviceId("d"), resumed=False)
            )
        )
        await connection.wait_closed()

    agent = Recorder()
    with room() as directory:
        async with unix_serve(old, directory / "s", subprotocols=OURS):
            with pytest.raises(VersionMismatch):
                await a_dial(directory / "s", agent).run()
    assert agent.events == []


@pytest.mark.parametrize(
    "address",
    [
        "",
        "unix:",
        "http://127.0.0.1",
        "ws://",
        "ws://127.0.0.1:port",
        "ws://user:secret@127.0.0.1",
        "127.0.0.1:1",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(BadArguments):
        a_dial(address, Recorder())


def test_a_token_is_never_sent_in_the_clear_to_another_machine() -> None:
    """S18: TLS off loopback."""
    for address in ("ws://broker.example", "ws://192.0.2.1:24274", "ws://[2001:db8::1]"):
        with pytest.raises(Forbidden, match="wss"):
            a_dial(address, Recorder())
    for address in ("wss://broker.example", "ws://localhost", "ws://127.0.0.1:1", "ws://[::1]:1"):
        a_dial(address, Recorder())


def test_a_token_cannot_smuggle_a_header() -> None:
    for token in ("a\r\nX: y", "a b", "ä", "a\n"):
        with pytest.raises(BadArguments):
            a_dial("ws://localhost", Recorder(), token=token)


# --- restarts and endings ---


async def test_a_restarted_broker_is_a_new_link_over_the_same_dial() -> None:
    """B37: the attendant hears `gone`, then `up`, and what was unconfirmed is not sent to a stranger."""
    agent, first, second = Recorder(), Recorder(), Recorder()
    with room() as directory:
        path = directory / "s"
        dial = a_dial(path, agent, pause=Pauses())
        async with running(dial):
            async with a_hub(first, "i_first").serve_unix(path):
                await agent.until_events("up")
                dial.send(Withdraw(request=1))
                await first.until(lambda: numbers(first) == [1])
            await agent.until_events("up", "down")
            dial.send(Withdraw(request=2))
            assert dial.peer.instance == "i_first"
            async with a_hub(second, "i_second").serve_unix(path):
                await agent.until_events("up", "down", "gone", "up")
                assert dial.peer == ("broker", LOCAL, "i_second", "")
                dial.send(Withdraw(request=3))
                await second.until(lambda: numbers(second) == [3])


async def test_a_broker_that_restarts_at_the_same_moment_as_it_greets_is_one_broker() -> None:
    """B44: the Welcome of the new broker is lost; greeting it again ends in one link on both sides."""
    agent, first, second = Recorder(), Recorder(), Recorder()
    with room() as directory:
        flaky = Flaky(directory / "f", directory / "s", to_dial={2: "cut"})
        dial = a_dial(directory / "f", agent, pause=Pauses())
        async with flaky.running(), running(dial):
            async with a_hub(first, "i_first").serve_unix(directory / "s"):
                await agent.until_events("up")
            async with a_hub(second, "i_second").serve_unix(directory / "s"):
                await agent.until(lambda: agent.names[-2:] == ["gone", "up"])
                dial.send(Withdraw(request=1))
                await second.until(lambda: numbers(second) == [1])
                assert second.names.count("up") - second.names.count("gone") == 1


async def test_a_goodbye_is_told_and_leaves_nothing_behind() -> None:
    agent, broker = Recorder(), Recorder()
    with room() as directory:
        hub = a_hub(broker)
        async with hub.serve_unix(directory / "s"):
            async with running(a_dial(directory / "s", agent)):
                await agent.until_events("up")
                agent.link.send(Withdraw(request=1))  # the last word is heard
            await broker.until(lambda: broker.names == ["up", "gone"])
            assert numbers(broker) == [1]
            assert agent.names == ["up", "gone"]
            assert hub.statistics() == (0, 0, 0, 0)


async def test_cancelling_a_dial_that_never_connected_is_quiet() -> None:
    agent = Recorder()
    with room() as directory:
        async with running(a_dial(directory / "s", agent)):
            await anyio.wait_all_tasks_blocked()
    assert agent.events == []


async def test_what_a_dial_says_first_is_what_it_is() -> None:
    said = anyio.Event()
    found: list[object] = []

    async def listen(connection: ServerConnection) -> None:
        assert connection.request is not None
        found.append(decode(await connection.recv()))
        found.extend(connection.request.headers.get_all("Authorization"))
        found.extend(connection.request.headers.get_all("Origin"))
        found.extend(connection.request.headers.get_all("User-Agent"))
        said.set()

    async with serve(listen, "127.0.0.1", 0, subprotocols=OURS) as server:
        port = server.sockets[0].getsockname()[1]
        dial: Dial = a_dial(
            f"ws://127.0.0.1:{port}", Recorder(), role="caller", name="nom", version="9", token=TOKEN
        )
        async with running(dial):
            await said.wait()
    hello, *headers = found
    assert headers == [f"Bearer {TOKEN}"]
    assert TOKEN not in repr(hello)
    assert (hello.role, hello.instance, hello.name, hello.version) == ("caller", "i_dial", "nom", "9")
