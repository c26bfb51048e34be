"""The broker's end of links, on real sockets."""

import asyncio
import gc
import json
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import anyio
import pytest
from chappie_broker import guard, hub
from chappie_broker.guard import FREE_GUESSES, DeviceToken, Refused, SameUser
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from chappie_bridge import websocket
from chappie_bridge.websocket import WebSocket
from chappie_bridge.wire.errors import Forbidden, Overloaded, PathExists
from chappie_bridge.wire.ids import InstanceId, SessionId
from chappie_bridge.wire.link import (
    SUBPROTOCOL,
    Hello,
    Welcome,
    decode,
    encode,
    frame,
    frame_ack,
    frame_hello,
)
from chappie_bridge.wire.messages import Message, Notice, Withdraw
from chappie_bridge.wire.ports import Link
from tests.peer.flaky import Flaky
from tests.peer.link_rig import DEVICE, LOCAL, TOKEN, a_dial, a_hub, room, running
from tests.peer.recorder import Recorder

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def raw(path: Path) -> AsyncIterator[ClientConnection]:
    """A websocket of somebody who follows none of our rules by himself."""
    async with unix_connect(
        path, subprotocols=[Subprotocol(SUBPROTOCOL)], compression=None, close_timeout=1
    ) as connection:
        yield connection


def hello(instance: str = "i_raw", *, of: str | None = None, received: int = 0, protocol: int = 1) -> str:
    return frame_hello(
        Hello(
            protocol=protocol,
            role="agent",
            instance=InstanceId(instance),
            of=InstanceId(of) if of else None,
            received=received,
        )
    )


async def greet(connection: ClientConnection, text: str) -> Welcome:
    await connection.send(text)
    welcome = decode(await connection.recv())
    assert isinstance(welcome, Welcome)
    return welcome


async def closing(connection: ClientConnection) -> int | None:
    """The code with which the broker closes."""
    with anyio.fail_after(10):
        await connection.wait_closed()
    return connection.close_code


# --- the socket file ---


async def test_the_socket_is_for_this_user_alone() -> None:
    with room() as directory:
        async with a_hub(Recorder()).serve_unix(directory / "s"):
            assert stat.S_IMODE((directory / "s").stat().st_mode) == 0o600
        assert not (directory / "s").exists()


async def test_a_dead_socket_file_is_replaced_and_a_living_one_is_not() -> None:
    """B30: after kill -9 the broker starts again; a second one ends with a clear message."""
    with room() as directory:
        path = directory / "s"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        async with a_hub(Recorder()).serve_unix(path):
            with pytest.raises(PathExists, match="already listens"):
                async with a_hub(Recorder()).serve_unix(path):
                    pass
            agent = Recorder()
            async with running(a_dial(path, agent)):  # the first is none the worse
                await agent.until_events("up")


async def test_a_file_that_is_no_socket_is_left_alone() -> None:
    with room() as directory:
        (directory / "s").write_text("mine", encoding="utf-8")
        with pytest.raises(PathExists, match="no socket"):
            async with a_hub(Recorder()).serve_unix(directory / "s"):
                pass
        assert (directory / "s").read_text(encoding="utf-8") == "mine"
        with pytest.raises(PathExists, match="too long"):
            async with a_hub(Recorder()).serve_unix(directory / ("s" * 200)):
                pass


async def test_a_broker_that_ends_leaves_its_successors_file() -> None:
    with room() as directory:
        path = directory / "s"
        async with a_hub(Recorder()).serve_unix(path):
            path.unlink()
            path.touch()
        assert path.exists()


def test_a_process_of_another_user_is_refused() -> None:
    """S02: where the file's mode does not help, the kernel says who connects."""

    def who(user: int) -> asyncio.Transport:
        end = SimpleNamespace(getsockopt=lambda *_: struct.pack("3i", 1, user, user))
        return cast("asyncio.Transport", SimpleNamespace(get_extra_info=lambda _: end))

    check = SameUser(LOCAL)
    assert check(who(os.geteuid()), Request("/", _headers())) == LOCAL
    assert check(who(0), Request("/", _headers())) == LOCAL
    with pytest.raises(Refused) as refused:
        check(who(os.geteuid() + 1), Request("/", _headers()))
    assert refused.value.status == 403


