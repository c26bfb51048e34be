"""Round trips of one small message over the link (unix socket, two processes), beside bare `websockets`.

    python bench/link.py [--rounds 9] [--trips 4000]

Prints medians and the spread over interleaved rounds, for asyncio and, where installed, uvloop.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from chappie_agents.dial import Dial
from chappie_broker.hub import Hub
from websockets.asyncio.client import unix_connect
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.exceptions import ConnectionClosed

from chappie_bridge.wire.ids import DeviceId, InstanceId
from chappie_bridge.wire.messages import Message, Withdraw
from chappie_bridge.wire.ports import Link

SMALL = '{"n":12345,"a":12344,"m":{"type":"withdraw","request":123456}}'


class Silent:
    """An attendant that does nothing."""

    def link_up(self, link: Link) -> None: ...
    def link_back(self, link: Link) -> None: ...
    def link_down(self, link: Link) -> None: ...
    def link_gone(self, link: Link) -> None: ...
    def received(self, link: Link, message: Message) -> None: ...
    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> None: ...


class Echo(Silent):
    def received(self, link: Link, message: Message) -> None:
        link.send(message)


class Counting(Silent):
    """Keeps `burst` messages under way until `trips` have come back."""

    def __init__(self, trips: int, burst: int) -> None:
        self.left, self.burst = trips, burst
        self.done = asyncio.Event()

    def link_up(self, link: Link) -> None:
        self.began = time.perf_counter()
        for _ in range(self.burst):
            link.send(Withdraw(request=123456))

    def received(self, link: Link, message: Message) -> None:
        self.left -= 1
        if self.left <= 0:
            self.done.set()
        else:
            link.send(message)


async def serve_link(path: str) -> None:
    hub = Hub(
        Echo(),
        instance=InstanceId("i_bench"),
        authenticate=lambda token: None,
        local_device=DeviceId("d_local"),
        version="",
    )
    async with hub.serve_unix(Path(path)):
        print("ready", flush=True)
        await asyncio.Event().wait()


async def serve_bare(path: str) -> None:
    async def echo(connection: ServerConnection) -> None:
        try:
            while True:
                await connection.send(await connection.recv())
        except ConnectionClosed:
            pass

    async with unix_serve(echo, path, compression=None):
        print("ready", flush=True)
        await asyncio.Event().wait()


async def trips_link(path: str, trips: int, burst: int) -> float:
    counting = Counting(trips, burst)
    dial = Dial(f"unix:{path}", counting, role="agent", instance=InstanceId("i_dial"))
    run = asyncio.create_task(dial.run())
    await counting.done.wait()
    rate = trips / (time.perf_counter() - counting.began)
    run.cancel()
    await asyncio.wait([run])
    return rate


async def trips_bare(path: str, trips: int, burst: int) -> float:
    async with unix_connect(path, compression=None) as connection:
        began = time.perf_counter()
        for _ in range(burst):
            await connection.send(SMALL)
        for _ in range(trips):
            await connection.recv()
            await connection.send(SMALL)
        return trips / (time.perf_counter() - began)


SERVERS: dict[str, Callable[[str], Awaitable[None]]] = {"link": serve_link, "bare": serve_bare}
CLIENTS: dict[str, Callable[[str, int, int], Awaitable[float]]] = {"link": trips_link, "bare": trips_bare}


def run(work: Any, loop: str) -> Any:
    if loop == "uvloop":
        import uvloop

        return uvloop.run(work)
    return asyncio.run(work)


def measure(what: str, loop: str, trips: int, burst: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/s"
        server = subprocess.Popen(
            [sys.executable, __file__, "--serve", what, path, loop], stdout=subprocess.PIPE, encoding="utf-8"
        )
        try:
            assert server.stdout is not None
            server.stdout.readline()
            rate: float = run(CLIENTS[what](path, trips, burst), loop)
            return rate
        finally:
            server.kill()
            server.communicate()


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--trips", type=int, default=4000)
    arguments.add_argument("--serve", nargs=3)
    options = arguments.parse_args()
    if options.serve:
        what, path, loop = options.serve
        run(SERVERS[what](path), loop)
        return
    try:
        import uvloop  # noqa: F401 - is it there?
    except ImportError:
        loops = ["asyncio"]
    else:
        loops = ["asyncio", "uvloop"]
    rows = [(loop, burst, what) for loop in loops for burst in (1, 32) for what in ("bare", "link")]
    rates: dict[tuple[str, int, str], list[float]] = {row: [] for row in rows}
    for _ in range(options.rounds):
        for loop, burst, what in rows:
            rates[loop, burst, what].append(measure(what, loop, options.trips, burst))
    for (loop, burst, what), found in rates.items():
        print(
            f"{loop:8} {burst:3} under way  {what:5} {statistics.median(found):8.0f}/s"
            f"   ({min(found):.0f} to {max(found):.0f})"
        )


if __name__ == "__main__":
    main()
