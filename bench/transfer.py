"""A file from one session to another, three processes on unix sockets, beside a plain websocket relay.

    python bench/transfer.py [--mib 1024] [--rounds 5] [--wormhole DIRECTORY]   rates
    python bench/transfer.py --memory [--mib 4096]        the broker's memory, and `call` beside it
    python bench/transfer.py --cuts 200 [--mib 1024]      random cuts and kills of everything

DIRECTORY is an environment with magic-wormhole, its mailbox server and its transit relay.
"""

import argparse
import asyncio
import contextlib
import hashlib
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from _bridges import CLI, HERE, LOOPBACK, started
from _measure import quantile, record
from chappie_broker.state import StateDirectory

from chappie_bridge.cli.reach import SHELL, reached
from chappie_bridge.wire.batch import OPEN
from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.ports import Switchboard
from chappie_bridge.wire.requests import ListSessions, OperationView, Submit, Transfer
from chappie_bridge.wire.values import NewCall, RemotePaths

MIB = 1024 * 1024


class Bridge:
    """A broker and two agents, each a process that can be killed and started again."""

    def __init__(self, root: Path) -> None:
        self.root, self.state = root, root / "state"
        self.processes: dict[str, subprocess.Popen[str]] = {}
        for name in ("a", "b"):
            (root / name).mkdir()

    def start(self, name: str) -> None:
        if name == "broker":
            argv = (*CLI, "serve", "--json", "--state", str(self.state), *LOOPBACK)
        else:
            argv = (*CLI, "agent", "--json", "--state", str(self.state), "--directory", str(self.root / name))
        self.processes[name] = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def wait(self, name: str) -> None:
        process = self.processes[name]
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"{name} ended with {process.wait()}")

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def rss(self) -> float:
        """MiB of the broker."""
        text = Path(f"/proc/{self.processes['broker'].pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmRSS:\s+(\d+)", text)
        return int(found[1]) / 1024 if found else 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator["Bridge"]:
        try:
            for name in ("broker", "a", "b"):
                self.start(name)
                self.wait(name)
            yield self
        finally:
            for process in self.processes.values():
                process.send_signal(signal.SIGTERM)
            for process in self.processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                process.kill()

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[Switchboard]:
        async with reached(StateDirectory.visit(self.state)) as broker:
            yield broker

    async def sessions(self, broker: Switchboard) -> tuple[str, str]:
        for _ in range(200):
            rows = (await broker.sessions(ListSessions(caller=SHELL, online=True))).sessions
            by_directory = {row.cwd: row.id for row in rows}
            with contextlib.suppress(KeyError):
                return by_directory[str(self.root / "a")], by_directory[str(self.root / "b")]
            await asyncio.sleep(0.05)
        raise RuntimeError("the agents did not register")


def request(source: str, sink: str, name: str, wait: float) -> Transfer:
    return Transfer(
        caller=SHELL,
        session=sink,
        paths=(name,),
        source=RemotePaths(session=source, paths=(name,)),
        overwrite=True,
        wait=wait,
    )


async def ended(broker: Switchboard, view: OperationView) -> OperationView:
    while view.status in OPEN:
        view = await broker.call(Submit(caller=SHELL, operation=view.operation, wait=30))
    return view


def make(path: Path, mib: int) -> str:
    digest = hashlib.sha256()
    block = random.Random(mib).randbytes(MIB)  # noqa: S311 - content, not a secret
    with path.open("wb") as file:
        for number in range(mib):
            data = number.to_bytes(8, "big") + block[8:]
            digest.update(data)
            file.write(data)
    return digest.hexdigest()


