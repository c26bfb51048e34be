"""What a connection may cost before its request has come whole: real sockets, both of uvicorn's protocols."""

import asyncio
import importlib
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, cast
from unittest.mock import Mock

import anyio
import pytest

from chappie_bridge.cli import doorstep
from chappie_bridge.cli.doorstep import Doorstep
from chappie_bridge.faces.chatgpt.server import build
from tests.faces.chatgpt.scripted import SECRET, Scripted, served, settings

pytestmark = pytest.mark.anyio

GOOD = (
    f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Chappie-Key: {SECRET}\r\n\r\n".encode(),
    b"HTTP/1.1 200",
)
REFUSED = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"


@pytest.fixture(params=["h11", "httptools"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def bridge(kind: str, message_max: int = 1 << 20) -> AsyncGenerator[int]:
    made = Doorstep(message_max)
    if kind == "h11":
        over = doorstep._over_h11()
    else:
        base = importlib.import_module("uvicorn.protocols.http.httptools_impl").HttpToolsProtocol
        over = doorstep._over_httptools(base)

    def protocol(**more: Any) -> Any:
        return over(made, **more)

    async with served(build(Scripted(), settings()), cast("Any", protocol)) as url:
        yield int(url.rpartition(":")[2])


async def said(port: int, data: bytes) -> bytes:
    """Send and read until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    with anyio.fail_after(20):
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


async def good(port: int) -> None:
    """A client that behaves, twice on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        writer.write(GOOD[0])
        with anyio.fail_after(20):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(GOOD[1])
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
    writer.close()


@pytest.mark.parametrize("begun", [b"", b"POST", b"POST /mcp HTTP/1.1\r\nHost: loc", REFUSED + b"a"])
async def test_what_is_never_finished_is_cut(
    kind: str, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S22: a head that never ends, and a body of what was refused already."""
    monkeypatch.setattr(doorstep, "HEAD_SECONDS", 0.05)
    async with bridge(kind) as port:
        answer = await said(port, begun)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 401")


async def test_a_second_request_has_its_own_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S22: a connection that was good once is cut as well."""
    async with bridge(kind) as port:
        await good(port)
        monkeypatch.setattr(doorstep, "HEAD_SECONDS", 0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GOOD[0])
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET /metr")
        with anyio.fail_after(20):
            await reader.read()
        writer.close()


@pytest.mark.parametrize(("limit", "value"), [("BURST", 0.0), ("MAX_BURST", 8)])
async def test_who_waits_longest_goes_first_and_good_clients_come_in(
    kind: str, limit: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S22: half-open connections crowd out one another, nobody else."""
    monkeypatch.setattr(doorstep, "MAX_WAITING", 8)
    monkeypatch.setattr(doorstep, limit, value)
    async with bridge(kind) as port:
        ends = []
        for _ in range(50):
            end = socket.create_connection(("127.0.0.1", port))
            end.setblocking(False)
            ends.append(end)
            await good(port)
        loop = asyncio.get_running_loop()
        with anyio.fail_after(20):
            for end in ends[:40]:
                with suppress(ConnectionResetError):
                    assert await loop.sock_recv(end, 1) == b""
        for end in ends:
            end.close()


async def test_all_connections_have_a_bound_and_the_silent_ones_go(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorstep, "MAX_CONNECTIONS", 4)
    async with bridge(kind) as port:
        kept = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GOOD[0])
            with anyio.fail_after(20):
                assert (await reader.readline()).startswith(GOOD[1])
            kept.append((reader, writer))
        with anyio.fail_after(20):
            await kept[0][0].read()
        for _, writer in kept:
            writer.close()


@pytest.mark.parametrize(
    "endless",
    [
        b"GET /" + b"a" * 60_000,
        b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 60_000,
        b"GET /mcp HTTP/1.1\r\n" + b"a: b\r\n" * 10_000,
        REFUSED.replace(b"Content-Length: 1000000", b"Transfer-Encoding: chunked")
        + b"0\r\n"
        + b"a: b\r\n" * 10_000,
    ],
    ids=["line", "header", "headers", "trailers"],
)
async def test_an_endless_line_is_cut(kind: str, endless: bytes) -> None:
    """S22: a head has a size, and so have the trailers of a body."""
    async with bridge(kind, message_max=256 * 1024) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent = len(endless)
        writer.write(endless)
        try:
            with anyio.fail_after(30):
                while not writer.is_closing() and not reader.at_eof():
                    writer.write(b"a" * 20_000 if not endless.endswith(b"\r\n") else b"a: b\r\n" * 3_000)
                    sent += 20_000
                    await writer.drain()
        except ConnectionError:
            pass
        writer.close()
        assert sent < 64 << 20


async def test_of_a_crowd_a_few_are_read_in_one_turn_of_the_loop() -> None:
    """S22: in the order in which they came; whoever is served already is not behind them."""
    made, order = Doorstep(1 << 20), list[int]()
    now = [made.in_turn(partial(order.append, number)) for number in range(10)]
    assert (order, now) == ([0, 1], [True, True, *[False] * 8])
    for turn in range(1, 5):
        await asyncio.sleep(0)
        assert order == list(range(2 * (turn + 1)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert made.in_turn(partial(order.append, 10))


async def test_everybody_of_a_crowd_is_answered(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorstep, "A_TURN", 1)
    async with bridge(kind) as port:
        ends = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        for _, writer in ends:
            writer.write(GOOD[0])
        with anyio.fail_after(20):
            for reader, writer in ends:
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(GOOD[1])
                writer.close()
        await good(port)


async def test_the_words_of_who_left_before_his_turn_are_not_read() -> None:
    gone = Mock()
    gone.transport.is_closing.return_value = True
    made, read = Doorstep(1 << 20), list[bytes]()
    for _ in range(doorstep.A_TURN):
        made.in_turn(lambda: None)
    made.came(gone)
    made.hear(gone, b"POST", read.append)
    for _ in range(3):
        await asyncio.sleep(0)
    assert read == []