def _headers(**headers: str) -> Headers:
    return Headers({name.replace("_", "-"): value for name, value in headers.items()})


# --- the door ---


class Answer(SimpleNamespace):
    status: int
    headers: dict[str, str]
    body: str

    def error(self) -> dict[str, object]:
        assert self.headers["content-type"] == "application/json"
        found: dict[str, object] = json.loads(self.body)["error"]
        return found


async def knock(port: int, *, host: str = "127.0.0.1", **headers: str) -> Answer:
    """An upgrade request by hand.  A header that is "" is left out."""
    lines = {
        "Host": f"{host}:{port}",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": SUBPROTOCOL,
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    writer.write(f"GET / HTTP/1.1\r\n{text}\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
    found = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
    body = await reader.readexactly(int(found.get("content-length", "0")))
    writer.close()
    await writer.wait_closed()
    return Answer(status=int(head[0].split()[1]), headers=found, body=body.decode())


GOOD = f"Bearer {TOKEN}"


async def test_a_device_needs_its_token() -> None:
    """S18: without one the answer says what is missing and how to get it."""
    async with a_hub(Recorder()).serve_tcp("127.0.0.1", 0) as port:
        missing = await knock(port)
        assert missing.status == 401
        assert missing.headers["www-authenticate"] == "Bearer"
        assert "Authorization: Bearer" in str(missing.error()["message"])
        assert missing.error()["code"] == "forbidden"
        for wrong in ("Bearer wrong", "Bearer", f"Basic {TOKEN}", TOKEN):
            assert (await knock(port, Authorization=wrong)).status == 401
        accepted = await knock(port, Authorization=GOOD)
        assert accepted.status == 101
        assert accepted.headers["sec-websocket-protocol"] == SUBPROTOCOL
        for answer in (missing, accepted):
            assert "server" not in answer.headers
            assert "sec-websocket-extensions" not in answer.headers


async def test_a_web_page_is_refused_before_its_token_is_looked_at() -> None:
    """S02 S09 S12: a page in the owner's browser reaches loopback, and its Origin tells on it."""
    asked: list[str] = []

    def ask(token: str) -> None:
        asked.append(token)

    broker = a_hub(Recorder(), authenticate=ask)
    async with broker.serve_tcp("127.0.0.1", 0) as port:
        for origin in ("https://evil.example", "null", f"http://127.0.0.1:{port}"):
            answer = await knock(port, Authorization=GOOD, Origin=origin)
            assert answer.status == 403
            assert answer.error()["code"] == "forbidden"
        assert asked == []
    with room() as directory:
        async with a_hub(Recorder()).serve_unix(directory / "s"):
            reader, writer = await asyncio.open_unix_connection(str(directory / "s"))
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n\r\n")
            assert b" 403 " in await reader.readline()
            writer.close()
            await writer.wait_closed()


async def test_a_strange_host_name_is_refused() -> None:
    """S02: DNS rebinding ends here."""
    async with a_hub(Recorder()).serve_tcp("127.0.0.1", 0, hosts=["broker.lan"]) as port:
        for host in ("evil.example", "0.0.0.0", "127.0.0.1.evil.example", "[", "user@evil.example"):  # noqa: S104
            assert (await knock(port, host=host, Authorization=GOOD)).status == 421
        assert (await knock(port, Host="", Authorization=GOOD)).status == 421
        for host in ("127.0.0.1", "localhost", "LOCALHOST", "broker.lan"):
            assert (await knock(port, host=host, Authorization=GOOD)).status == 101


async def test_who_speaks_another_protocol_is_told_so() -> None:
    async with a_hub(Recorder()).serve_tcp("127.0.0.1", 0) as port:
        assert (await knock(port, Authorization=GOOD, Sec_WebSocket_Protocol="")).status == 400
        assert (await knock(port, Authorization=GOOD, Sec_WebSocket_Protocol="chappie.v9")).status == 400
        assert (await knock(port, Authorization=GOOD, Upgrade="", Connection="")).status == 426


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "broker.example"])  # noqa: S104
async def test_off_loopback_without_tls_nobody_listens(host: str) -> None:
    """S18: refused before there is a socket."""
    with pytest.raises(Forbidden, match="TLS"):
        async with a_hub(Recorder()).serve_tcp(host, 0):
            pass


