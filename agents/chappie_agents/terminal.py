"""The terminal of an agent: shows what ChatGPT does here, takes typed lines and answers.  Decides nothing.

Lines are printed by a daemon thread, so a terminal that was stopped stops neither the agent nor its exit.
"""

import base64
import json
import os
import stat
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TextIO

import anyio
from anyio import to_thread

from chappie_agents.policy import Answer, Approval, ApprovalId, Approvals, Scope
from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.blocks import Content, Image, Spill, Text
from chappie_bridge.wire.errors import BadArguments, BridgeError
from chappie_bridge.wire.ids import InputId
from chappie_bridge.wire.messages import Finished
from chappie_bridge.wire.values import Origin, ToolCall, ToolResult

WIDTH = 160
"""Characters of one line, what is longer is cut."""

MAX_LINES = 1_000
"""Lines that wait to be printed; the oldest are dropped beyond, and their number is shown."""

CHAT_LINES = 400
STATUS = 4096
"""Characters of the status line at a result's end that are looked at."""

IMAGE_BYTES = 24 * 1024 * 1024
LINE_BYTES = 1024 * 1024
"""Bytes of one typed line."""

HELP = "/image PATH [text] sends an image, /cancel stops what runs; any other line goes to ChatGPT."

_MAGIC = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
_ANSWERS = {
    "y": Answer(True, Scope.ONCE, "terminal"),
    "c": Answer(True, Scope.CONVERSATION, "terminal"),
    "d": Answer(True, Scope.DIRECTORY, "terminal"),
    "n": Answer(False, Scope.ONCE, "terminal"),
}
_WORDS = {"yes": "y", "no": "n"}


class Typist(Protocol):
    """The session as the one who types sees it."""

    approvals: Approvals

    async def type(self, content: Content) -> InputId: ...
    def stop(self, reason: str) -> int: ...


class Line(NamedTuple):
    """One line to print; `style` is Rich's."""

    text: str
    style: str = ""


