"""5,000 parked history waits through a broker, then entries: memory, waking, and what is left afterwards.

    python bench/waiters.py [--waits 5000] [--rounds 15]

Broker and agents are one process here, so the memory of a wait is that of both ends together, the caller's
task included: the broker's share is less.
"""

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path

import anyio
import anyio.lowlevel
from _measure import quantile, record
from _noop_agent import opened
from _processes import resident
from chappie_agents.attendant import AgentHost
from chappie_agents.hosts.builtin import Opened
from chappie_broker.broker import Broker
from chappie_broker.state import StateDirectory

from chappie_bridge.cli.serving import LOCAL, serving
from chappie_bridge.config import load
from chappie_bridge.inproc import connect
from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.ids import EntryId, Mint
from chappie_bridge.wire.ports import Peer
from chappie_bridge.wire.requests import BrokerStatus, FetchHistory
from chappie_bridge.wire.values import Caller, Entry, HistoryRange

SESSIONS = 50
WIDE = 100
_numbers = count(1)


@dataclass(frozen=True)
class Rig:
    broker: Broker
    sessions: list[Opened]


def write(session: Opened) -> EntryId:
    """One entry, straight into the transcript."""
    name = EntryId(f"e{next(_numbers)}")
    entry = Entry(id=name, at="2026-01-02T03:04:05.678Z", kind="notice", content=(Text(text="."),))
    session.session._transcript.append(entry)
    return name


def waiting(rig: Rig) -> int:
    return rig.broker._parking.waiting


async def until(rig: Rig, wanted: int) -> None:
    with anyio.fail_after(60):
        while waiting(rig) != wanted:  # noqa: ASYNC110 - a broker tells nobody who waits
            await anyio.sleep(0.002)


async def online(rig: Rig) -> int:
    return (await rig.broker.status(BrokerStatus())).sessions_online


@asynccontextmanager
async def rigged(root: Path) -> AsyncGenerator[Rig]:
    settings = load({"state": str(root / "state"), "http": "127.0.0.1:0", "listen": "127.0.0.1:0"}).settings
    with StateDirectory.open(root / "state") as state:
        async with serving(state, settings, ports=False) as running, anyio.create_task_group() as tasks:
            host = AgentHost()
            await tasks.start(host.run)
            sessions = []
            for number in range(SESSIONS + 2):
                directory = root / f"work{number}"
                directory.mkdir()
                sessions.append(opened(root / "state", directory))
                await host.add(sessions[-1].session)
            agents = Peer("agent", LOCAL, Mint().instance(), "bench")
            broker = Peer("broker", LOCAL, Mint().instance(), version("chappie-bridge"))
            connect(running.attendant, agents, host, broker)
            yield Rig(running.broker, sessions)
            tasks.cancel_scope.cancel()


async def wait(rig: Rig, session: Opened, after: EntryId, number: int, answered: list[float]) -> None:
    request = FetchHistory(
        caller=Caller(principal="owner", source="openai", value=f"chat {number}"),
        session=session.session.info.id,
        range=HistoryRange(after=after, wait=30, observer=True),
    )
    view = await rig.broker.history(request)
    assert len(view.page.entries) == 1
    answered.append(time.perf_counter())


async def woken(rig: Rig, session: Opened, width: int) -> float:
    """Seconds from an entry until the last of `width` readers has it."""
    answered: list[float] = []
    after, there = write(session), waiting(rig)
    async with anyio.create_task_group() as tasks:
        for number in range(width):
            tasks.start_soon(wait, rig, session, after, number, answered)
        await until(rig, there + width)
        await anyio.sleep(0.01)
        began = time.perf_counter()
        write(session)
    return max(answered) - began


def settled() -> tuple[float, int]:
    """Bytes of memory and objects."""
    gc.collect()
    return resident(os.getpid()), len(gc.get_objects())


async def cycle(rig: Rig, waits: int, rounds: int) -> tuple[float, list[float], list[float]]:
    """Memory with all parked, and what waking takes meanwhile; an entry in each session ends it."""
    answered: list[float] = []
    one, many = [], []
    async with anyio.create_task_group() as tasks:
        parked = [(session, write(session)) for session in rig.sessions[:SESSIONS]]
        for number in range(waits):
            session, after = parked[number % SESSIONS]
            tasks.start_soon(wait, rig, session, after, number, answered)
            if number % WIDE == 0:
                await anyio.lowlevel.checkpoint()
        await until(rig, waits)
        memory, _ = settled()
        gc.freeze()  # so that a collection does not walk all that is parked in the middle of a round
        for _ in range(rounds):
            one.append(await woken(rig, rig.sessions[-1], 1))
            many.append(await woken(rig, rig.sessions[-2], WIDE))
        gc.unfreeze()
        for session, _ in parked:
            write(session)
    assert len(answered) == waits
    return memory, one, many


async def main(waits: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        async with rigged(Path(scratch)) as rig:
            with anyio.fail_after(60):
                while await online(rig) < len(rig.sessions):  # noqa: ASYNC110 - nor a broker of who came
                    await anyio.sleep(0.01)
            await woken(rig, rig.sessions[-1], 1)
            await cycle(rig, SESSIONS, 3)
            before, objects = settled()
            parked, one, many = await cycle(rig, waits, rounds)
            left, objects_left = settled()
            again, _, _ = await cycle(rig, waits, 1)
            _, objects_again = settled()
            still = waiting(rig)
    ratios = [mine / theirs for mine, theirs in zip(many, one, strict=True)]
    text = (
        f"{waits} waits: {(parked - before) / waits / 1024:.1f} KiB each, both ends\n"
        f"waking 1: {statistics.median(one) * 1e3:.2f} ms; the last of {WIDE}: "
        f"{statistics.median(many) * 1e3:.2f} ms: ratio {statistics.median(ratios):.1f} "
        f"({quantile(ratios, 0.1):.1f}-{quantile(ratios, 0.9):.1f}), "
        f"{statistics.median(many) / WIDE * 1e6:.0f} us each\n"
        f"afterwards: {still} parked, objects {objects_left - objects:+d}, after once more "
        f"{objects_again - objects:+d} of {objects}; memory {(left - before) / 2**20:+.1f} MiB, "
        f"with {waits} parked again {(again - parked) / 2**20:+.1f} MiB of the first time"
    )
    record("waiters", text, "<= 40 KiB each; the last of 100 within 4x of waking one; back to the baseline")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waits", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    anyio.run(main, options.waits, options.rounds, backend_options={"use_uvloop": True})
