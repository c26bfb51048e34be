"""Servers for the benches, each a process (or several) that ends with its context."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _wire_client import WireClient

HERE = Path(__file__).parent
LOOPBACK = ("--http", "127.0.0.1:0", "--link", "127.0.0.1:0")
CLI = (sys.executable, "-m", "chappie_bridge.cli")


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    headers: dict[str, str]
    session: str | None
    processes: tuple[subprocess.Popen[str], ...]

    def cpu(self) -> float:
        """Seconds of CPU used by its processes so far."""
        ticks = 0
        for process in self.processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def started(*argv: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and its first line."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{argv} ended with {process.wait()}")
        yield process, line
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()


@contextlib.contextmanager
def floor() -> Iterator[Server]:
    """The bare SDK."""
    with started(sys.executable, str(HERE / "_floor_server.py")) as (process, line):
        yield Server(json.loads(line)["url"], {}, None, (process,))


@contextlib.contextmanager
def in_process(root: Path) -> Iterator[Server]:
    """The bridge with the `noop` agent inside."""
    state, directory = root / "inproc", root / "inproc-work"
    directory.mkdir()
    with started(sys.executable, str(HERE / "_noop_bridge.py"), str(state), str(directory)) as (
        process,
        line,
    ):
        told = json.loads(line)
        yield Server(told["url"], told["headers"], told["session"], (process,))


@contextlib.contextmanager
def over_unix(root: Path, agents: int = 1) -> Iterator[tuple[Server, list[str]]]:
    """The bridge and `noop` agents, each a process of its own on the unix socket."""
    state = root / "unix"
    with contextlib.ExitStack() as stack:
        up = (*CLI, "up", "--no-agent", "--json", "--state", str(state), *LOOPBACK)
        broker, line = stack.enter_context(started(*up))
        told = json.loads(line)
        processes, sessions = [broker], []
        for number in range(agents):
            directory = root / f"unix-work{number}"
            directory.mkdir()
            agent, name = stack.enter_context(
                started(sys.executable, str(HERE / "_noop_agent.py"), str(state), str(directory), "--uvloop")
            )
            processes.append(agent)
            sessions.append(name.strip())
        yield Server(told["mcp"], told["headers"], sessions[0], tuple(processes)), sessions


@contextlib.contextmanager
def up(root: Path, directory: Path) -> Iterator[Server]:
    """What a person runs: `chappie-bridge up` with the built-in agent as its child."""
    argv = (*CLI, "up", "--json", "--state", str(root / "up"), "--directory", str(directory), *LOOPBACK)
    with started(*argv) as (process, line):
        told = json.loads(line)
        yield Server(told["mcp"], told["headers"], told["session"], (process,))


async def until_online(client: WireClient, sessions: list[str]) -> None:
    for _ in range(200):
        listed = json.loads((await client.call("sessions", {"online": True}))["content"][0]["text"])
        if set(sessions) <= {row["id"] for row in listed["sessions"]}:
            return
        await asyncio.sleep(0.05)
    raise RuntimeError("the agents did not register")


def calls(session: str | None, *names_and_arguments: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """The arguments of `call`."""
    listed = [{"name": name, "arguments": arguments} for name, arguments in names_and_arguments]
    return {"calls": listed, "sessionId": session}


class StdioPeer:
    """Another MCP server over stdio, for comparison: newline-delimited JSON-RPC, one reader."""

    def __init__(self, *argv: str, cwd: Path, environment: dict[str, str] | None = None) -> None:
        self._argv, self._cwd = argv, cwd
        self._environment = {**os.environ, **(environment or {})}
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0

    async def open(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=self._cwd,
            env=self._environment,
            limit=256 * 1024 * 1024,
        )
        self._reader = asyncio.create_task(self._read())
        await self.request(
            "initialize",
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "bench", "version": "1"},
            },
        )
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            future = self._waiting.pop(message.get("id"), None)
            if future is not None and not future.done():
                future.set_result(message)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        future = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        return await asyncio.wait_for(future, 120)

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        answer = await self.request("tools/call", {"name": tool, "arguments": arguments})
        if "result" not in answer:
            raise RuntimeError(json.dumps(answer)[:300])
        return dict(answer["result"])

    async def close(self) -> None:
        self._reader.cancel()
        if self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