class Printer:
    """Prints lines in a daemon thread: with colours to a terminal, plainly to anything else."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lines: deque[Line] = deque()
        self._dropped = 0
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._printing = False

    def put(self, *lines: Line) -> None:
        with self._change:
            self._lines.extend(lines)
            while len(self._lines) > MAX_LINES:
                self._lines.popleft()
                self._dropped += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="terminal", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def flush(self, timeout: float) -> bool:
        """Is all of it printed, at the latest after `timeout` seconds?"""
        with self._change:
            return self._change.wait_for(lambda: not self._lines and not self._printing, timeout)

    def _run(self) -> None:
        show = self._coloured() if self._out.isatty() else _plain
        while True:
            with self._change:
                self._printing = False
                self._change.notify_all()
                self._change.wait_for(lambda: bool(self._lines))
                self._printing = True
                lines = list(self._lines)
                if self._dropped:
                    lines.insert(0, Line(f"… {self._dropped} lines are not shown", "dim"))
                self._lines.clear()
                self._dropped = 0
            try:
                self._write("".join(show(line) for line in lines))
            except (OSError, ValueError):
                return  # nobody reads any more

    def _write(self, text: str) -> None:
        try:
            descriptor = self._out.fileno()
        except OSError:
            self._out.write(text)
            return
        # Past the file's own buffer: its lock, held in a write that never ends, would abort the exit.
        data = memoryview(text.encode(self._out.encoding or "utf-8", errors="replace"))
        while data:
            data = data[os.write(descriptor, data) :]

    def _coloured(self) -> Callable[[Line], str]:
        from rich.console import Console  # noqa: PLC0415 - an agent without a terminal does not pay for it
        from rich.text import Text as Rich  # noqa: PLC0415 - nor for this

        console = Console(file=self._out, highlight=False, soft_wrap=True)

        def show(line: Line) -> str:
            with console.capture() as captured:
                console.print(Rich(line.text, style=line.style))
            return captured.get()

        return show


def _plain(line: Line) -> str:
    return line.text + "\n"


class Terminal:
    """Implements `screen.Screen`.  `run` reads what is typed."""

    def __init__(self, out: TextIO | None = None, typed: TextIO | None = None) -> None:
        self._printer = Printer(out if out is not None else sys.stdout)
        self._in = typed if typed is not None else sys.stdin
        self._shown: set[ApprovalId] = set()

    @property
    def attended(self) -> bool:
        """Can somebody type here?"""
        try:
            return self._in.isatty()
        except ValueError:
            return False

    def close(self) -> None:
        """Waits a moment for what is not printed yet."""
        self._printer.flush(0.5)

    async def run(self, session: Typist) -> None:
        """Take typed lines until the input ends; returns at once where nobody can type."""
        if not self.attended:
            return
        async for line in _lines(self._in.fileno()):
            try:
                await self._take(session, line)
            except (BridgeError, OSError) as error:
                self._say(f"! {error}", "red")

    # -- Screen ----------------------------------------------------------------------------------

    def batch(self, origin: Origin, calls: Sequence[ToolCall]) -> None:
        who = display(origin.label, WIDTH) or origin.kind
        lines = [Line(f"▶ {who}: {len(calls)} {'call' if len(calls) == 1 else 'calls'}", "bold")]
        lines += [Line(f"    {_call(call)}") for call in calls]
        self._printer.put(*lines)

    def result(self, result: ToolResult) -> None:
        mark, style = ("✗", "red") if result.is_error else ("✓", "green")
        said = _gist(result)
        text = f"  {mark} {display(result.name, 40)} {result.duration_ms} ms" + (f"  {said}" if said else "")
        self._say(text, style)

    def ended(self, finished: Finished) -> None:
        if finished.error is not None:
            self._say(f"■ {finished.status}: {finished.error.message}", "yellow")

    def chat(self, origin: Origin, text: str, *, final: bool) -> None:
        rows = text.splitlines()
        who = "Another session" if origin.kind == "session" else "ChatGPT"
        lines = [Line(f"{who}:" if final else f"{who}, on the way:", "bold cyan")]
        lines += [Line("  " + display(row, 4 * WIDTH), "cyan") for row in rows[:CHAT_LINES]]
        if len(rows) > CHAT_LINES:
            lines.append(Line(f"  … {len(rows) - CHAT_LINES} more lines", "dim"))
        self._printer.put(*lines)

    def typed(self, content: Content) -> None:
        for block in content:
            if isinstance(block, Text):
                self._say(f"typed at a shell: {block.text}", "blue")
            else:
                self._say(f"sent from a shell: {block.type}", "blue")

    def notice(self, text: str) -> None:
        self._say(f"· {text}", "dim")

    def asked(self, approval: Approval) -> None:
        self._say(f"? `{approval.tool}` asks for your approval: {approval.what}", "bold magenta")
        self._say("  y: this once · c: for this conversation · d: for this directory · n: no", "magenta")

    # -- typed -----------------------------------------------------------------------------------

    async def _take(self, session: Typist, line: str) -> None:
        word = line.strip().lower()
        answer = _ANSWERS.get(_WORDS.get(word, word))
        pending = session.approvals.pending
        if answer is not None and pending:
            session.approvals.answer(pending[0].id, answer)
        elif word == "/cancel":
            stopped = session.stop("Stopped by the person at the agent.")
            self._say(f"· {stopped} stopped" if stopped else "· nothing runs", "dim")
        elif word == "/help":
            self._say(HELP, "dim")
        elif line.startswith("/image "):
            path, _, text = line.removeprefix("/image ").strip().partition(" ")
            content: Content = (await to_thread.run_sync(_image, Path(path).expanduser()),)
            await session.type((*content, Text(text=text)) if text else content)
        elif line.startswith("/"):
            self._say(f"! no such command. {HELP} A space in front sends it as text.", "red")
        elif word:
            await session.type((Text(text=line.rstrip("\r\n")),))

    def _say(self, text: str, style: str) -> None:
        self._printer.put(Line(display(text, WIDTH), style))


def _call(call: ToolCall) -> str:
    shown = " ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items()
    )
    return display(f"{call.name} {shown}", WIDTH)


def _gist(result: ToolResult) -> str:
    """An exit code where there is one, else the first line of an error, else how much came back."""
    last = result.content[-1] if result.content else None
    if isinstance(last, Text) and last.text.startswith("{") and len(last.text) <= STATUS:
        try:
            return f"exit {json.loads(last.text)['exitCode']}"
        except (ValueError, KeyError, TypeError):
            pass
    if result.is_error:
        first = next((block.text for block in result.content if isinstance(block, Text)), "")
        return display(first.split("\n", 1)[0], WIDTH // 2)
    size = sum(
        len(block.text) if isinstance(block, Text) else block.size if isinstance(block, Spill) else 0
        for block in result.content
    )
    return f"{size} characters" if size else ""


def _image(path: Path) -> Image:
    """:raises BadArguments: for anything but an image file of at most `IMAGE_BYTES`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > IMAGE_BYTES:
            raise BadArguments(f"{path} is not a file of at most {IMAGE_BYTES} bytes.")
        data = file.read(IMAGE_BYTES)
    kind = next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind = "image/webp"
    if kind is None:
        raise BadArguments(f"{path} is not a PNG, JPEG, GIF or WebP image.")
    return Image(data=base64.b64encode(data).decode("ascii"), mime_type=kind)


async def _lines(descriptor: int) -> AsyncIterator[str]:
    """What is typed, line by line; no thread waits for it, so nothing holds back the exit."""
    rest = b""
    while True:
        await anyio.wait_readable(descriptor)
        data = os.read(descriptor, 64 * 1024)
        if not data:
            return
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
        if len(rest) > LINE_BYTES:
            rest = b""