def test_bad_tokens_have_to_wait_longer_and_longer() -> None:
    """S18: 10 bad tokens, then back-off; the address is forgiven after a while."""
    now = 1000.0
    check = DeviceToken(lambda token: DEVICE if token == TOKEN else None, ["h"], lambda: now)

    def status(token: str, address: str = "192.0.2.1") -> int:
        transport = SimpleNamespace(get_extra_info=lambda _: (address, 1))
        try:
            check(
                cast("asyncio.Transport", transport),
                Request("/", _headers(Host="h", Authorization=f"Bearer {token}")),
            )
        except Refused as refused:
            return int(refused.status)
        return 101

    assert [status("bad") for _ in range(FREE_GUESSES)] == [401] * FREE_GUESSES
    assert status("bad") == 429
    assert status(TOKEN) == 429  # a guess that would be right is not looked at either
    assert status(TOKEN, "192.0.2.2") == 101
    now += 1.1
    assert status("bad") == 401
    now += 1.1
    assert status("bad") == 429  # the penalty doubled
    now += 1.0
    assert status(TOKEN) == 101
    assert status("bad") == 401  # and a good token forgives all

    for _ in range(FREE_GUESSES):
        status("bad", "2001:db8::1")
    assert status("bad", "2001:db8::ffff:2") == 429  # the same network
    assert status("bad", "2001:db8:0:1::1") == 401
    now += guard.FORGIVEN_AFTER
    assert [status("bad", "2001:db8::1") for _ in range(FREE_GUESSES)] == [401] * FREE_GUESSES


def test_the_memory_of_bad_tokens_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """S22: addresses are many."""
    monkeypatch.setattr(guard, "MAX_ADDRESSES", 10)
    check = DeviceToken(lambda token: None, ["h"], lambda: 0.0)
    for number in range(50):
        transport = SimpleNamespace(get_extra_info=lambda _, number=number: (f"192.0.2.{number}", 1))
        with pytest.raises(Refused):
            check(
                cast("asyncio.Transport", transport),
                Request("/", _headers(Host="h", Authorization="Bearer bad")),
            )
    assert len(check._bad) == 10


# --- greetings ---


async def test_the_first_frame_is_a_hello() -> None:
    with room() as directory:
        async with a_hub(Recorder()).serve_unix(directory / "s"):
            for text in ("nonsense", frame_ack(1), hello(""), hello("i" * 257)):
                async with raw(directory / "s") as connection:
                    await connection.send(text)
                    assert await closing(connection) == 1002
            async with raw(directory / "s") as connection:
                await connection.send(b"a chunk, a chunk, a chunk")
                assert await closing(connection) == 1002


async def test_too_old_a_protocol_is_refused_with_what_to_do() -> None:
    with room() as directory:
        async with a_hub(Recorder()).serve_unix(directory / "s"), raw(directory / "s") as connection:
            await connection.send(hello(protocol=0))
            refused = json.loads(await connection.recv())["refused"]
            assert refused["code"] == "version_mismatch"
            assert await closing(connection) == 1008


async def test_who_says_nothing_is_cut_and_cannot_crowd_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """S22: half-open connections are few and short."""
    monkeypatch.setattr(hub, "GREETING", 0.2)
    broker = a_hub(Recorder(), max_greeting=2)
    async with broker.serve_tcp("127.0.0.1", 0) as port:
        mute = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in mute:  # the oldest makes room for the third; the deadline cuts the others
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
        agent = Recorder()
        async with running(a_dial(f"ws://127.0.0.1:{port}", agent, token=TOKEN)):
            await agent.until_events("up")
        assert broker.statistics().greeting == 0


