"""What `flow` shows and asks at a terminal: the answer on stdout, the trail on stderr.  Decides nothing."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import click

from chappie_bridge.codec.unicode import clean_text, display
from chappie_bridge.faces.flow.hearing import LocalCall, Said
from chappie_bridge.faces.flow.tools import Result
from chappie_bridge.faces.flow.turn import Conversation, Ended, State

from . import output

_PART = 1_000_000
"""Characters of one line."""

_SHOWN = 400
"""Characters of a call and of a result shown in the trail."""

_MAX_TRAIL = 10_000
"""Pieces of a turn's trail that a document holds."""


class Screen:
    """`as_json`: nothing is shown as it comes; each turn is one document at its end."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._open: tuple[str, str] | None = None
        """Channel and message of the line that is not ended yet."""
        self._answer: list[str] = []
        self._trail: list[dict[str, Any]] = []
        self._restore = _terminal()
        self._buffer = _line_buffer()

    def show(self, news: Said | LocalCall | Result) -> None:
        match news:
            case Said(channel="final", text=text):
                self._answer.append(text)
                self._say(news, text)
            case Said():
                if not self._trail or self._trail[-1].get("message") != news.message:
                    self._note({**news._asdict(), "text": ""})
                self._trail[-1]["text"] += news.text
                self._say(news, news.text)
            case LocalCall():
                self._note({"call": news.id, "tool": news.tool, "arguments": news.text})
                self._trail_line(f"-> {news.tool} {news.text}")
            case Result(body=body):
                self._note({"result": body})
                mark = "failed" if body.get("isError") else "ok"
                self._trail_line(f"<- {mark}: {body.get('message')}")

    def ended(self, ended: Ended, conversation: Conversation) -> None:
        """The turn is over."""
        self._end_line()
        if self._as_json:
            output.document(
                {
                    "conversation": conversation.id,
                    "parent": conversation.parent,
                    "status": str(ended.state),
                    **({"reason": ended.reason} if ended.reason else {}),
                    "text": clean_text("".join(self._answer))[0],
                    "trail": [_clean(each) for each in self._trail],
                }
            )
        elif ended.state is not State.FINISHED:
            click.echo(f"the turn {ended.state}: {display(ended.reason, 1000)}", err=True)
        self._answer.clear()
        self._trail.clear()

    async def agreed(self, prompt: str, reason: str) -> bool:
        """Does the person want the task opened in the session?  Nobody there: no."""
        self._end_line()
        if not sys.stdin.isatty():
            click.echo("a task was handed off and declined: nobody can be asked (--yes agrees)", err=True)
            return False
        click.echo(f"The model hands off a task: {display(reason, 500)}\n  {display(prompt, 2000)}", err=True)
        answer = await self.line("Open it in the session? [y/N] ")
        return (answer or "").strip().lower() in ("y", "yes")

    def buffer(self) -> str:
        """What is typed of the line that is being typed."""
        return self._buffer()

    async def line(self, prompt: str) -> str | None:
        """The next line that is typed; None at the end of input.

        A daemon thread waits for it: neither an end of this program nor a turn ever waits for a key."""
        loop = asyncio.get_running_loop()
        typed: asyncio.Future[str | None] = loop.create_future()

        def settle(line: str | None) -> None:
            if not typed.done():
                typed.set_result(line)

        def wait() -> None:
            try:
                line: str | None = input(prompt)
            except (EOFError, OSError):
                line = None
            try:
                loop.call_soon_threadsafe(settle, line)
            except RuntimeError:
                return  # the program is over

        threading.Thread(target=wait, name="typed line", daemon=True).start()
        try:
            return await typed
        finally:
            if not typed.done() or typed.cancelled():
                self._restore()

    def _note(self, entry: dict[str, Any]) -> None:
        if len(self._trail) < _MAX_TRAIL:
            self._trail.append(entry)

    def _say(self, said: Said, text: str) -> None:
        if self._as_json:
            return
        final = said.channel == "final"
        if self._open != (said.channel, said.message):
            self._end_line()
            if not final:
                click.echo(click.style(f"[{said.channel}] ", dim=True), nl=False, err=True)
        self._open = (said.channel, said.message)
        text = _harmless(text, exact=final and not sys.stdout.isatty())
        click.echo(text if final else click.style(text, dim=True), nl=False, err=not final)
        sys.stdout.flush()

    def _trail_line(self, text: str) -> None:
        if not self._as_json:
            self._end_line()
            click.echo(click.style(display(text, _SHOWN), dim=True), err=True)

    def _end_line(self) -> None:
        if self._open is not None:
            click.echo(err=self._open[0] != "final")
            self._open = None


def _harmless(text: str, *, exact: bool) -> str:
    """Text as it comes; on a terminal without what steers it."""
    if exact:
        return clean_text(text)[0]
    lines = text.split("\n")
    return "\n".join("\t".join(display(part, _PART) for part in line.split("\t")) for line in lines)


def _clean(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: clean_text(value)[0] if isinstance(value, str) else value for key, value in entry.items()}


def _line_buffer() -> Callable[[], str]:
    """Where the system's line editor keeps what is typed; nothing where there is no editor."""
    if sys.stdin.isatty():
        try:
            buffer: Callable[[], str] = importlib.import_module("readline").get_line_buffer
        except ImportError:
            return str
        return buffer
    return str


def _terminal() -> Callable[[], None]:
    """Puts the terminal back as it is now: a line editor that is left in the middle does not."""
    if not sys.stdin.isatty():
        return lambda: None
    import termios

    descriptor = sys.stdin.fileno()
    attributes = termios.tcgetattr(descriptor)
    return lambda: termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)
