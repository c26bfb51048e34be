"""Starts the real program in an empty home and sees to it that nothing of it is left behind."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

PATIENCE = 60.0
"""Seconds until something that ought to happen counts as not happening, on a machine however slow."""


class Home:
    """An empty home with its own state directory and a directory to work in."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.work = root / "work"
        self.work.mkdir()
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("CHAPPIE_", "XDG_"))
        }
        self.environment = {**kept, "HOME": str(root)}

    def argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "chappie_bridge.cli", *arguments, "--state", str(self.state)]

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A command to its end."""
        return subprocess.run(
            self.argv(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=PATIENCE,
            env=self.environment,
            cwd=self.work,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        """What a command says with `--json`; it must have worked."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def started(self, *arguments: str) -> Iterator["Process"]:
        """A command that goes on; it is killed with all it started when nobody stopped it before."""
        before = self.processes()
        errors = (self.root / f"stderr-{time.monotonic_ns()}").open("w+", encoding="utf-8")
        with errors:
            process = subprocess.Popen(
                self.argv(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env=self.environment,
                cwd=self.work,
            )
            running = Process(process, Path(errors.name))
            try:
                yield running
            finally:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()
                for pid in set(self.processes()).difference(before):
                    os.kill(pid, signal.SIGKILL)

    @contextmanager
    def up(self, *arguments: str) -> Iterator["Process"]:
        """`up` on free ports, ready."""
        ports = ("--http", "127.0.0.1:0", "--link", "127.0.0.1:0")
        with self.started("up", "--json", *ports, "--directory", str(self.work), *arguments) as process:
            process.ready = process.line()
            yield process

    def processes(self) -> list[int]:
        """Living processes that were started for this home's state."""
        return commands_with(str(self.state))


class Process:
    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self.process = process
        self.ready: dict[str, Any] = {}
        self._errors = errors

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        return self._errors.read_text(encoding="utf-8")

    def line(self) -> dict[str, Any]:
        """The next line of stdout, as JSON."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE), f"it says nothing: {self.stderr}"
        line = self.process.stdout.readline()
        assert line, f"it ended: {self.stderr}"
        found: dict[str, Any] = json.loads(line)
        return found

    def stop(self, number: int) -> tuple[int, str]:
        """Send a signal and wait; gives the exit code and the rest of stdout."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, rest

    def client(self, mode: str, conversation: str = "") -> "Any":
        return client(self.ready["mcp"], self.ready["headers"], mode, conversation)


class Chat:
    """ChatGPT in one conversation, as far as tools see it."""

    def __init__(self, mcp: Client, conversation: str) -> None:
        self._mcp = mcp
        self._meta = {"openai/session": conversation} if conversation else None

    async def tool(self, name: str, **arguments: Any) -> tuple[dict[str, Any], list[str]]:
        """The head of a result and the texts after it."""
        result = await self._mcp.call_tool(name, arguments, meta=self._meta)
        texts = [block.text for block in result.content if block.type == "text"]
        return json.loads(texts[0]), texts[1:]


@asynccontextmanager
async def client(url: str, headers: dict[str, str], mode: str, conversation: str) -> AsyncIterator[Chat]:
    """The SDK's own client in one era."""
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE, trust_env=False) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode) as mcp:
            yield Chat(mcp, conversation)


def commands_with(text: str) -> list[int]:
    """Living processes (no zombies) that have `text` in their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if (
                text in path.read_text(encoding="utf-8", errors="replace")
                and int(path.parent.name) != os.getpid()
            ):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for what no event tells: the state of other processes."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"still not so: {what}"
        time.sleep(0.05)