async def test_of_those_who_say_nothing_the_oldest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """S22: long before its time is over."""
    monkeypatch.setattr(hub, "GREETING", 600)
    broker = a_hub(Recorder(), max_greeting=2)
    async with broker.serve_tcp("127.0.0.1", 0) as port:
        mute = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        with anyio.fail_after(10):
            for reader, _ in mute[:3]:
                assert await reader.read() == b""
        assert broker.statistics().greeting == 2
        for _, writer in mute:
            writer.close()


async def test_a_crowd_of_this_users_own_agents_is_let_in_and_nobody_is_cut() -> None:
    """They come all at once after a restart, and wait in the kernel until there is an entry."""
    with room() as directory:
        broker, entry = a_hub(Recorder(), max_greeting=2), anyio.Event()
        async with broker.serve_unix(directory / "s", entry=entry.wait):
            ends = [await asyncio.open_unix_connection(str(directory / "s")) for _ in range(20)]
            assert broker.statistics().sockets == 0
            entry.set()
            with anyio.fail_after(10):
                for reader, writer in ends:
                    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    assert (await reader.readline()).startswith(b"HTTP/1.1 426")
                    writer.close()


async def test_a_full_broker_says_so() -> None:
    """S22: too many connections, or links, are a retryable error."""
    with room() as directory:
        heard = Recorder()
        broker = a_hub(heard, max_connections=1)
        async with broker.serve_unix(directory / "s"):
            async with raw(directory / "s") as first:
                await greet(first, hello("i_1"))
                reader, writer = await asyncio.open_unix_connection(str(directory / "s"))
                writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = (await reader.read()).decode()
                assert " 503 " in answer
                assert '"code": "overloaded"' in answer
                assert '"retryable": true' in answer
                writer.close()
                await writer.wait_closed()
                first.transport.abort()
            await heard.until_events("up", "down")
            async with raw(directory / "s") as second:  # the first link still has its lease
                await second.send(hello("i_2"))
                assert json.loads(await second.recv())["refused"]["code"] == "overloaded"


async def test_an_opening_that_breaks_off_leaves_nothing_for_the_collector() -> None:
    """S22: it walks seldom, and until then each would keep its connection."""
    broker = a_hub(Recorder())
    async with broker.serve_tcp("127.0.0.1", 0) as port:
        gc.collect()
        gc.disable()
        try:
            for said in (b"", b"GET / HTTP/1.1\r\nHost: x"):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(said)
                writer.close()
                await writer.wait_closed()
            with anyio.fail_after(10):
                while any(isinstance(each, ServerProtocol) for each in gc.get_objects()):  # noqa: ASYNC110 - no event
                    await anyio.sleep(0.01)
        finally:
            gc.enable()


# --- links over their sockets ---


async def test_a_second_socket_of_an_instance_takes_the_link_over() -> None:
    """B33: connect, connect again, close the first: the device stays there."""
    heard = Recorder()
    with room() as directory:
        path = directory / "s"
        async with a_hub(heard).serve_unix(path), raw(path) as first, raw(path) as second:
            await greet(first, hello())
            await heard.until_events("up")
            assert (await greet(second, hello(of="i_broker"))).resumed
            await heard.until_events("up", "back")
            assert await closing(first) == 1006  # cut: its peer has given it up
            heard.link.send(Withdraw(request=1))
            assert await second.recv() == frame(1, 0, encode(Withdraw(request=1)))
            assert heard.names == ["up", "back"]
            assert heard.events[0][1] is heard.events[1][1]
            assert heard.link.up


async def test_a_link_goes_on_where_it_was_cut() -> None:
    """B31 B37: same instance, same link; what was missed is replayed."""
    heard = Recorder(lambda link, message: link.send(message))
    with room() as directory:
        async with a_hub(heard).serve_unix(directory / "s"):
            async with raw(directory / "s") as first:
                welcome = await greet(first, hello())
                assert not welcome.resumed
                for number in (1, 2, 3):
                    await first.send(frame(number, 0, encode(Withdraw(request=number))))
                assert await first.recv() == frame(1, 1, encode(Withdraw(request=1)))
                await heard.until(lambda: len(heard.messages) == 3)
                first.transport.abort()
            await heard.until(lambda: heard.names[-1] == "down")
            assert not heard.link.up
            heard.link.send(Withdraw(request=4))
            async with raw(directory / "s") as second:
                welcome = await greet(second, hello(of="i_broker", received=1))
                assert welcome.resumed
                assert welcome.received == 3
                replayed = [decode(await second.recv()) for _ in range(3)]
                assert [item.message for item in replayed] == [
                    Withdraw(request=number) for number in (2, 3, 4)
                ]
            assert heard.names[:3] == ["up", "down", "back"]


