"""A client that nobody here wrote, on the stdio server `local`: calls in, results out, by their numbers."""

import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from chappie_bridge.demo.bridge import ended
from tests.clients.conftest import had
from tests.clients.environments import environment, node

HERE = Path(__file__).parent

SECONDS = 90.0
"""For one line."""

TOOLS = ["sessions", "remote_tools", "remote_call", "remote_chat", "history", "transfer"]


class Answer(NamedTuple):
    head: dict[str, Any]
    texts: list[str]
    is_error: bool


class LocalClient:
    """One connection; several calls may be under way."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._in, self._out = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        self._rest = b""
        self._told: dict[int, dict[str, Any]] = {}
        self._number = 0
        self.tools: list[str] = self._line()["tools"]

    def begin(self, tool: str, **args: Any) -> int:
        self._number += 1
        call = {"id": self._number, "tool": tool, "args": args}
        self._in.write(json.dumps(call).encode() + b"\n")
        self._in.flush()
        return self._number

    def end(self, number: int) -> Answer:
        while number not in self._told:
            told = self._line()
            self._told[told["id"]] = told["result"]
        result = self._told.pop(number)
        texts = [block["text"] for block in result["content"] if block["type"] == "text"]
        return Answer(json.loads(texts[0]), texts[1:], bool(result.get("isError")))

    def call(self, tool: str, **args: Any) -> Answer:
        return self.end(self.begin(tool, **args))

    def _line(self) -> dict[str, Any]:
        until = time.monotonic() + SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                assert selector.select(max(until - time.monotonic(), 0)), "it says nothing"
                part = os.read(self._out.fileno(), 1 << 20)
                assert part, "it ended"
                self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told


@contextmanager
def local_client(
    state: Path, session: str, process_environment: Mapping[str, str], cwd: Path
) -> Generator[LocalClient]:
    """Connected, for `session`, with all tools."""
    place = had(partial(environment, "npm", "ts_v1"))
    shutil.copy(HERE / "local_ts_v1.mjs", place)  # imports by name are looked up from where the script lies
    ours = {**process_environment, "CHAPPIE_SESSION": session, "CHAPPIE_LOCAL_TOOLS": "true"}
    server = {
        "command": sys.executable,
        "args": ["-m", "chappie_bridge.cli", "local", "--state", str(state)],
        "env": ours,
        "cwd": str(cwd),
    }
    argv = [str(had(node) / "bin" / "node"), str(place / "local_ts_v1.mjs"), json.dumps(server)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(ours))
    with ended(process):
        client = LocalClient(process)
        yield client
        cast("IO[bytes]", process.stdin).close()
        process.wait(SECONDS)
