"""`local`: the local tools over MCP stdio.  Writes nothing to stdout but MCP."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from .options import settings

if TYPE_CHECKING:
    from chappie_bridge.config import Loaded


@click.command()
@settings("connect")
def local(loaded: Loaded) -> None:
    """Speak the local tools over MCP stdio: one session works with others.

    An agent program starts it; `chappie-bridge model install` configures that.  It offers `transfer`,
    and with `local_tools = true` all of them.  CHAPPIE_SESSION names the session it works for, where that
    cannot be found out.
    """
    from chappie_bridge.faces.chatgpt.descriptors import claimed

    with claimed() as descriptors:
        import anyio

        anyio.run(_serve, loaded, *descriptors)


async def _serve(loaded: Loaded, source: int, sink: int) -> None:
    import anyio
    from chappie_broker.state import StateDirectory

    from chappie_bridge.faces.local.server import serve

    from .outward import Outward
    from .where import Where

    chosen = loaded.settings
    state = StateDirectory.visit(chosen.state_directory)
    outward = Outward(Where.of(chosen, state, os.environ.get("CHAPPIE_TOKEN")))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outward.run)
        await serve(outward, outward.switchboard, source, sink, everything=chosen.local_tools)
        tasks.cancel_scope.cancel()