async def test_a_lost_welcome_does_not_make_a_second_peer() -> None:
    """B44: the peer never saw its Welcome and greets for the first time again."""
    heard = Recorder()
    with room() as directory:
        async with a_hub(heard).serve_unix(directory / "s"):
            async with raw(directory / "s") as first:
                await greet(first, hello())
                heard.link.send(Withdraw(request=1))
                first.transport.abort()
            await heard.until_events("up", "down")
            async with raw(directory / "s") as second:
                assert (await greet(second, hello())).resumed
                assert await second.recv() == frame(1, 0, encode(Withdraw(request=1)))
                assert heard.names == ["up", "down", "back"]


@pytest.mark.parametrize(
    ("of", "received", "why"),
    [
        (None, 0, "it has forgotten what it sent"),
        ("i_another_broker", 0, "it remembers somebody else"),
        ("i_broker", 5, "it claims what was never sent"),
    ],
)
async def test_a_peer_that_remembers_something_else_is_a_new_one(
    of: str | None, received: int, why: str
) -> None:
    heard = Recorder()
    with room() as directory:
        async with a_hub(heard).serve_unix(directory / "s"), raw(directory / "s") as first:
            await greet(first, hello())
            await first.send(frame(1, 0, encode(Withdraw(request=1))))
            await heard.until(lambda: len(heard.messages) == 1)
            async with raw(directory / "s") as second:
                welcome = await greet(second, hello(of=of, received=received))
                assert (welcome.resumed, welcome.received) == (False, 0), why
                assert heard.names == ["up", "gone", "up"]
                assert heard.events[1][1] is not heard.events[2][1]
                assert heard.events[0][1] is heard.events[1][1]


async def test_the_lease_ends_a_link_that_stays_away() -> None:
    """B36: what is dead is not online."""
    heard = Recorder()
    with room() as directory:
        broker = a_hub(heard, lease=0.05)
        async with broker.serve_unix(directory / "s"):
            async with raw(directory / "s") as connection:
                await greet(connection, hello())
                connection.transport.abort()
            await heard.until_events("up", "down", "gone")
            assert broker.statistics().links == 0
            async with raw(directory / "s") as connection:
                assert not (await greet(connection, hello(of="i_broker"))).resumed


async def test_a_peer_that_falls_silent_is_down_without_any_close() -> None:
    """B36: SIGKILL behind a network that says nothing: pings find out."""
    heard, agent = Recorder(), Recorder()
    with room() as directory:
        async with a_hub(heard, ping=0.05).serve_unix(directory / "s"):
            flaky = Flaky(directory / "f", directory / "s", to_broker={2: "hold"})
            async with flaky.running(), running(a_dial(directory / "f", agent, ping=0.05)):
                await agent.until_events("up")
                agent.link.send(Withdraw(request=1))
                await heard.until(lambda: len(heard.messages) == 1)  # over a second socket
                assert flaky.connections >= 2
                assert heard.names[0] == agent.names[0] == "up"
                assert set(heard.names[1:]) <= {"down", "back"}


async def test_an_idle_link_stays_up_by_its_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, agent, ticks, enough = Recorder(), Recorder(), [], anyio.Event()
    tick = WebSocket._tick

    def counted(self: WebSocket) -> None:
        tick(self)
        ticks.append(self)
        if len(ticks) == 20:
            enough.set()

    monkeypatch.setattr(WebSocket, "_tick", counted)
    with room() as directory:
        async with (
            a_hub(heard, ping=0.05).serve_unix(directory / "s"),
            running(a_dial(directory / "s", agent, ping=0.05)),
        ):
            await enough.wait()
            assert heard.names == ["up"]


