"""One machine with a broker, agents and a client, each a real process that can be killed or stopped."""

import json
import os
import selectors
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from .client import Job
from .journal import Account

PATIENCE = 60.0
REPOSITORY = Path(__file__).parents[2]


class Machine:
    """`root` is empty; `keys`: how many of the client's requests carry one.  Blocks while it works."""

    def __init__(self, root: Path, seed: int, *, agents: int = 2, keys: float = 0.6) -> None:
        self.root = root
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.state = root / "state"
        self._seed, self._keys = seed, keys
        self._http = "127.0.0.1:0"
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("CHAPPIE_", "XDG_"))
        }
        self._environment = {**kept, "HOME": str(root)}
        self.agents = [f"agent{number}" for number in range(agents)]
        self.job: Job

    def boot(self) -> None:
        told = self.start_broker()
        self._http = told["mcp"].split("/")[2]
        sessions = [self.start_agent(name)["session"] for name in self.agents]
        self.job = Job(told["mcp"], told["headers"], sessions, str(self.root), self._seed, self._keys)

    def start_broker(self) -> dict[str, Any]:
        ports = ("--http", self._http, "--link", "127.0.0.1:0")
        return self._start("broker", "-m", "chappie_bridge.cli", "serve", *ports)

    def start_agent(self, name: str) -> dict[str, Any]:
        directory = self.root / name
        directory.mkdir(exist_ok=True)
        return self._start(name, "-m", "chappie_bridge.cli", "agent", "--directory", str(directory))

    def start_client(self) -> None:
        argv = (sys.executable, "-m", "tests.faults.client", self.job.written())
        self.running["client"] = subprocess.Popen(argv, text=True, env=self._environment, cwd=REPOSITORY)

    def start(self, name: str) -> None:
        if name == "client":
            self.start_client()
        elif name == "broker":
            self.start_broker()
        else:
            self.start_agent(name)

    def _start(self, name: str, *argv: str) -> dict[str, Any]:
        process = subprocess.Popen(
            [sys.executable, *argv, "--json", "--state", str(self.state), "--log-level", "error"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=self._environment,
            cwd=REPOSITORY,
        )
        self.running[name] = process
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE), f"{name} says nothing"
        line = process.stdout.readline()
        assert line, f"{name} ended with {process.wait()}"
        told: dict[str, Any] = json.loads(line)
        return told

    def kill(self, name: str) -> None:
        """`kill -9`; then its database is whole, as it lies there."""
        process = self.running.pop(name)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        if name == "broker":
            self._check(self.state / "broker.db")
        elif name != "client":
            (index,) = self.state.glob(f"agents/{name}-*/*/index.db")
            self._check(index)

    def stopped(self, name: str, seconds: float) -> None:
        """It stands still for a while; its connections stay open and say nothing."""
        process = self.running[name]
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def finish(self) -> None:
        """No more work is wanted; the client ends when everything was told."""
        self.job.over.touch()
        client = self.running.pop("client")
        assert client.wait(2 * PATIENCE) == 0

    def _check(self, path: Path) -> None:
        """A copy: opening a database repairs it, and that is for the program to do."""
        copy = self.root / "copy.db"
        for end in ("", "-wal"):
            if path.with_name(path.name + end).exists():
                shutil.copyfile(path.with_name(path.name + end), copy.with_name(copy.name + end))
        with closing(sqlite3.connect(copy)) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)], path
        for left in self.root.glob("copy.db*"):
            left.unlink()

    def effects(self) -> list[str]:
        path = self.job.effects
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    def account(self) -> Account:
        return Account(self.job.journal)

    def end(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.running.clear()


@contextmanager
def machine(root: Path, seed: int, **options: Any) -> Iterator[Machine]:
    """With everything on it ended at the end."""
    made = Machine(root, seed, **options)
    try:
        made.boot()
        yield made
    finally:
        made.end()
