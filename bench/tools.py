"""Native tools through the whole bridge, beside the bare SDK and what people would use instead.

    python bench/tools.py [--rounds 7] [--peers DIR]

DIR holds the peers, each installed by its own name: `npm install @anthropic-ai/claude-code
@wonderwhy-er/desktop-commander` and a virtual environment `venv` with `coding-tools-mcp`.  A peer that is
not there is left out and named.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from _bridges import Server, StdioPeer, calls, floor, up
from _measure import Figures, interleaved, record, table
from _wire_client import WireClient

WIDE = 32
FLOOD = "head -c 20000000 /dev/zero | tr '\\0' 'x' | fold -w 99"

Case = Callable[[], Awaitable[list[float]]]


async def _timed(work: Callable[[], Awaitable[object]], count: int) -> list[float]:
    samples = []
    for _ in range(count):
        began = time.perf_counter()
        await work()
        samples.append(time.perf_counter() - began)
    return samples


class Bridge:
    """`chappie-bridge up`, over HTTP."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client = WireClient(server.url, server.headers)

    async def open(self) -> None:
        await self._client.open()

    async def run(self, *calls_: tuple[str, dict[str, Any]]) -> None:
        await self._client.call("call", calls(self._server.session, *calls_))

    def cases(self, file: Path) -> dict[str, Callable[[], Awaitable[object]]]:
        wide = [("bash", {"command": f"echo {n}"}) for n in range(WIDE)]
        return {
            "read 1 KB": partial(self.run, ("read", {"path": str(file)})),
            "true": partial(self.run, ("bash", {"command": "true"})),
            "32 echo": partial(self.run, *wide),
            "20 MB": partial(self.run, ("bash", {"command": FLOOD})),
        }


class Bare:
    """The SDK's server doing the same with no bridge: 32 parallel requests are 32 connections."""

    def __init__(self, server: Server) -> None:
        self._clients = [WireClient(server.url) for _ in range(WIDE)]

    async def open(self) -> None:
        for client in self._clients:
            await client.open()

    def cases(self, file: Path) -> dict[str, Callable[[], Awaitable[object]]]:
        one = self._clients[0]

        async def wide() -> None:
            work = [c.call("run", {"argv": ["bash", "-c", f"echo {n}"]}) for n, c in enumerate(self._clients)]
            await asyncio.gather(*work)

        return {
            "read 1 KB": partial(one.call, "read", {"path": str(file)}),
            "true": partial(one.call, "run", {"argv": ["bash", "-c", "true"]}),
            "32 echo": wide,
        }


class Stdio:
    """A peer over stdio: the names of its tools and of their arguments."""

    def __init__(self, peer: StdioPeer, read: tuple[str, str], shell: tuple[str, str], **more: Any) -> None:
        self._peer, self._read, self._shell, self._more = peer, read, shell, more

    async def open(self) -> None:
        await self._peer.open()

    async def close(self) -> None:
        await self._peer.close()

    async def _run(self, command: str) -> None:
        await self._peer.call(self._shell[0], {self._shell[1]: command, **self._more})

    def cases(self, file: Path) -> dict[str, Callable[[], Awaitable[object]]]:
        async def wide() -> None:
            await asyncio.gather(*(self._run(f"echo {n}") for n in range(WIDE)))

        return {
            "read 1 KB": partial(self._peer.call, self._read[0], {self._read[1]: str(file)}),
            "true": partial(self._run, "true"),
            "32 echo": wide,
            "20 MB": partial(self._run, FLOOD),
        }


def peers(directory: Path | None, work: Path) -> dict[str, Stdio]:
    found: dict[str, Stdio] = {}
    if directory is None:
        return found
    claude = directory / "node_modules/.bin/claude"
    if claude.exists():
        peer = StdioPeer(str(claude), "mcp", "serve", cwd=work)
        found["claude mcp serve"] = Stdio(peer, ("Read", "file_path"), ("Bash", "command"))
    commander = directory / "node_modules/.bin/desktop-commander"
    if commander.exists():
        peer = StdioPeer(str(commander), cwd=work)
        found["Desktop Commander"] = Stdio(
            peer, ("read_file", "path"), ("start_process", "command"), timeout_ms=20_000
        )
    coding = directory / "venv/bin/coding-tools-mcp"
    if coding.exists():
        peer = StdioPeer(str(coding), "--stdio", "--permission-mode", "dangerous", cwd=work)
        found["coding-tools-mcp"] = Stdio(peer, ("read_file", "path"), ("exec_command", "cmd"))
    return found


async def main(rounds: int, directory: Path | None) -> None:
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        root = Path(scratch)
        work = root / "work"
        work.mkdir()
        file = work / "one-kilobyte.txt"
        file.write_text("0123456789abcde\n" * 64, encoding="utf-8")
        all_: dict[str, Any] = {
            "bare SDK": Bare(stack.enter_context(floor())),
            "bridge": Bridge(stack.enter_context(up(root, work))),
            **peers(directory, work),
        }
        opened: dict[str, Any] = {}
        for name, subject in all_.items():
            try:
                await subject.open()
                for case in subject.cases(file).values():
                    await case()
                opened[name] = subject
            except Exception as error:
                print(f"left out {name}: {error!r:.300}", file=sys.stderr)
        text = ""
        for case, count in (("read 1 KB", 20), ("true", 20), ("32 echo", 2), ("20 MB", 1)):
            subjects = {
                name: subject.cases(file)[case]
                for name, subject in opened.items()
                if case in subject.cases(file)
            }
            timed: dict[str, Case] = {name: partial(_timed, work_, count) for name, work_ in subjects.items()}
            reference = "bare SDK" if "bare SDK" in timed else "bridge"
            figures: dict[str, Figures] = await interleaved(timed, floor=reference, rounds=rounds)
            text += f"{case}\n{table(figures)}\n\n"
        for subject in opened.values():
            if isinstance(subject, Stdio):
                await subject.close()
    goal = "true <= 0.5x claude mcp serve; 32 echo <= 1.3x bare SDK; 20 MB <= 1.1x coding-tools-mcp"
    record("tools", text.rstrip(), goal)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", type=Path)
    options = parser.parse_args()
    asyncio.run(main(options.rounds, options.peers))
