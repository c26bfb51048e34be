"""Starts a whole bridge as its own process, and ends it.  Blocks; knows nothing of what is asked of it."""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

START_SECONDS = 60.0
STOP_SECONDS = 10.0


class NotStarted(Exception):
    """The bridge did not say that it is ready; its own words are on stderr."""


@dataclass(frozen=True)
class Ready:
    """What `up` tells: where MCP is, what a client must send, which session works there (or "")."""

    mcp: str
    headers: Mapping[str, str]
    state: Path
    session: str


@contextmanager
def bridge(state: Path, directory: Path, *options: str) -> Generator[Ready]:
    """`up` on free ports, its agent in `directory`.  Settings of the environment do not reach it.

    :raises NotStarted: it ended, or said nothing for too long."""
    argv = [sys.executable, "-m", "chappie_bridge.cli", "up", "--json", "--state", str(state)]
    argv += ["--directory", str(directory), "--http", "127.0.0.1:0", "--link", "127.0.0.1:0", *options]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment())
    with ended(process):
        told = _first_line(cast("IO[bytes]", process.stdout))
        yield Ready(told["mcp"], told["headers"], Path(told["state"]), told["session"] or "")


def environment() -> dict[str, str]:
    """Ours without the settings of a bridge."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CHAPPIE_")}


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Generator[None]:
    """Asks the process to end on the way out, and kills it where it does not."""
    with process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _first_line(stdout: IO[bytes]) -> dict[str, Any]:
    until = time.monotonic() + START_SECONDS
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n") and selector.select(max(until - time.monotonic(), 0)):
            part = os.read(stdout.fileno(), 65536)
            line += part
            if not part:
                break
    try:
        told: dict[str, Any] = json.loads(line)
        if told["ready"] is True:
            return told
    except (ValueError, TypeError, KeyError):
        pass
    raise NotStarted(f"the bridge is not ready: {line.decode('utf-8', 'replace') or 'it said nothing'}")
