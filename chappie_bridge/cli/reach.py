"""How a command reaches the running broker: over its unix socket, as a caller.  Starts no broker."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import NoReturn

import anyio
from chappie_agents.caller import RemoteSwitchboard
from chappie_agents.dial import Dial
from chappie_broker.state import StateDirectory

from chappie_bridge.config import Settings
from chappie_bridge.wire.errors import Lost
from chappie_bridge.wire.ids import Mint
from chappie_bridge.wire.values import Caller

from .faults import NotThere

SHELL = Caller(principal="owner", source="shell", label="shell")
"""Who a person at a shell is; no conversation, so nothing is bound or delivered to it."""

_WITHIN = 3.0
"""Seconds until a broker that does not answer counts as not there."""


def ask(settings: Settings, work: Callable[[RemoteSwitchboard], Awaitable[int]]) -> NoReturn:
    """Run `work` on the broker and end the process with the exit code that it gives."""

    async def run() -> int:
        async with reached(StateDirectory.visit(settings.state_directory)) as broker:
            return await work(broker)

    sys.exit(anyio.run(run))


@asynccontextmanager
async def reached(state: StateDirectory) -> AsyncGenerator[RemoteSwitchboard]:
    """The broker of `state`.  :raises NotThere: nobody answers."""
    if not state.socket.exists():
        raise NotThere
    switchboard = RemoteSwitchboard()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dialling(state, switchboard).run)
        try:
            await switchboard.reach(_WITHIN)
        except Lost:
            raise NotThere from None
        yield switchboard
        tasks.cancel_scope.cancel()


def dialling(state: StateDirectory, switchboard: RemoteSwitchboard) -> Dial:
    """The link to the broker of `state`; its `run` keeps it up."""
    return Dial(
        f"unix:{state.socket}",
        switchboard,
        role="caller",
        instance=Mint().instance(),
        name="chappie-bridge",
        version=version("chappie-bridge"),
    )
