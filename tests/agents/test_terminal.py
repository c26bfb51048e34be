"""The terminal: what it prints, and what typed lines do."""

import io
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from chappie_agents import terminal as module
from chappie_agents.policy import Answer, Approval, Approvals
from chappie_agents.terminal import Terminal

from chappie_bridge.wire.blocks import Content, Image, Text
from chappie_bridge.wire.errors import Executed, Overloaded
from chappie_bridge.wire.ids import CallId, InputId, SessionId
from chappie_bridge.wire.messages import Finished
from chappie_bridge.wire.values import ToolResult
from tests.agents.stage import ORIGIN, SESSION, call, operation

pytestmark = pytest.mark.anyio


class Typist:
    """Takes what is typed."""

    def __init__(self, approvals: Approvals | None = None) -> None:
        self.approvals = approvals or Approvals()
        self.got: list[Content] = []
        self.stopped: list[str] = []
        self.more = anyio.Event()
        self.full = False

    async def type(self, content: Content) -> InputId:
        if self.full:
            raise Overloaded("Too much waits.")
        self.got.append(content)
        self.more.set()
        return InputId("in")

    def stop(self, reason: str) -> int:
        self.stopped.append(reason)
        self.more.set()
        return 1


class Keyboard:
    """A pseudo-terminal: the test types at one end."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        self.end = os.fdopen(slave, "r", encoding="utf-8")

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())


@pytest.fixture
def keyboard() -> Iterator[Keyboard]:
    keys = Keyboard()
    yield keys
    os.close(keys.master)
    keys.end.close()


def printed(out: io.StringIO, terminal: Terminal) -> list[str]:
    terminal.close()
    return out.getvalue().splitlines()


def result(text: str, *, is_error: bool = False) -> ToolResult:
    return ToolResult(
        call=CallId("c"), name="bash", is_error=is_error, duration_ms=12, content=(Text(text=text),)
    )


def test_what_happens_is_printed_line_by_line_with_control_characters_escaped() -> None:
    """B28: nothing that a tool or a chat says can steer the terminal."""
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.batch(ORIGIN, [call("bash", command="printf '\x1b[2J'"), call("read", path="a")])
    terminal.result(result('{"exitCode":0,"bytes":3}'))
    terminal.result(result("no such file\x07\nmore", is_error=True))
    terminal.chat(ORIGIN, "Done.\n\x1b]0;title\x07", final=True)
    terminal.notice("A chat\nleft.")
    error = Overloaded("Too much.")
    terminal.ended(
        Finished(
            operation=operation(),
            session=SESSION,
            origin=ORIGIN,
            kind="batch",
            status="cancelled",
            executed=Executed.NO,
            cwd="/",
            error=error.failure(),
        )
    )
    assert printed(out, terminal) == [
        "▶ a chat: 2 calls",
        "    bash command=\"printf '\\u001b[2J'\"",
        '    read path="a"',
        "  ✓ bash 12 ms  exit 0",
        "  ✗ bash 12 ms  no such file\\x07",
        "ChatGPT:",
        "  Done.",
        "  \\x1b]0;title\\x07",
        "· A chat\\nleft.",
        "■ cancelled: Too much.",
    ]


def test_a_flood_of_lines_is_bounded_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINES", 10)
    monkeypatch.setattr(threading.Thread, "start", lambda _: None)
    printer = module.Printer(io.StringIO())
    printer.put(*(module.Line(str(number)) for number in range(25)))
    assert len(printer._lines) == 10
    assert printer._dropped == 15


async def test_typed_lines_go_to_the_session_until_the_input_ends(keyboard: Keyboard) -> None:
    out, typist = io.StringIO(), Typist()
    terminal = Terminal(out, keyboard.end)
    assert terminal.attended
    keyboard.type("first line\n\n  indented é \n/nonsense\n /not a command\n/cancel\n\x04")
    with anyio.fail_after(10):
        await terminal.run(typist)
    assert typist.got == [
        (Text(text="first line"),),
        (Text(text="  indented é "),),
        (Text(text=" /not a command"),),
    ]
    assert len(typist.stopped) == 1
    assert any(line.startswith("! no such command") for line in printed(out, terminal))


async def test_an_image_is_sent_with_its_text_and_anything_else_refused(
    keyboard: Keyboard, tmp_path: Path
) -> None:
    out, typist = io.StringIO(), Typist()
    picture = tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\nrest")
    (tmp_path / "a.txt").write_text("text", encoding="utf-8")
    keyboard.type(f"/image {picture} look here\n/image {tmp_path}/a.txt\n/image {tmp_path}/none\n\x04")
    terminal = Terminal(out, keyboard.end)
    with anyio.fail_after(10):
        await terminal.run(typist)
    ((image, text),) = typist.got
    assert isinstance(image, Image)
    assert (image.mime_type, text) == ("image/png", Text(text="look here"))
    lines = printed(out, terminal)
    assert "is not a PNG" in lines[0]
    assert "No such file" in lines[1]


async def test_an_answer_counts_only_while_a_question_waits(keyboard: Keyboard) -> None:
    terminal = Terminal(io.StringIO(), keyboard.end)
    typist = Typist(Approvals(terminal.asked))
    approval = Approval("bash", Path("/"), True, "rm x", Path("/"), SessionId("s"))
    got: list[bool] = []

    async def ask() -> None:
        got.append(await typist.approvals.ask(approval))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(terminal.run, typist)
            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            keyboard.type("YES\ny\n\x04")
            await typist.more.wait()
    assert got == [True]
    assert typist.got == [(Text(text="y"),)]
    assert typist.approvals.answer(approval.id, Answer(False)).by == "terminal"


async def test_input_that_cannot_be_kept_is_said_so(keyboard: Keyboard) -> None:
    out, typist = io.StringIO(), Typist()
    typist.full = True
    terminal = Terminal(out, keyboard.end)
    keyboard.type("lost?\n\x04")
    with anyio.fail_after(10):
        await terminal.run(typist)
    assert printed(out, terminal) == ["! Too much waits."]


async def test_nobody_is_asked_to_type_without_a_terminal(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+", encoding="utf-8") as file:
        terminal = Terminal(io.StringIO(), file)
        assert not terminal.attended
        await terminal.run(Typist())


def test_neither_a_silent_keyboard_nor_a_stopped_terminal_holds_back_the_exit() -> None:
    code = """
import anyio, os, pty, sys
from chappie_agents.terminal import Terminal
from tests.agents.test_terminal import Typist
_, keys = pty.openpty()
terminal = Terminal(typed=os.fdopen(keys))
async def main():
    with anyio.move_on_after(0.05):
        await terminal.run(Typist())
for _ in range(900):
    terminal.notice("more than a pipe holds " * 10)
anyio.run(main)
terminal.close()
print("over", file=sys.stderr, flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        assert child.wait(30) == 0
    finally:
        child.kill()
        said = child.communicate()[1]
    assert said == "over\n"


def test_a_terminal_gets_colours_and_markup_in_text_stays_text() -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w", encoding="utf-8") as out:
        terminal = Terminal(out)
        terminal.notice("[red]not markup[/red]")
        assert terminal._printer.flush(20)
        data = os.read(master, 65536).decode()
    os.close(master)
    assert "[red]not markup[/red]" in data
