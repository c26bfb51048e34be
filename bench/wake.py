"""From an entry written at an agent until the waiting `history` is answered, against a bare websocket.

    python bench/wake.py [--rounds 9] [--wakes 60]

The agent, a process of its own behind `up --no-agent`, writes an entry every few milliseconds and the time
into it; the reader, over HTTP, asks again as soon as it was answered.  Both clocks are the kernel's.
"""

import argparse
import asyncio
import contextlib
import json
import re
import sys
import tempfile
import time
from functools import partial
from itertools import count
from pathlib import Path

import _noop_agent
import anyio
from _bridges import CLI, HERE, LOOPBACK, started, until_online
from _measure import interleaved, record, table
from _wire_client import WireClient
from chappie_agents.hosts.builtin import Opened
from link import SMALL
from websockets.asyncio.client import unix_connect

from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.ids import EntryId
from chappie_bridge.wire.values import Entry

PAUSE = 0.025
"""Seconds between entries: time enough to be waiting again."""

MARK = re.compile(rb"mark:(\d+):([\d.]+)")


async def write(opened: Opened) -> None:
    """Entries into the session's transcript, straight: the clock starts where an entry is written."""
    transcript = opened.session._transcript
    for number in count():
        text = f"mark:{number}:{time.monotonic():.7f}"
        at = "2026-01-02T03:04:05.678Z"
        name = EntryId(f"m{number}")
        transcript.append(Entry(id=name, at=at, kind="notice", content=(Text(text=text),)))
        await anyio.sleep(PAUSE)


class Reader:
    def __init__(self, client: WireClient, session: str) -> None:
        self._client, self._session = client, session
        self._newest = ""

    async def wakes(self, wanted: int) -> list[float]:
        """Seconds from writing to the answer.  The first two catch up."""
        self._newest = ""
        samples = []
        for _ in range(wanted + 2):
            arguments = {"sessionId": self._session, "observer": True, "limit": 1}
            if self._newest:
                arguments |= {"after": self._newest, "wait": True, "limit": 20}
            body = await self._client.exchange(self._client.prepared("history", arguments, "reader"))
            now = time.monotonic()
            marks = MARK.findall(body)
            if not marks:
                raise RuntimeError(body[:300])
            samples.append(now - float(marks[0][1]))
            self._newest = f"m{int(marks[-1][0])}"
        return samples[2:]


async def trips(path: str, wanted: int) -> list[float]:
    """Round trips of a small message over a bare websocket to another process."""
    samples = []
    async with unix_connect(path, compression=None) as connection:
        for _ in range(wanted):
            began = time.perf_counter()
            await connection.send(SMALL)
            await connection.recv()
            samples.append(time.perf_counter() - began)
    return samples[wanted // 10 :]


async def main(rounds: int, wakes: int) -> None:
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        root = Path(scratch)
        (root / "work").mkdir()
        state, path = root / "state", str(root / "s")
        up = (*CLI, "up", "--no-agent", "--json", "--state", str(state), *LOOPBACK)
        _, line = stack.enter_context(started(*up))
        told = json.loads(line)
        agent = (sys.executable, __file__, "--agent", str(state), str(root / "work"))
        _, name = stack.enter_context(started(*agent))
        bare = (sys.executable, str(HERE / "link.py"), "--serve", "bare", path, "asyncio")
        stack.enter_context(started(*bare))
        client = WireClient(told["mcp"], told["headers"])
        await client.open()
        await until_online(client, [name.strip()])
        reader = Reader(client, name.strip())
        await reader.wakes(20)
        cases = {
            "bare websocket trip": partial(trips, path, 1000),
            "entry to answer": partial(reader.wakes, wakes),
        }
        figures = await interleaved(cases, floor="bare websocket trip", rounds=rounds)
        client.close()
    own = figures["entry to answer"]
    text = f"{table(figures)}\np99 to its own p50: {own.p99 / own.p50:.1f}"
    record("wake", text, "p50 <= 12x the trip, p99 <= 5x the p50")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--wakes", type=int, default=60)
    parser.add_argument("--agent", nargs=2, type=Path)
    options = parser.parse_args()
    if options.agent:
        anyio.run(_noop_agent.main, *options.agent, write, backend_options={"use_uvloop": True})
    else:
        asyncio.run(main(options.rounds, options.wakes))
