"""A paired device that works while others mean ill at the link's TLS port: its p99 against its own in peace.

One `serve` that listens off loopback, as `up` does; a device over TLS that answers at once; a client that
calls it, one call after another.  In a process of their own: 10,000 wrong tokens, 1,000 connections each
that stop after TCP, TLS and the upgrade, lines and frames of 100 MB.  What that takes from a machine of few
cores is not the broker's doing, so each attack goes at another broker, too, while the good client calls the
first: `beside` is its p99 then.  Then: how long a revoked device's link lives, and what one hostile megabyte
costs.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
from _measure import quantile, record
from chappie_agents.dial import Dial
from chappie_agents.enrol import new_token, pair
from chappie_broker.state import StateDirectory
from siege_http import resident

from chappie_bridge.cli.loop import run, settled
from chappie_bridge.cli.reach import SHELL, reached
from chappie_bridge.wire.errors import Forbidden
from chappie_bridge.wire.ids import Mint
from chappie_bridge.wire.link import LinkFault, decode
from chappie_bridge.wire.owner import PairDevice, RevokeDevice
from chappie_bridge.wire.pairing import Pairing

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.peer.siege import endless, half_open, megabytes, wrong_tokens
from tests.peer.working import Working

SAMPLES = 400

REVOKED = 7

GOAL = "memory bounded; p99 <= 3x idle (beside: machine alone); revoked within 1 s; 1 MB <= 50 ms of CPU"

ATTACKS: dict[str, Callable[[int, str], Coroutine[Any, Any, object]]] = {
    "wrong tokens": lambda port, token: wrong_tokens(port, 10_000),
    "half-open, TCP": lambda port, token: half_open(port, 1_000, "tcp"),
    "half-open, TLS": lambda port, token: half_open(port, 1_000, "tls"),
    "half-open, upgraded": lambda port, token: half_open(port, 1_000, "websocket", token),
    "100 MB lines, frames": lambda port, token: endless(port, 100 << 20, token),
}


async def good(url: str, headers: dict[str, str], until: Callable[[], bool]) -> list[float]:
    call = {"sessionId": "good", "calls": [{"name": "noop", "arguments": {}}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "call", "arguments": call}}
    taken: list[float] = []
    async with httpx2.AsyncClient(trust_env=False, headers=headers, timeout=60) as http:
        while not until() or len(taken) < SAMPLES:
            began = time.perf_counter()
            answer = await http.post(url, json=body)
            taken.append(time.perf_counter() - began)
            assert '\\"status\\":\\"done\\"' in answer.text.replace(" ", ""), answer.text
            await asyncio.sleep(0.002)
    return taken


class Bridge:
    """What runs, and its owner's word."""

    def __init__(self, directory: str, ready: dict[str, Any], pid: int) -> None:
        self.ready, self.pid = ready, pid
        self.state = StateDirectory.visit(Path(directory) / "state")
        self.port = int(ready["link"].rpartition(":")[2])
        self.url = f"wss://127.0.0.1:{self.port}"

    async def paired(self, name: str) -> tuple[Pairing, str]:
        async with reached(self.state) as owner:
            made = await owner.pair(PairDevice(caller=SHELL, name=name, url=self.url))
        line, token = Pairing.parse(made.line), new_token()
        await asyncio.to_thread(pair, line, token, name)
        return line, token

    def working(self, line: Pairing, token: str, session: str) -> tuple[Working, Dial]:
        agent, instance = Working(session), Mint().instance()
        return agent, Dial(self.url, agent, role="agent", instance=instance, token=token, pin=line.pin)


def begun(name: str, port: int, token: str) -> "subprocess.Popen[bytes]":
    attack = subprocess.Popen([sys.executable, __file__, name, str(port)], stdin=subprocess.PIPE)
    assert attack.stdin is not None
    attack.stdin.write(token.encode())  # no secret on a command line
    attack.stdin.close()
    return attack


