"""`dashboard`: a new login link.  Opens no browser."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from .options import as_json, settings

if TYPE_CHECKING:
    from chappie_bridge.config import Loaded


@click.command()
@settings()
@as_json
def dashboard(loaded: Loaded, as_json: bool) -> None:
    """Print a link that logs one browser in to the dashboard.  It works once, for ten minutes.

    From another machine, forward the port first: ssh -L 24273:127.0.0.1:24273 HOST
    """
    import anyio
    from chappie_broker.state import StateDirectory

    from chappie_bridge.doctor import FRONT_DOOR

    from . import output
    from .reach import reached
    from .words import login_link

    state = StateDirectory.visit(loaded.settings.state_directory)

    async def link() -> str:
        async with reached(state) as broker:
            try:
                door = json.loads((state.path / FRONT_DOOR).read_text(encoding="utf-8"))
            except FileNotFoundError:
                raise click.ClickException("the broker runs without ports, so there is no page") from None
            return await login_link(broker, door["dashboard"])

    found = anyio.run(link)
    if as_json:
        output.document({"link": found})
    else:
        click.echo(found)