def sha(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def over_the_bridge(broker: Switchboard, source: str, sink: str, expected: str) -> float:
    began = time.perf_counter()
    view = await ended(broker, await broker.transfer(request(source, sink, "file", 40)))
    took = time.perf_counter() - began
    assert view.files[0].sha256 == expected, view
    return took


def plainly(root: Path, *check: str) -> float:
    """The floor: no resume, and without `--check` no hash and no fsync."""
    path = str(root / "relay.sock")
    relay = (sys.executable, str(HERE / "_relay.py"))
    with (
        started(*relay, "relay", path),
        started(*relay, "receive", path, str(root / "plain"), *check) as (receiver, _),
    ):
        began = time.perf_counter()
        subprocess.run([*relay, "send", path, str(root / "a" / "file"), *check], check=True)
        receiver.wait()
        took = time.perf_counter() - began
    (root / "plain").unlink()
    return took


@contextlib.contextmanager
def wormhole_servers(place: Path) -> Iterator[tuple[str, ...]]:
    """The options of clients that use the two servers on this machine."""
    twist, mailbox, transit = str(place / "bin" / "twist"), "24391", "24392"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    servers = [
        subprocess.Popen(
            [twist, "wormhole-mailbox", f"--port=tcp:{mailbox}:interface=127.0.0.1", "--channel-db=:memory:"],
            **quiet,
        ),
        subprocess.Popen([twist, "transitrelay", f"--port=tcp:{transit}:interface=127.0.0.1"], **quiet),
    ]
    try:
        time.sleep(4)
        yield f"--relay-url=ws://127.0.0.1:{mailbox}/v1", f"--transit-helper=tcp:127.0.0.1:{transit}"
    finally:
        for server in servers:
            server.terminate()
            server.wait()


def through_a_wormhole(place: Path, options: tuple[str, ...], root: Path) -> float:
    program = str(place / "bin" / "wormhole")
    code = f"{random.randrange(1000, 9999)}-bench-file"  # noqa: S311 - of this machine only
    out = root / "wormhole"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    sender = subprocess.Popen(
        [
            program,
            *options,
            "send",
            "--no-listen",
            "--hide-progress",
            "--code",
            code,
            str(root / "a" / "file"),
        ],
        **quiet,
    )
    began = time.perf_counter()
    subprocess.run(
        [
            program,
            *options,
            "receive",
            "--no-listen",
            "--hide-progress",
            "--accept-file",
            "-o",
            str(out),
            code,
        ],
        check=True,
        **quiet,
    )
    took = time.perf_counter() - began
    sender.wait()
    out.unlink()
    return took


def ratio(ours: list[float], theirs: list[float]) -> str:
    """How much faster, median and spread of the rounds."""
    each = sorted(their / our for our, their in zip(ours, theirs, strict=True))
    return f"{statistics.median(each):.2f}x ({each[0]:.2f}-{each[-1]:.2f})"


async def rates(root: Path, mib: int, rounds: int, wormhole: Path | None) -> None:
    ours, floor, checked, other = [], [], [], []
    with Bridge(root).running() as bridge, contextlib.ExitStack() as stack:
        expected = make(root / "a" / "file", mib)
        options = stack.enter_context(wormhole_servers(wormhole)) if wormhole else ()
        async with bridge.asking() as broker:
            source, sink = await bridge.sessions(broker)
            for number in range(rounds):
                steps = [
                    (ours, lambda: over_the_bridge(broker, source, sink, expected)),
                    (floor, lambda: asyncio.to_thread(plainly, root)),
                    (checked, lambda: asyncio.to_thread(plainly, root, "--check")),
                ]
                for into, step in steps if number % 2 else steps[::-1]:
                    into.append(await step())
                if wormhole and number < 3:
                    other.append(await asyncio.to_thread(through_a_wormhole, wormhole, options, root))
        assert sha(root / "b" / "file") == expected
    lines = [
        f"{mib} MiB, median of {rounds} interleaved rounds, MiB/s:",
        f"  session to session, hashed at both ends, synced  {mib / statistics.median(ours):8.0f}",
        f"  plain websocket relay, neither                   {mib / statistics.median(floor):8.0f}",
        f"  plain websocket relay, hashed and synced         {mib / statistics.median(checked):8.0f}",
        f"  magic-wormhole through its relay                 {mib / statistics.median(other):8.0f}"
        if other
        else "  magic-wormhole: not there (--wormhole DIRECTORY)",
        f"  ratio to the plain relay {ratio(ours, floor)}, to the hashed and synced {ratio(ours, checked)}",
    ]
    record("transfer", "\n".join(lines), "≥ 0.8x a plain websocket relay of the same three processes")


def milliseconds(seconds: list[float]) -> str:
    return f"{quantile(seconds, 0.5) * 1e3:.1f} and {quantile(seconds, 0.99) * 1e3:.1f} ms"


async def memory(root: Path, mib: int) -> None:
    with Bridge(root).running() as bridge:
        (root / "a" / "file").touch()
        os.truncate(root / "a" / "file", mib * MIB)
        async with bridge.asking() as broker:
            source, sink = await bridge.sessions(broker)

            async def call() -> float:
                began = time.perf_counter()
                ls = NewCall(name="ls", arguments={})
                await broker.call(Submit(caller=SHELL, session=sink, calls=(ls,), wait=20))
                return time.perf_counter() - began

            warm: list[float] = []
            for _ in range(110):  # as far apart as later beside the relay
                warm.append(await call())
                await asyncio.sleep(0.05)
            del warm[:10]
            idle = bridge.rss()
            view = await broker.transfer(request(source, sink, "file", 0))
            peak, beside = idle, []
            while view.status in OPEN:
                beside.append(await call())
                peak = max(peak, bridge.rss())
                view = await broker.call(Submit(caller=SHELL, operation=view.operation, wait=0.05))
            assert view.status == "done", view
        assert sha(root / "b" / "file") == sha(root / "a" / "file")
    text = (
        f"{mib} MiB relayed: broker {idle:.1f} MiB idle, {peak:.1f} at most: {peak - idle:.1f} above\n"
        f"`call` of `ls`, p50 and p99: idle {milliseconds(warm)}, during the relay {milliseconds(beside)}"
        f" of {len(beside)} calls: {quantile(beside, 0.5) / quantile(warm, 0.5):.1f}x"
    )
    record("transfer --memory", text, "≤ 32 MiB above idle; `call` ≤ 2x")


async def cuts(root: Path, mib: int, count: int, seed: int) -> None:
    """Kill or cut something `count` times at moments spread over the whole file."""
    chance = random.Random(seed)  # noqa: S311 - to be repeated
    done = {"source": 0, "sink": 0, "broker": 0}
    with Bridge(root).running() as bridge:
        expected = make(root / "a" / "file", mib)
        (root / "b" / "file").write_bytes(b"old")
        began = time.perf_counter()
        async with bridge.asking() as broker:
            source, sink = await bridge.sessions(broker)
            view = await broker.transfer(request(source, sink, "file", 0))
        operation = view.operation
        for number in range(count):
            goal = mib * MIB * number // count
            which = chance.choices(("a", "b", "broker"), (2, 2, 1))[0]
            async with bridge.asking() as broker:
                while view.status in OPEN and view.files[0].moved < goal:
                    with contextlib.suppress(BridgeError):
                        view = await broker.call(Submit(caller=SHELL, operation=operation, wait=0.02))
            if view.status not in OPEN:
                break
            bridge.kill(which)
            done[{"a": "source", "b": "sink"}.get(which, which)] += 1
            size = (root / "b" / "file").stat().st_size
            assert size in (3, mib * MIB), size
            bridge.start(which)
            await asyncio.to_thread(bridge.wait, which)
        async with bridge.asking() as broker:
            while view.status in OPEN:
                with contextlib.suppress(BridgeError):
                    view = await broker.call(Submit(caller=SHELL, operation=operation, wait=10))
        took = time.perf_counter() - began
        assert view.status == "done", view
        assert sha(root / "b" / "file") == expected
        left = [path.name for path in (root / "b").rglob("*.part")]
    text = (
        f"{mib} MiB, {sum(done.values())} kills (source {done['source']}, sink {done['sink']}, broker"
        f" {done['broker']}): right hash after {took:.0f} s, parts left: {len(left)}"
    )
    record("transfer --cuts", text, "always the right hash, never a final name with wrong content")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wormhole", type=Path)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--cuts", type=int)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chp") as directory:
        root = Path(directory)
        if given.memory:
            asyncio.run(memory(root, given.mib or 4096))
        elif given.cuts:
            asyncio.run(cuts(root, given.mib or 1024, given.cuts, given.seed))
        else:
            asyncio.run(rates(root, given.mib or 1024, given.rounds, given.wormhole))


if __name__ == "__main__":
    main()
