"""From the word that stops it to the end of the process at its device, by each way to say so.

    python bench/cancel.py [--rounds 20]

A real `chappie-bridge up`; the tool is `bash`, with a command that would run for minutes.
"""

import argparse
import asyncio
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from _bridges import CLI, Server, StdioPeer, calls, up
from _measure import quantile, record
from _wire_client import WireClient

PATIENCE = 30.0


class Work:
    """A command that says that it runs, and goes on until it is stopped."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "running"
        self.command = f"echo $$ > {self._file}.new && mv {self._file}.new {self._file} && exec sleep 600"

    async def begun(self) -> int:
        """Its process."""
        async with asyncio.timeout(PATIENCE):
            while not self._file.exists():  # noqa: ASYNC110 - a file
                await asyncio.sleep(0.005)
        pid = int(self._file.read_text(encoding="ascii"))
        self._file.unlink()
        return pid

    async def gone(self, pid: int) -> float:
        """Seconds until it is."""
        began = time.perf_counter()
        async with asyncio.timeout(PATIENCE):
            while alive(pid):  # noqa: ASYNC110 - another's child
                await asyncio.sleep(0.001)
        return time.perf_counter() - began


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def by_argument(server: Server, state: Path, work: Work) -> float:
    asking, stopping = (WireClient(server.url, server.headers) for _ in range(2))
    arguments = {**calls(server.session, ("bash", {"command": work.command})), "wait": 0.05}
    told = await asking.call("call", arguments)
    pid = await work.begun()
    operation = told["content"][0]["text"].split('"operation":"')[1].split('"')[0]
    request = stopping.prepared("call", {"operation": operation, "cancel": True}, "bench")
    stop = asyncio.create_task(stopping.exchange(request))
    took = await work.gone(pid)
    await stop
    for client in (asking, stopping):
        client.close()
    return took


async def by_notice(server: Server, state: Path, work: Work) -> float:
    peer = StdioPeer(*CLI, "mcp", "--state", str(state), cwd=state)
    await peer.open()
    arguments = calls(server.session, ("bash", {"command": work.command}))
    asking = asyncio.create_task(peer.call("call", arguments))
    pid = await work.begun()
    peer._send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": peer._number}})
    took = await work.gone(pid)
    asking.cancel()
    await peer.close()
    return took


async def by_interrupt(server: Server, state: Path, work: Work) -> float:
    argv = (*CLI, "call", str(server.session), "bash", f"command={work.command}", "--state", str(state))
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    pid = await work.begun()
    process.send_signal(signal.SIGINT)
    took = await work.gone(pid)
    await process.wait()
    return took


WAYS: dict[str, Callable[[Server, Path, Work], Awaitable[float]]] = {
    "`cancel:true` over HTTP": by_argument,
    "a stdio client's notice": by_notice,
    "Ctrl-C in `chappie-bridge call`": by_interrupt,
}


async def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        directory = root / "work"
        directory.mkdir()
        with up(root, directory) as server:
            work = Work(directory)
            times = {
                name: [await way(server, root / "up", work) for _ in range(rounds)]
                for name, way in WAYS.items()
            }
    lines = [f"{'way':<34}{'p50 ms':>8}{'worst ms':>10}"]
    for name, took in times.items():
        lines.append(f"{name:<34}{quantile(took, 0.5) * 1e3:>8.1f}{max(took) * 1e3:>10.1f}")
    record("cancel", "\n".join(lines), "stopped at the device within 1 s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    asyncio.run(main(parser.parse_args().rounds))
