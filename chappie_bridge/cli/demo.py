"""`demo`: starts a bridge of its own in a temporary directory and lets a scripted ChatGPT use it."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import FAILED
from .options import as_json

if TYPE_CHECKING:
    from chappie_bridge.demo.story import Line

_SETTINGS = """\
cooldown = 0  # the second chat joins at once to go on with the work, not to watch it
rules = [{tool = "edit", decision = "ask"}]
"""


@click.command()
@as_json
def demo(as_json: bool) -> None:
    """Watch a scripted ChatGPT work through the bridge: no account, nothing of yours is touched.

    A batch, typed input, an approval, a lost reply and its redelivery, a task that a new chat goes on with.
    """
    import anyio

    from chappie_bridge.demo.bridge import NotStarted, bridge
    from chappie_bridge.demo.person import at_a_terminal
    from chappie_bridge.demo.story import Story

    from . import output

    lines: list[Line] = []
    with ExitStack() as stack:
        room = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chappie-")))
        state, work, configuration = room / "state", room / "work", room / "config.toml"
        work.mkdir()
        configuration.write_text(_SETTINGS, encoding="utf-8")
        options = ("--config", str(configuration))
        if not as_json:
            click.echo("A bridge starts in a temporary directory …")
        try:
            ready = stack.enter_context(bridge(state, work, "--no-agent", *options))
        except NotStarted as error:
            fault: str | None = str(error)
        else:
            person = stack.enter_context(at_a_terminal(state, work, *options))
            tell = lines.append if as_json else _print
            fault = anyio.run(Story(ready.mcp, ready.headers, work, say=person.type, tell=tell).play)
    if as_json:
        said = [{"scene": line.text} if not line.who else {line.who: line.text} for line in lines]
        output.document({"ok": fault is None, "said": said, **({} if fault is None else {"error": fault})})
    else:
        click.echo(f"\n{fault}" if fault else "\nAll of it held. The bridge has stopped, nothing is left.")
    sys.exit(FAILED if fault else 0)


def _print(line: Line) -> None:
    from chappie_bridge.codec.unicode import display

    if not line.who:
        click.secho(f"\n{line.text}", bold=True)
        return
    click.echo(f"  {click.style(f'{line.who:<8}', fg=_COLOURS.get(line.who))} {display(line.text, 300)}")


_COLOURS = {"ChatGPT": "green", "bridge": "cyan", "tunnel": "yellow", "person": "magenta"}
