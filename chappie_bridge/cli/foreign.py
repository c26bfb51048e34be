"""`agent --mcp`: any MCP server as a session.  Imports the MCP SDK, which the built-in agent never does."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from chappie_agents.hosts.builtin import open_session, scrubbed
from chappie_agents.hosts.mcp import Server

from chappie_bridge.codec.unicode import display

from .agent import callers, linked, policy

if TYPE_CHECKING:
    from chappie_agents.hosts.builtin import Opened
    from chappie_agents.tools import Tool
    from chappie_broker.state import StateDirectory

    from chappie_bridge.config import Settings

    from .where import Where


async def serve(
    settings: Settings,
    state: StateDirectory,
    directory: Path,
    command: Sequence[str],
    name: str | None,
    new: bool,
    where: Where,
    as_json: bool,
) -> None:
    """The server's session on a link of its own, until a signal.

    :raises Lost: the server does not answer."""
    server = Server(command, directory, scrubbed(os.environ))
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run)
        tools = await server.tools()
        opened = await to_thread.run_sync(_open, settings, state, directory, command, name, new, tools)
        try:
            await linked(settings, opened, None, where, as_json, None)
        finally:
            opened.close()
        tasks.cancel_scope.cancel()


def _open(
    settings: Settings,
    state: StateDirectory,
    directory: Path,
    command: Sequence[str],
    name: str | None,
    new: bool,
    tools: Sequence[Tool],
) -> Opened:
    """Sessions of one command are kept apart from those of others in the same directory."""
    mark = hashlib.sha256(json.dumps(list(command)).encode()).hexdigest()[:12]
    above = state.path / "servers" / mark
    above.mkdir(mode=0o700, parents=True, exist_ok=True)
    shown = name or display(shlex.join(command), 64)
    opened = open_session(
        directory, above, new=new, name=shown, policy=policy(settings), callers=callers(settings), tools=tools
    )
    opened.session.info = opened.session.info.model_copy(update={"agent": "mcp"})
    return opened
