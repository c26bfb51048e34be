"""`demo`: starts a bridge of its own in a temporary directory and lets a scripted ChatGPT use it."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import FAILED
from .options import as_json, log_to_stderr

if TYPE_CHECKING:
    from chappie_bridge.demo.bridge import Ready
    from chappie_bridge.demo.story import Line

_SETTINGS = "cooldown = 0\n"
"""The demo's second chat joins at once to go on with the work, not to watch it."""


@click.command()
@as_json
def demo(as_json: bool) -> None:
    """Watch a scripted ChatGPT work through the bridge: no account, nothing of yours is touched.

    A batch, typed input, a lost reply and its redelivery, a task that a new chat goes on with.
    """
    from chappie_bridge.demo.bridge import NotStarted, bridge

    from . import output

    log_to_stderr("warning")
    lines: list[Line] = []
    fault: str | None = None
    with ExitStack() as stack:
        room = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chappie-")))
        work = room / "work"
        work.mkdir()
        configuration = room / "config.toml"
        configuration.write_text(_SETTINGS, encoding="utf-8")
        if not as_json:
            click.echo("A bridge starts in a temporary directory …")
        try:
            ready = stack.enter_context(bridge(room / "state", work, "--config", str(configuration)))
            fault = _play(ready, work, lines if as_json else None)
        except NotStarted as error:
            fault = str(error)
    if as_json:
        said = [{"scene": line.text} if not line.who else {line.who: line.text} for line in lines]
        output.document({"ok": fault is None, "said": said, **({} if fault is None else {"error": fault})})
    else:
        click.echo(f"\n{fault}" if fault else "\nAll of it held. The bridge has stopped, nothing is left.")
    sys.exit(FAILED if fault else 0)


def _play(ready: Ready, work: Path, kept: list[Line] | None) -> str | None:
    """Play the story; its lines go to `kept`, or to the terminal.  What did not hold, or None."""
    import anyio
    from chappie_broker.state import StateDirectory

    from chappie_bridge.demo.story import Story
    from chappie_bridge.wire.blocks import Text
    from chappie_bridge.wire.ids import SessionId
    from chappie_bridge.wire.requests import TypeInput

    from .reach import SHELL, reached

    async def run() -> str | None:
        async with reached(StateDirectory.visit(ready.state)) as broker:

            async def say(text: str) -> None:
                typed = TypeInput(caller=SHELL, session=SessionId(ready.session), content=(Text(text=text),))
                await broker.say(typed)

            tell = _print if kept is None else kept.append
            return await Story(ready.mcp, ready.headers, work, say=say, tell=tell).play()

    return anyio.run(run)


def _print(line: Line) -> None:
    from chappie_bridge.codec.unicode import display

    if not line.who:
        click.secho(f"\n{line.text}", bold=True)
        return
    click.echo(f"  {click.style(f'{line.who:<8}', fg=_COLOURS.get(line.who))} {display(line.text, 300)}")


_COLOURS = {"ChatGPT": "green", "bridge": "cyan", "tunnel": "yellow", "person": "magenta"}
