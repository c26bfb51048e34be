"""10,000 connected idle sessions and 100,000 bindings, beside a bridge with 10: memory, restart, `sessions`.

    python bench/sessions.py [--sessions 10000] [--bindings 100000] [--rounds 9] [--restarts 3]

Each session has a link of its own over the unix socket; another process plays their agents and finds back
by itself when the bridge is started again.
"""

import argparse
import asyncio
import contextlib
import json
import math
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import anyio
from _bridges import CLI, LOOPBACK, calls
from _measure import interleaved, record, table
from _processes import MIB, resident
from _wire_client import WireClient
from chappie_agents.dial import Dial
from chappie_broker.state import StateDirectory

from chappie_bridge.cli.faults import NotThere
from chappie_bridge.cli.reach import reached
from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.errors import Executed
from chappie_bridge.wire.ids import Mint, SessionId
from chappie_bridge.wire.messages import CallResult, Finished, Message, Register, RunBatch
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.requests import BrokerStatus
from chappie_bridge.wire.values import SessionInfo, ToolResult

FEW = 10
PATIENCE = 120.0
AT_ONCE = 64
"""Agents that begin to connect at the same time."""


class Idle:
    """An agent with one session, which answers every call at once."""

    def __init__(self, number: int) -> None:
        self._info = SessionInfo(
            id=SessionId(f"s_{number}"), agent="bench", device="bench", cwd=f"/work/{number}"
        )
        self.there = anyio.Event()

    def link_up(self, link: Link) -> None:
        link.send(Register(request=1, session=self._info))

    def link_back(self, link: Link) -> None: ...
    def link_down(self, link: Link) -> None: ...
    def link_gone(self, link: Link) -> None: ...
    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> None: ...

    def received(self, link: Link, message: Message) -> None:
        if message.type == "registered":
            self.there.set()
        if not isinstance(message, RunBatch):
            return
        for index, call in enumerate(message.calls):
            result = ToolResult(
                call=call.id, name=call.name, is_error=False, duration_ms=0, content=(Text(text=""),)
            )
            link.send(
                CallResult(operation=message.operation, session=message.session, index=index, result=result)
            )
        link.send(
            Finished(
                operation=message.operation,
                session=message.session,
                origin=message.origin,
                kind="batch",
                status="done",
                executed=Executed.YES,
                cwd=self._info.cwd,
                count=len(message.calls),
            )
        )


async def agents(state: Path, count: int) -> None:
    """Connects `count` agents, says so, and stays."""
    address, mint = f"unix:{StateDirectory.visit(state).socket}", Mint()
    limit = anyio.CapacityLimiter(AT_ONCE)
    idle = [Idle(number) for number in range(count)]

    async def begin(each: Idle) -> None:
        async with limit:
            dial = Dial(address, each, role="agent", instance=mint.instance(), name="bench")
            running.start_soon(dial.run)
            await each.there.wait()

    async with anyio.create_task_group() as running:
        async with anyio.create_task_group() as beginning:
            for each in idle:
                beginning.start_soon(begin, each)
        print("all there", flush=True)
        await anyio.sleep_forever()