async def measured(bridge: Bridge, other: Bridge) -> list[str]:
    agent, dial = bridge.working(*await bridge.paired("good"), "good")
    running = asyncio.create_task(dial.run())
    await asyncio.to_thread(agent.there.wait, 30)
    ill = {each: (await each.paired("ill"))[1] for each in (bridge, other)}
    url, headers = bridge.ready["mcp"], bridge.ready["headers"]
    await good(url, headers, lambda: True)  # warms up
    idle = await good(url, headers, lambda: True)
    lines = [
        f"{'case':<22}{'p50 ms':>8}{'p99 ms':>8}{'beside':>8}{'/ idle':>8}{'/ beside':>10}{'s':>5}{'MiB':>6}"
    ]
    lines.append(_line("idle", idle, idle, idle, 0, resident(bridge.pid)))
    for name in ATTACKS:
        samples, most, since = {}, 0.0, 0.0
        for attacked in (other, bridge):
            attack, since = begun(name, attacked.port, ill[attacked]), time.monotonic()

            def ended(attack: "subprocess.Popen[bytes]" = attack) -> bool:
                nonlocal most
                most = max(most, resident(bridge.pid))
                return attack.poll() is not None

            samples[attacked] = await good(url, headers, ended)
            assert attack.wait() == 0
        seconds = time.monotonic() - since
        lines.append(_line(name, samples[bridge], idle, samples[other], seconds, most))
        print(lines[-1], flush=True)
    after = await good(url, headers, lambda: True)
    lines.append(_line("idle, after", after, idle, idle, 0, resident(bridge.pid)))
    running.cancel()
    await asyncio.wait([running])
    return lines


async def revoked(bridge: Bridge) -> list[float]:
    """Seconds from the owner's word to the end of the device's live link."""
    taken = []
    for number in range(REVOKED):
        agent, dial = bridge.working(*await bridge.paired(f"revoked{number}"), f"revoked{number}")
        running = asyncio.create_task(dial.run())
        await asyncio.to_thread(agent.there.wait, 30)
        async with reached(bridge.state) as owner:
            began = time.perf_counter()
            await owner.revoke(RevokeDevice(caller=SHELL, device=f"revoked{number}"))
            await asyncio.to_thread(agent.gone.wait, 30)
            taken.append(time.perf_counter() - began)
        with suppress(Forbidden):
            await running
    return taken


async def hostile() -> None:
    """Prints milliseconds of processor time of the dearest megabyte, each taken three times, and which."""

    def cost(text: str) -> float:
        began = time.process_time()
        with suppress(LinkFault):
            decode(text)
        return (time.process_time() - began) * 1e3

    settled()
    dearest, which = max((cost(text), text[:60]) for text in megabytes() for _ in range(3))
    print(f"the dearest hostile megabyte: {dearest:.0f} ms of CPU ({which}...)")


def _line(
    name: str, taken: list[float], idle: list[float], beside: list[float], seconds: float, mib: float
) -> str:
    p50, p99 = quantile(taken, 0.5) * 1e3, quantile(taken, 0.99) * 1e3
    alone, control = quantile(idle, 0.99) * 1e3, quantile(beside, 0.99) * 1e3
    ratios = f"{control:>8.1f}{p99 / alone:>8.1f}{p99 / control:>10.2f}"
    return f"{name:<22}{p50:>8.1f}{p99:>8.1f}{ratios}{seconds:>5.0f}{mib:>6.0f}"


@contextmanager
def serving(directory: str) -> Iterator[Bridge]:
    command = [sys.executable, "-m", "chappie_bridge.cli", "serve", "--json"]
    command += ["--state", f"{directory}/state", "--http", "127.0.0.1:0", "--link", "0.0.0.0:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    try:
        assert server.stdout is not None
        yield Bridge(directory, json.loads(server.stdout.readline()), server.pid)
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as two,
        serving(one) as bridge,
        serving(two) as other,
    ):
        lines = asyncio.run(measured(bridge, other))
        cut = asyncio.run(revoked(bridge))
    median, most = statistics.median(cut) * 1e3, max(cut) * 1e3
    lines.append(f"a revoked device's link ends after {median:.0f} ms, at most {most:.0f}")
    # As the bridge runs: the same loop, the same rule for when the collector walks everything.
    dearest = subprocess.run([sys.executable, __file__, "hostile"], stdout=subprocess.PIPE, check=True)
    lines.append(dearest.stdout.decode().strip())
    record("siege_link", "\n".join(lines), GOAL)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(ATTACKS[sys.argv[1]](int(sys.argv[2]), sys.stdin.read()))
    elif len(sys.argv) == 2:
        run(hostile)
    else:
        main()
