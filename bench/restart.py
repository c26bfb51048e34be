"""`kill -9` of the broker under load, again and again: what is lost, run twice, and how soon all works again.

    python bench/restart.py [--cycles 50] [--seed 1]

Real processes: broker, two agents, and a client of four conversations whose calls append one line each; a
fifth asks beside them until it is answered.  The time is from the start of the new broker's process.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import anyio
from _measure import quantile, record

from chappie_bridge.demo.chatgpt import ChatGPT, LostAnswer, Refused

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults.client import SUBJECT
from tests.faults.machine import Machine, machine

PATIENCE = 30.0


async def first_answer(chatgpt: ChatGPT, session: str) -> None:
    """Until a call has gone to the agent and back."""
    calls = [{"name": "bash", "arguments": {"command": "true"}}]
    with anyio.fail_after(PATIENCE):
        while True:
            request = chatgpt.call("v1/probe", "call", {"calls": calls, "sessionId": session, "wait": 10})
            try:
                if '"status":"done"' in (await chatgpt.send(request))["content"][0]["text"]:
                    return
            except (LostAnswer, Refused):
                await asyncio.sleep(0.01)


async def cycles(here: Machine, count: int, random: Random) -> list[float]:
    chatgpt = ChatGPT(here.job.url, here.job.headers)
    chatgpt._subject = SUBJECT
    times = []
    for _ in range(count):
        await asyncio.sleep(random.uniform(0.05, 0.6))
        here.kill("broker")
        began = time.perf_counter()
        starting = asyncio.create_task(asyncio.to_thread(here.start, "broker"))
        await first_answer(chatgpt, here.job.sessions[0])
        times.append(time.perf_counter() - began)
        await starting
    return times


def main(count: int, seed: int) -> None:
    with tempfile.TemporaryDirectory() as scratch, machine(Path(scratch), seed) as here:
        here.start_client()
        times = asyncio.run(cycles(here, count, Random(seed)))  # noqa: S311 - no secret
        here.finish()
        here.kill("broker")  # whose registry is looked at, as after every kill
        account, effects = here.account(), here.effects()
        faults = account.faults(effects)
    ends = Counter(account.ends.values())
    twice = sum(each > 1 for each in Counter(effects).values())
    crossed = sum("was shown" in fault for fault in faults)
    text = "\n".join(
        (
            f"{count} kills, seed {seed}: {len(account.asked)} calls, {len(effects)} ran; {dict(ends)}",
            f"lost {len(faults) - twice - crossed}, run twice {twice}, crossed {crossed}; integrity ok",
            f"start to first answered call p50 {quantile(times, 0.5):.2f} s, p90 {quantile(times, 0.9):.2f}",
            *faults,
        )
    )
    record("restart", text, "lost 0, run twice 0, crossed 0, integrity ok")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    main(options.cycles, options.seed)