class Bridge:
    """`up --no-agent` and the process of its agents.  Blocks while it starts something."""

    def __init__(self, root: Path, sessions: int) -> None:
        self.state, self.sessions = root, sessions
        self._process: subprocess.Popen[str] | None = None
        self._agents: subprocess.Popen[str] | None = None

    def start(self) -> None:
        argv = (*CLI, "up", "--no-agent", "--json", "--state", str(self.state), *LOOPBACK)
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        told = json.loads(self._process.stdout.readline())
        self.client = WireClient(told["mcp"], told["headers"])

    def connect(self) -> float:
        """Seconds until all are there."""
        began = time.perf_counter()
        argv = (sys.executable, __file__, "--agents", str(self.state), str(self.sessions))
        self._agents = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self._agents.stdout is not None
        if not self._agents.stdout.readline():
            raise RuntimeError("the agents ended")
        return time.perf_counter() - began

    def bind(self, bindings: int) -> None:
        """Straight into the registry, while the bridge is down."""
        now = time.time()
        registry = sqlite3.connect(StateDirectory.visit(self.state).database)
        with contextlib.closing(registry), registry:
            names = [f"c_{number:040x}" for number in range(bindings)]
            registry.executemany(
                "insert into conversation (id, principal, first_seen, last_seen) values (?, 'owner', ?, ?)",
                ((name, now, now) for name in names),
            )
            registry.executemany(
                "insert into binding (conversation, session, saved_at) values (?, ?, ?)",
                ((name, f"s_{number % self.sessions}", now) for number, name in enumerate(names)),
            )

    async def memory(self) -> float:
        assert self._process is not None
        await asyncio.sleep(3)
        return resident(self._process.pid)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self) -> None:
        self.stop()
        if self._agents is not None:
            self._agents.send_signal(signal.SIGKILL)
            self._agents.wait()

    async def restarted(self) -> tuple[float, float, float]:
        """Seconds from its start after a kill until a `call` is answered by a session that is back, until
        half of them are, and until all but one of a hundred are, which have at most `PATIENCE`."""
        self.stop()
        began = time.perf_counter()
        self.start()
        await self.client.open()
        while not (back := await self.one_online()):  # noqa: ASYNC110 - nor here
            await asyncio.sleep(0.02)
        await self.client.call("call", calls(back, ("noop", {})))
        first, half = time.perf_counter() - began, math.inf
        while (took := time.perf_counter() - began) < PATIENCE:
            online = await self.online()
            if half == math.inf and online >= self.sessions / 2:
                half = took
            if online >= self.sessions * 0.99:
                break
            await asyncio.sleep(0.1)
        else:
            took = math.inf
        return first, half, took

    async def one_online(self) -> str | None:
        listed = await self.client.call("sessions", {"online": True, "limit": 1})
        sessions = json.loads(listed["content"][0]["text"])["sessions"]
        return str(sessions[0]["id"]) if sessions else None

    async def online(self) -> int:
        """0 while nobody is let in, because too many come at once."""
        count = 0
        try:
            async with reached(StateDirectory.visit(self.state)) as broker:
                count = (await broker.status(BrokerStatus())).sessions_online
        except* NotThere:
            pass
        return count


async def pages(bridge: Bridge, count: int) -> list[float]:
    request = bridge.client.prepared("sessions", {"limit": FEW}, "bench")
    return await bridge.client.timed(request, count)


async def main(sessions: int, bindings: int, rounds: int, restarts: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        bridges = {count: Bridge(Path(scratch) / f"state{count}", count) for count in (FEW, sessions)}
        many = bridges[sessions]
        memory: dict[int, float] = {}
        came = 0.0
        for count, bridge in bridges.items():
            stack.callback(bridge.end)
            bridge.start()
            came = bridge.connect()
            memory[count] = await bridge.memory()
        many.stop()
        many.bind(bindings)
        starts: dict[int, list[tuple[float, float, float]]] = {count: [] for count in bridges}
        for _ in range(restarts):
            for count, bridge in bridges.items():
                starts[count].append(await bridge.restarted())
        bound = await many.memory()
        for bridge in bridges.values():
            await bridge.client.open()
        cases = {f"{count} sessions": partial(pages, bridge, 50) for count, bridge in bridges.items()}
        figures = await interleaved(cases, floor=f"{FEW} sessions", rounds=rounds)
    each = (memory[sessions] - memory[FEW]) / sessions / 1024
    with_bindings = (bound - memory[FEW]) / sessions / 1024
    (first, _, _), (first_many, half, nearly) = (
        [statistics.median(column) for column in zip(*found, strict=True)] for found in starts.values()
    )
    text = (
        f"{sessions} sessions connected in {came:.0f} s: bridge {memory[sessions] / MIB:.0f} MiB, with {FEW} "
        f"{memory[FEW] / MIB:.0f}: {each:.1f} KiB each; with {bindings} bindings after a restart "
        f"{with_bindings:.1f} KiB each\n"
        f"restart until a `call` is answered {first_many:.2f} s, with {FEW} {first:.2f}: "
        f"ratio {first_many / first:.1f}; half are back after {half:.1f} s, 99 % after {nearly:.1f}\n"
        f"a page of `sessions`:\n{table(figures)}"
    )
    goal = "<= 60 KiB each; restart <= 2x that with 10 and the reconnects; page <= 1.5x"
    record("sessions", text, goal)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--bindings", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--agents", nargs=2)
    options = parser.parse_args()
    if options.agents:
        state, number = options.agents
        anyio.run(agents, Path(state), int(number), backend_options={"use_uvloop": True})
    else:
        asyncio.run(main(options.sessions, options.bindings, options.rounds, options.restarts))
