"""`pair`, `devices`, `revoke` at the broker; `join` and `rotate` on a device.  Imports no face."""

from __future__ import annotations

import platform
import sys
import time
from typing import TYPE_CHECKING, cast

import click

from .options import as_json, settings

if TYPE_CHECKING:
    from chappie_bridge.config import Loaded
    from chappie_bridge.wire.ports import Office, Switchboard


@click.command()
@click.option("--name", metavar="NAME", default="", help="What the device is called in lists.")
@click.option("--url", metavar="URL", default="", help="How the device reaches the link.")
@settings()
@as_json
def pair(loaded: Loaded, as_json: bool, name: str, url: str) -> None:
    """Print a line that lets one further device join: address, one-time code, fingerprint.

    It works once, for ten minutes.  Give it to `chappie-bridge join` there, by a way that others do not read.
    """
    from chappie_bridge.wire.owner import PairDevice

    from . import output
    from .reach import SHELL, ask

    async def work(broker: Switchboard) -> int:
        made = await cast("Office", broker).pair(PairDevice(caller=SHELL, name=name, url=url))
        if as_json:
            output.document({"line": made.line, "expires": made.expires})
        else:
            click.echo(made.line)
            click.echo(f"Once, until {made.expires}: `chappie-bridge join` there asks for it.", err=True)
        return 0

    ask(loaded.settings, work)


@click.command()
@click.argument("line", nargs=-1)
@click.option("--name", metavar="NAME", help="What this device calls itself; its host name by default.")
@click.option("--replace", is_flag=True, help="Although this machine has joined a broker already.")
@settings()
@as_json
def join(loaded: Loaded, as_json: bool, line: tuple[str, ...], name: str | None, replace: bool) -> None:
    """Join a broker with the line that `chappie-bridge pair` printed there.

    Without LINE it is asked for, or read from standard input: so it stays out of lists of processes and of
    the shell's history.  Agents of this machine link to that broker from then on.
    """
    from chappie_agents.enrol import new_token, pair
    from chappie_broker.state import StateDirectory

    from chappie_bridge.codec.unicode import display
    from chappie_bridge.wire.errors import Forbidden, Lost
    from chappie_bridge.wire.pairing import Pairing

    from . import output
    from .where import Joined, joined, keep

    state = StateDirectory.visit(loaded.settings.state_directory)
    if joined(state) is not None and not replace:
        raise Forbidden("This machine has joined a broker already.", hint="--replace forgets that one.")
    pairing = Pairing.parse(" ".join(line) or _asked())
    token = new_token()
    called = display(name or platform.node() or "device", 64)
    try:
        enrolled = pair(pairing, token, called)
    except Lost:
        enrolled = pair(pairing, token, called)  # if only its answer was lost, this finds it done
    keep(
        state,
        Joined(url=pairing.url, pin=pairing.pin, device=enrolled.device, name=enrolled.name, token=token),
    )
    if as_json:
        output.document({"device": enrolled.device, "name": enrolled.name, "link": pairing.url})
    else:
        click.echo(f"joined {pairing.url} as {enrolled.name}; now `chappie-bridge agent` works for it")


def _asked() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("The line of `chappie-bridge pair`", hide_input=True, prompt_suffix=": "))
    return sys.stdin.readline(2000)


@click.command()
@settings()
@as_json
def devices(loaded: Loaded, as_json: bool) -> None:
    """List the devices that were paired with this broker."""
    from chappie_bridge.codec.unicode import display
    from chappie_bridge.wire.owner import ListDevices

    from . import output
    from .reach import SHELL, ask

    async def work(broker: Switchboard) -> int:
        found = (await cast("Office", broker).devices(ListDevices(caller=SHELL))).devices
        if as_json:
            output.document({"devices": [device.model_dump(mode="json") for device in found]})
            return 0
        for device in found:
            state = f"{device.links} links" if device.links else f"last seen {_day(device.last_seen)}"
            if device.revoked is not None:
                state = f"revoked {_day(device.revoked)}"
            click.echo(f"{device.id:24} {display(device.name, 32):32} paired {_day(device.paired)}  {state}")
        return 0

    ask(loaded.settings, work)


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))


@click.command()
@click.argument("device")
@settings()
@as_json
def revoke(loaded: Loaded, as_json: bool, device: str) -> None:
    """Forget a device's token and cut its links at once; its sessions stay known, offline."""
    from chappie_bridge.wire.owner import RevokeDevice

    from . import output
    from .reach import SHELL, ask

    async def work(broker: Switchboard) -> int:
        await cast("Office", broker).revoke(RevokeDevice(caller=SHELL, device=device))
        if as_json:
            output.document({"revoked": device})
        else:
            click.echo(f"revoked {device}")
        return 0

    ask(loaded.settings, work)


@click.command()
@settings()
@as_json
def rotate(loaded: Loaded, as_json: bool) -> None:
    """Replace this device's token by a new one; the old one is refused from then on.

    Its links are cut and come back by themselves.  When it fails half-way, run it again: both tokens are kept
    until the broker has answered.
    """
    from chappie_agents import enrol
    from chappie_broker.state import StateDirectory

    from chappie_bridge.wire.errors import BadArguments, Forbidden

    from . import output
    from .where import joined, keep

    state = StateDirectory.visit(loaded.settings.state_directory)
    known = joined(state)
    if known is None:
        raise BadArguments("This machine has joined no broker.", hint="`chappie-bridge join` does.")
    if not known.next:
        known = known.model_copy(update={"next": enrol.new_token()})
        keep(state, known)
    try:
        enrol.rotate(known.url, known.pin, known.token, known.next)
    except Forbidden:  # the broker may have it already, from a time whose answer was lost
        enrol.rotate(known.url, known.pin, known.next, known.next)
    keep(state, known.model_copy(update={"token": known.next, "next": ""}))
    if as_json:
        output.document({"device": known.device})
    else:
        click.echo(f"{known.name} has a new token")
