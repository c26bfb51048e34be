"""Many at once who mean ill, and one who does not: memory has a bound, and the one is served.

The figures are taken by bench/siege_http.py; here fewer come and nothing is timed."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest

from chappie_bridge.faces.chatgpt.server import build
from tests.faces.chatgpt.scripted import SECRET, Scripted, served, settings
from tests.story.bridge import Home, Process

pytestmark = pytest.mark.anyio

GROWTH = 96 * 1024
"""KiB that the broker may grow by under all of it; what comes is several times that."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Process]]:
    home = Home(tmp_path_factory.mktemp("siege"))
    with home.up("--no-agent") as process:
        yield home, process


async def test_a_body_without_an_end_is_cut_off() -> None:
    """S22: one that does not say how long it will be."""
    async with served(build(Scripted(), settings(body_max=64 * 1024))) as url:
        stream = await anyio.connect_tcp("127.0.0.1", int(url.rpartition(":")[2]))
        head = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Chappie-Key: {SECRET}\r\n"
        await stream.send(
            f"{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        sent = 0
        with anyio.fail_after(30):
            try:
                while sent < 100 << 20:
                    await stream.send(b"8000\r\n" + b" " * 0x8000 + b"\r\n")
                    sent += 0x8000
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass
        assert sent < 50 << 20
        await stream.aclose()


async def test_wrong_credentials_half_open_heads_and_endless_lines_hurt_nobody_else(
    running: tuple[Home, Process],
) -> None:
    """S22: memory bounded; who has the credential is served during all of it, and after."""
    _, process = running
    url, headers = process.ready["mcp"], process.ready["headers"]
    port = int(url.removesuffix("/mcp").rpartition(":")[2])
    async with httpx2.AsyncClient(trust_env=False, headers=headers, timeout=60) as good:
        await _served(good, url)
        before = _resident(process.pid)
        ends = [socket.create_connection(("127.0.0.1", port)) for _ in range(700)]
        for end in ends:
            end.sendall(b"POST /mcp HTTP/1.1\r\nHost: loc")
        await _served(good, url)
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(_wrong, url, 250)
                tasks.start_soon(_endless, port)
            for _ in range(20):
                await _served(good, url)
        await _served(good, url)
        grown = _resident(process.pid) - before
        metrics = (await good.get(url.removesuffix("mcp") + "metrics")).text
        for end in ends:
            end.close()
        await _served(good, url)
    assert grown < GROWTH, f"it grew by {grown} KiB"
    assert 'chappie_http_refused_total{reason="credential"} 1000' in metrics


async def test_a_thousand_waits_are_bounded_and_let_go(running: tuple[Home, Process]) -> None:
    """S22: who waits costs little, and is forgotten when its client leaves."""
    _, process = running
    url, headers = process.ready["mcp"], process.ready["headers"]
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "init", "arguments": {}}}
    before = _resident(process.pid)
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(trust_env=False, headers=headers, timeout=60, limits=limits) as good:
        async with anyio.create_task_group() as tasks:
            for number in range(1_000):
                tasks.start_soon(_waits, good, url, body)
                if number % 100 == 99:
                    await _until(good, url, number + 1)
            grown = _resident(process.pid) - before
            tasks.cancel_scope.cancel()
        await _until(good, url, 0)
    assert grown < GROWTH, f"it grew by {grown} KiB"


async def _waits(http: httpx2.AsyncClient, url: str, body: object) -> None:
    await http.post(url, json=body)


async def _until(http: httpx2.AsyncClient, url: str, waiting: int) -> None:
    """So many requests wait in the broker, as it says itself."""
    with anyio.fail_after(60):
        while True:
            text = (await http.get(url.removesuffix("mcp") + "metrics")).text
            if f"\nchappie_requests_waiting {waiting:.1f}\n" in text:
                return
            await anyio.sleep(0.05)


async def _served(http: httpx2.AsyncClient, url: str) -> None:
    answer = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    assert answer.status_code == 200
    assert len(json.loads(answer.content)["result"]["tools"]) > 5


async def _wrong(url: str, count: int) -> None:
    async with httpx2.AsyncClient(trust_env=False, headers={"X-Chappie-Key": "wrong"}, timeout=60) as http:
        for _ in range(count):
            assert (await http.post(url, json={})).status_code == 401


async def _endless(port: int) -> None:
    """A hundred megabytes that never end their line."""
    stream = await anyio.connect_tcp("127.0.0.1", port)
    try:
        await stream.send(b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX: ")
        for _ in range(100):
            await stream.send(b"a" * (1 << 20))
        raise AssertionError("all of it was taken")
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass
    finally:
        await stream.aclose()


def _resident(pid: int) -> int:
    """KiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")
