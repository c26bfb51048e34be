"""`call` of an empty native tool against the bare SDK's empty tool, in one run.

    python bench/hop.py [--rounds 15] [--calls 200] [--concurrent 32]

Floor: `_floor_server.py`.  In process: agent and broker in one process.  Unix: broker and front door by
`chappie-bridge up --no-agent`, the agent a process of its own on the unix socket.
"""

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from _bridges import calls, floor, in_process, over_unix, until_online
from _measure import interleaved, record, table
from _wire_client import WireClient


async def sequential(rounds: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        root = Path(scratch)
        servers = {
            "floor: bare SDK": stack.enter_context(floor()),
            "in process": stack.enter_context(in_process(root)),
            "unix socket": stack.enter_context(over_unix(root))[0],
        }
        cases: dict[str, Callable[[], Awaitable[list[float]]]] = {}
        cpu: dict[str, float] = {}
        clients = []
        for name, server in servers.items():
            client = WireClient(server.url, server.headers)
            await client.open()
            clients.append(client)
            if server.session is None:
                request = client.prepared("echo", {"text": ""}, "bench")
            else:
                await until_online(client, [server.session])
                await client.call("call", calls(server.session, ("noop", {})))
                request = client.prepared("call", calls(server.session, ("noop", {})), "bench")
            await client.timed(request, 200)
            cases[name] = partial(client.timed, request, count)
            cpu[name] = -server.cpu()
        figures = await interleaved(cases, floor="floor: bare SDK", rounds=rounds)
        text = table(figures) + "\n"
        for name, server in servers.items():
            used = (cpu[name] + server.cpu()) / (rounds * count) * 1e3
            text += f"CPU per call, {name}: {used:.2f} ms\n"
        for client in clients:
            client.close()
    record("hop", text.rstrip(), "in process <= 1.2, unix <= 1.6, p99 ratio <= 2")


async def concurrent(rounds: int, count: int, width: int) -> None:
    """Throughput of `width` clients over 8 sessions, as a ratio to the bare server's."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        root = Path(scratch)
        bare = stack.enter_context(floor())
        bridge, sessions = stack.enter_context(over_unix(root, agents=8))
        first = WireClient(bridge.url, bridge.headers)
        await first.open()
        await until_online(first, sessions)
        rates: dict[str, list[float]] = {"floor": [], "bridge": []}
        for _ in range(rounds):
            for name, server in (("floor", bare), ("bridge", bridge)):
                clients = [WireClient(server.url, server.headers) for _ in range(width)]
                work = []
                for number, client in enumerate(clients):
                    await client.open()
                    if name == "floor":
                        request = client.prepared("echo", {"text": ""}, f"c{number}")
                    else:
                        request = client.prepared(
                            "call", calls(sessions[number % 8], ("noop", {})), f"c{number}"
                        )
                    work.append(client.timed(request, count))
                began = time.perf_counter()
                await asyncio.gather(*work)
                rates[name].append(width * count / (time.perf_counter() - began))
                for client in clients:
                    client.close()
        first.close()
    ratios = sorted(mine / theirs for mine, theirs in zip(rates["bridge"], rates["floor"], strict=True))
    floor_rate, rate = sorted(rates["floor"])[rounds // 2], sorted(rates["bridge"])[rounds // 2]
    text = (
        f"{width} clients, 8 sessions: bridge {rate:.0f}/s, bare SDK {floor_rate:.0f}/s, "
        f"ratio {ratios[rounds // 2]:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    )
    record("hop --concurrent", text, ">= 0.6 of the bare server's throughput")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--concurrent", type=int, default=0)
    options = parser.parse_args()
    if options.concurrent:
        asyncio.run(concurrent(min(options.rounds, 7), options.calls, options.concurrent))
    else:
        asyncio.run(sequential(options.rounds, options.calls))
