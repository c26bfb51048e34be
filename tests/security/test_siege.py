"""Many at once who mean ill, and one who does not: memory has a bound, and the one is served.

The figures are taken by bench/siege_http.py and bench/siege_link.py; here fewer come and nothing is timed."""

import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx2
import pytest
from chappie_agents.dial import Dial
from chappie_agents.enrol import new_token, pair

from chappie_bridge.faces.chatgpt.server import build
from chappie_bridge.wire.ids import Mint
from chappie_bridge.wire.pairing import Pairing
from tests.faces.chatgpt.scripted import SECRET, Scripted, served, settings
from tests.peer import siege
from tests.peer.link_rig import running as dialling
from tests.peer.working import Working
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


@dataclass(frozen=True)
class Linked:
    """A broker whose link listens off loopback, so with TLS, and two devices: one works, one means ill."""

    process: Process
    port: int
    pin: str
    token: str
    ill: str


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linked]:
    home = Home(tmp_path_factory.mktemp("linked"))
    ports = ("--http", "127.0.0.1:0", "--link", "0.0.0.0:0")
    with home.started("up", "--json", "--no-agent", *ports) as process:
        process.ready = process.line()
        port = int(process.ready["link"].rpartition(":")[2])
        tokens = []
        for name in ("good", "ill"):
            line = Pairing.parse(home.json("pair", "--url", f"wss://127.0.0.1:{port}")["line"])
            tokens.append(new_token())
            pair(line, tokens[-1], name)
        yield Linked(process, port, line.pin, *tokens)


@asynccontextmanager
async def working(at: Linked) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Gives a call that the good device answers."""
    agent, url, headers = Working("good"), at.process.ready["mcp"], at.process.ready["headers"]
    dial = Dial(
        f"wss://127.0.0.1:{at.port}",
        agent,
        role="agent",
        instance=Mint().instance(),
        token=at.token,
        pin=at.pin,
    )
    arguments = {"sessionId": "good", "calls": [{"name": "noop", "arguments": {}}]}
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "call", "arguments": arguments},
    }
    async with httpx2.AsyncClient(trust_env=False, headers=headers, timeout=60) as http:

        async def served() -> None:
            answer = await http.post(url, json=call)
            head = json.loads(answer.json()["result"]["content"][0]["text"])
            assert head["status"] == "done", head
            assert not agent.gone.is_set()

        async with dialling(dial):
            assert await anyio.to_thread.run_sync(agent.there.wait, 60)
            yield served


async def test_no_number_of_strangers_at_the_link_hurts_a_device_that_works(linked: Linked) -> None:
    """S22: wrong tokens, and connections that stop after TCP, TLS or the upgrade: answered or cut, and not
    kept; the device works during all of it, over the same link."""
    async with working(linked) as served:
        await served()
        before = _resident(linked.process.pid)
        found: list[object] = []

        async def attack(of: Awaitable[object]) -> None:
            found.append(await of)

        stages: tuple[siege.Stage, ...] = ("tcp", "tls", "websocket")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attack, siege.wrong_tokens(linked.port, 300))
            for stage in stages:
                tasks.start_soon(attack, siege.half_open(linked.port, 300, stage, linked.ill))
            while len(found) < 4:
                await served()
                await anyio.sleep(0.05)
        grown = _resident(linked.process.pid) - before
        await served()
    (answers,) = [each for each in found if isinstance(each, Counter)]
    assert sum(answers.values()) == 300
    assert set(answers) <= {b"401", b"429", b"cut"}
    assert found.count(300) == 3  # each was cut: the broker waits for none of them
    assert grown < GROWTH, f"it grew by {grown} KiB"


async def test_a_hundred_megabytes_on_the_link_are_not_kept(linked: Linked) -> None:
    """S22: lines and frames without an end, of a stranger and of a device that means ill."""
    async with working(linked) as served:
        await served()
        before, taken = _resident(linked.process.pid), []

        async def attack() -> None:
            taken.extend(await siege.endless(linked.port, 100 << 20, linked.ill))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attack)
            while not taken:
                await served()
                await anyio.sleep(0.01)
        grown = _resident(linked.process.pid) - before
        await served()
    assert len(taken) == 5
    assert max(taken) < 100 << 20, "all was read of somebody who had broken the rules"
    assert grown < GROWTH, f"it grew by {grown} KiB"


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
