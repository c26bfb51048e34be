"""A broker, a model endpoint that can be killed, and a scripted ChatGPT; every process is ended by its id."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import anyio
from anyio import to_thread

from chappie_bridge.demo.chatgpt import Answer, Chat, ChatGPT

SECONDS = 60.0
"""For one thing to happen."""

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0"
    "00000301010018dd8db00000000049454e44ae426082"
)


def clean_environment(**more: str) -> dict[str, str]:
    unwanted = ("CHAPPIE_", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, **more}


class Served:
    """One of our own processes that prints a line of JSON when it is ready."""

    def __init__(self, *arguments: str, log: Path, home: Path) -> None:
        argv = [sys.executable, "-m", "chappie_bridge.cli", *arguments]
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=clean_environment(HOME=str(home)),
            )
        line = cast("IO[bytes]", self._process.stdout).readline()
        assert line, f"{arguments[0]} did not start: {log.read_text(encoding='utf-8')[-2000:]}"
        self.told: dict[str, Any] = json.loads(line)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
        self._process.wait(20)
        cast("IO[bytes]", self._process.stdout).close()


class Bridge:
    """`room` holds everything; `work` is where the programs work, `home` is their person's directory."""

    def __init__(self, room: Path, settings: str = "") -> None:
        """`settings`: what its person's `config.toml` says."""
        self.state, self.work, self.log, self.home = (room / n for n in ("state", "work", "log", "home"))
        self.work.mkdir(parents=True)
        self.home.mkdir()
        if settings:
            own = self.home / ".config" / "chappie-bridge" / "config.toml"
            own.parent.mkdir(parents=True)
            own.touch(mode=0o600)
            own.write_text(settings, encoding="utf-8")
        ports = ("--http", "127.0.0.1:0", "--link", "127.0.0.1:0")
        self._broker = Served(
            "up", "--no-agent", "--json", "--state", str(self.state), *ports, log=self.log, home=self.home
        )
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._model = self._start_model()
        self.chatgpt = ChatGPT(self._broker.told["mcp"], self._broker.told["headers"])

    def _start_model(self) -> Served:
        arguments = ("model", "--json", "--port", str(self.port), "--state", str(self.state))
        return Served(*arguments, log=self.log, home=self.home)

    def install(self, program: str, home: Path) -> None:
        """What a person would do."""
        argv = [sys.executable, "-m", "chappie_bridge.cli", "model", "install", program, "--write"]
        argv += ["--port", str(self.port), "--state", str(self.state), "--home", str(home)]
        subprocess.run(argv, check=True, capture_output=True, env=clean_environment(), timeout=60)

    def kill_model(self) -> None:
        self._model.kill()

    def start_model(self) -> None:
        self._model = self._start_model()

    def close(self) -> None:
        self._model.kill(signal.SIGTERM)
        self._broker.kill(signal.SIGTERM)


@asynccontextmanager
async def bridge(room: Path, settings: str = "") -> AsyncGenerator[Bridge]:
    made = await to_thread.run_sync(Bridge, room, settings)
    try:
        await made.chatgpt.connect()
        yield made
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(made.close)


T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T]], enough: Callable[[T], bool], seconds: float = SECONDS) -> T:
    """Look again and again: foreign processes tell nobody."""
    with anyio.fail_after(seconds):
        while not enough(found := await look()):  # noqa: ASYNC110
            await anyio.sleep(0.1)
    return found


async def joined(chat: Chat) -> str:
    """The session that this chat gets."""
    answer = await until(lambda: chat.call("init"), lambda answer: not answer.is_error)
    return str(answer.head["sessionId"])


async def until_status(chat: Chat, session: str, wanted: str) -> None:
    async def look() -> str:
        found = (await chat.call("sessions", sessionId=session)).head["sessions"]
        return next((str(row["status"]) for row in found if row["id"] == session), "")

    await until(look, lambda status: status == wanted)


async def ended(chat: Chat, operation: str) -> Answer:
    """An operation's outcome, once it has one."""
    return await until(
        lambda: chat.call("call", operation=operation),
        lambda answer: answer.head["status"] not in ("running", "asking"),
    )


class Result:
    """One call's part of an answer."""

    def __init__(self, head: dict[str, Any]) -> None:
        self.head, self.text, self.images, self.picture = head, "", 0, b""

    @property
    def failed(self) -> bool:
        return bool(self.head["isError"])


def results(answer: Answer) -> list[Result]:
    """In the answer's order."""
    found: list[Result] = []
    for block in answer.blocks[1:]:
        if block["type"] == "image":
            found[-1].images += 1
            found[-1].picture = base64.b64decode(block["data"])
        if block["type"] != "text":
            continue
        head = _head(block["text"])
        if head is not None and "toolCallId" in head:
            found.append(Result(head))
        elif head is not None and ("input" in head or "request" in head or "deferredResult" in head):
            break
        elif found:
            found[-1].text += block["text"]
    return found


def inputs(answer: Answer) -> list[str]:
    """Texts that a person typed, as they accompany an answer."""
    found, inside = [], False
    for block in answer.blocks[1:]:
        if block["type"] != "text":
            continue
        head = _head(block["text"])
        if head is not None and "input" in head:
            inside = True
        elif head is not None:
            inside = False
        elif inside:
            found.append(block["text"])
    return found


def _head(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