async def test_several_agents_of_a_device_are_several_links() -> None:
    heard, agents = Recorder(), [Recorder() for _ in range(5)]
    with room() as directory:
        broker = a_hub(heard)
        async with broker.serve_unix(directory / "s"):
            dials = [a_dial(directory / "s", agent, f"i_{n}", name="same") for n, agent in enumerate(agents)]
            async with running(*dials):
                for agent in agents:
                    await agent.until_events("up")
                assert heard.names == ["up"] * 5
                assert {link.peer.instance for _, link in heard.events} == {f"i_{n}" for n in range(5)}
                assert broker.statistics()[::2] == (5, 5)
            await heard.until(lambda: heard.names[5:] == ["gone"] * 5)
            assert broker.statistics().links == 0


async def test_the_same_instance_name_on_two_devices_is_two_links() -> None:
    """S18: an instance is named by its peer; only the credential says whose it is."""
    heard, local, remote = Recorder(), Recorder(), Recorder()
    with room() as directory:
        broker = a_hub(heard)
        async with broker.serve_unix(directory / "s"), broker.serve_tcp("127.0.0.1", 0) as port:
            far = a_dial(f"ws://127.0.0.1:{port}", remote, "i_same", token=TOKEN)
            async with running(a_dial(directory / "s", local, "i_same"), far):
                await local.until_events("up")
                await remote.until_events("up")
                assert heard.names == ["up", "up"]
                assert {link.peer.device for _, link in heard.events} == {LOCAL, DEVICE}


async def test_a_revoked_device_is_cut_and_cannot_come_back() -> None:
    heard, agent = Recorder(), Recorder()
    known = {TOKEN: DEVICE}
    broker = a_hub(heard, authenticate=known.get)
    async with broker.serve_tcp("127.0.0.1", 0) as port:
        dial = a_dial(f"ws://127.0.0.1:{port}", agent, token=TOKEN)

        async def run() -> None:
            with pytest.raises(Forbidden):
                await dial.run()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await agent.until_events("up")
            assert broker.drop(LOCAL) == 0
            known.clear()
            assert broker.drop(DEVICE) == 1
        assert heard.names == ["up", "gone"]
        assert agent.names == ["up", "down", "gone"]


# --- hostile or broken peers ---


async def test_nonsense_closes_its_own_connection_and_nothing_else() -> None:
    heard, good = Recorder(), Recorder()
    with room() as directory:
        async with a_hub(heard).serve_unix(directory / "s"), running(a_dial(directory / "s", good)):
            await good.until_events("up")
            async with raw(directory / "s") as bad:
                await greet(bad, hello())
                await bad.send(frame(7, 0, encode(Withdraw(request=1))))  # a gap
                assert await closing(bad) == 1002
                assert "message 7 after 0" in str(bad.close_reason)
            assert heard.names == ["up", "up", "gone"]
            good.link.send(Withdraw(request=1))
            await heard.until(lambda: len(heard.messages) == 1)


async def test_a_frame_over_the_cap_is_refused_at_its_first_bytes() -> None:
    """S22: 100 MB without an end: closed at the cap, before the bytes are there."""
    with room() as directory:
        async with a_hub(Recorder()).serve_unix(directory / "s"):
            async with raw(directory / "s") as connection:
                await greet(connection, hello())
                connection.transport.write(b"\x81\xff" + (100_000_000).to_bytes(8, "big") + bytes(4))
                assert await closing(connection) == 1009
            reader, writer = await asyncio.open_unix_connection(str(directory / "s"))
            writer.write(b"GET /" + b"x" * 1_000_000)  # no line ends
            answer = await reader.read()
            assert answer == b"" or b" 414 " in answer
            writer.close()
            await writer.wait_closed()


async def test_a_message_in_too_many_fragments_is_refused() -> None:
    """S22: fragments of nothing would fill the memory, too."""
    heard = Recorder()
    with room() as directory:
        async with a_hub(heard).serve_unix(directory / "s"), raw(directory / "s") as connection:
            await greet(connection, hello())
            text = frame(1, 0, encode(Withdraw(request=1)))
            await connection.send([text[:5], text[5:9], "", text[9:]])  # a few are fine
            await heard.until(lambda: len(heard.messages) == 1)
            with suppress(ConnectionClosed):
                await connection.send(["x"] * 5000)
            assert await closing(connection) == 1009


async def test_a_peer_that_leaves_in_the_middle_of_an_answer_hurts_nobody() -> None:
    """B26: the socket closes while megabytes are being written to it; others keep calling."""

    def flood(link: Link, message: Message) -> None:
        if message == Withdraw(request=99):
            for number in range(5000):
                link.send(Withdraw(request=number))
        else:
            link.send(message)

    heard, good = Recorder(flood), Recorder()
    with room() as directory:
        async with a_hub(heard).serve_unix(directory / "s"), running(a_dial(directory / "s", good)):
            await good.until_events("up")
            async with raw(directory / "s") as leaving:
                await greet(leaving, hello())
                await leaving.send(frame(1, 0, encode(Withdraw(request=99))))
                await leaving.recv()
                leaving.transport.abort()
            await heard.until(lambda: "down" in heard.names)
            good.link.send(Withdraw(request=1))
            await good.until(lambda: good.messages == [Withdraw(request=1)])


async def test_a_peer_that_reads_nothing_fills_its_own_window_only() -> None:
    """S22: memory towards a slow reader is bounded, and the error is retryable."""
    heard = Recorder()
    with room() as directory:
        async with a_hub(heard).serve_unix(directory / "s"), raw(directory / "s") as slow:
            await greet(slow, hello())
            slow.transport.pause_reading()
            link = heard.link
            sent = 10_000
            for number in range(sent):
                link.send(Withdraw(request=number))
            with pytest.raises(Overloaded):
                link.send(Withdraw(request=sent))
            slow.transport.resume_reading()
            for number in range(sent):
                found = decode(await slow.recv())
                assert found.message == Withdraw(request=number)
            await slow.send(frame(1, sent, encode(Withdraw(request=0))))
            await heard.until(lambda: len(heard.messages) == 1)
            link.send(Withdraw(request=sent))


async def test_a_peer_that_sends_and_never_reads_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """S22: acknowledgements for it do not pile up without end."""
    monkeypatch.setattr(websocket, "MAX_WAITING", 10)
    heard = Recorder()
    with room() as directory:
        async with a_hub(heard).serve_unix(directory / "s"), raw(directory / "s") as greedy:
            await greet(greedy, hello())
            greedy.transport.pause_reading()
            heard.link.send(Notice(session=SessionId("s"), text="x" * 1_000_000))  # the kernel takes no more
            with suppress(ConnectionClosed):
                for number in range(1, 2000):
                    await greedy.send(frame(number, 0, encode(Withdraw(request=number))))
            await heard.until(lambda: heard.names == ["up", "down"])
            greedy.transport.abort()


async def test_a_peer_that_pings_and_never_reads_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """S22: nor do the answers to its pings."""
    monkeypatch.setattr(websocket, "MAX_UNREAD", 100_000)
    heard = Recorder()
    with room() as directory:
        async with a_hub(heard).serve_unix(directory / "s"), raw(directory / "s") as greedy:
            await greet(greedy, hello())
            greedy.transport.pause_reading()
            for _ in range(20_000):
                greedy.protocol.send_ping(bytes(125))
            greedy.transport.write(b"".join(greedy.protocol.data_to_send()))
            await heard.until(lambda: heard.names == ["up", "down"])
            greedy.transport.abort()


async def test_stopping_the_broker_tells_its_peers() -> None:
    heard = Recorder()
    with room() as directory:
        broker = a_hub(heard)
        async with broker.serve_unix(directory / "s"):
            connection = await unix_connect(directory / "s", subprotocols=[Subprotocol(SUBPROTOCOL)])
            await greet(connection, hello())
        assert await closing(connection) == 1001
        assert heard.names == ["up", "down"]
        assert broker.statistics().links == 1
        broker.close()
        assert broker.statistics().links == 0
        assert heard.names == ["up", "down"]
