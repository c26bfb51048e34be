"""`agent`: the built-in agent in a directory, linked to a broker.  Imports no face."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import as_json, settings

if TYPE_CHECKING:
    import anyio
    from anyio.abc import TaskGroup, TaskStatus
    from chappie_agents.callers import CallerRule
    from chappie_agents.hosts.builtin import Opened
    from chappie_agents.policy import Policy
    from chappie_agents.terminal import Terminal
    from chappie_broker.state import StateDirectory

    from chappie_bridge.config import Loaded, Settings
    from chappie_bridge.wire.messages import Message
    from chappie_bridge.wire.ports import Link

    from .outward import Outward
    from .serving import Serving

log = logging.getLogger("chappie.agent")

_PATIENCE = 3.0
"""Seconds until somebody who waits for the link is told that it is not there."""

_LAST_WORDS = 1.5
"""Seconds in which what was stopped may still tell its outcome."""


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    default=".",
    help="Where it works; the current directory by default.",
)
@click.option("--name", metavar="NAME", help="What the session is called in lists.")
@click.option("--new", is_flag=True, help="A new session instead of the newest one of this directory.")
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The device token for --connect; CHAPPIE_TOKEN holds it otherwise.",
)
@click.option("--mcp", "foreign", is_flag=True, help="The tools of the MCP server that COMMAND starts.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--lifeline", type=int, hidden=True)
@settings("connect")
@as_json
def agent(
    loaded: Loaded,
    as_json: bool,
    directory: Path,
    name: str | None,
    new: bool,
    token_file: Path | None,
    foreign: bool,
    command: tuple[str, ...],
    lifeline: int | None,
) -> None:
    """Run the built-in agent in DIR, for a broker that runs elsewhere.

    On a terminal it shows what ChatGPT does, and takes typed input and approvals.
    """
    from chappie_agents.terminal import Terminal
    from chappie_broker.state import StateDirectory

    from chappie_bridge.wire.errors import BadArguments

    from .loop import run
    from .outward import Outward

    state = StateDirectory.visit(loaded.settings.state_directory)
    token = token_file.read_text(encoding="utf-8").strip() if token_file else os.environ.get("CHAPPIE_TOKEN")
    if loaded.settings.connect and not token:
        raise BadArguments("--connect needs a device token: --token-file FILE, or CHAPPIE_TOKEN.")
    if foreign != bool(command):
        raise click.UsageError("--mcp and the command of a server belong together: agent --mcp COMMAND…")
    if foreign:
        from .foreign import serve

        run(serve, loaded.settings, state, directory, command, name, new, token, as_json)
        return
    terminal = Terminal()
    screen = terminal if terminal.attended and not as_json else None
    outward = Outward(loaded.settings.connect or state, token)
    opened = _open(loaded.settings, state, directory, screen, outward, name=name, new=new)
    try:
        run(linked, loaded.settings, state, opened, screen, token, as_json, lifeline, outward)
    finally:
        opened.close()
        terminal.close()


def _open(
    settings: Settings,
    state: StateDirectory,
    directory: Path,
    screen: Terminal | None,
    outward: Outward,
    *,
    name: str | None = None,
    new: bool = False,
) -> Opened:
    from chappie_agents.hosts.builtin import open_session
    from chappie_agents.tools import BUILTIN
    from chappie_agents.tools.neighbours import neighbours

    rules = policy(settings)
    (state.path / "agents").mkdir(mode=0o700, exist_ok=True)
    opened = open_session(
        directory,
        state.path,
        new=new,
        screen=screen,
        attended=screen is not None,
        name=name,
        policy=rules,
        callers=callers(settings),
        tools=(*BUILTIN, *neighbours(outward, everything=settings.local_tools)),
    )
    for notice in opened.notices:
        log.warning("%s", notice)
    if not rules.roots:
        log.info("no root set: tools reach every file that this user can reach")
    return opened


def policy(settings: Settings) -> Policy:
    """What the owner allows, as the settings say it."""
    from chappie_agents.policy import Decision, Policy, Rule

    rules = tuple(
        Rule(rule.tool, Decision(rule.decision), Path(rule.root).expanduser() if rule.root else None)
        for rule in settings.rules
    )
    return Policy(rules=rules, roots=tuple(Path(root).expanduser() for root in settings.roots))


def callers(settings: Settings) -> tuple[CallerRule, ...]:
    """Which other sessions the owner admits, as the settings say it."""
    from chappie_agents.callers import CallerRule
    from chappie_agents.policy import Decision

    return tuple(CallerRule(rule.caller, Decision(rule.decision)) for rule in settings.callers)


async def linked(
    settings: Settings,
    state: StateDirectory,
    opened: Opened,
    screen: Terminal | None,
    token: str | None,
    as_json: bool,
    lifeline: int | None,
    outward: Outward | None = None,
) -> None:
    """The session on a link of its own, until a signal or until the parent at the lifeline is gone."""
    import anyio
    from chappie_agents.dial import Dial

    from chappie_bridge.wire.ids import Mint

    from .stopping import on_signal

    resident = Resident(opened)
    address = settings.connect or f"unix:{state.socket}"
    dial = Dial(
        address,
        resident,
        role="agent",
        instance=Mint().instance(),
        name=opened.session.info.device,
        version=version("chappie-bridge"),
        token=token,
    )
    async with anyio.create_task_group() as link:
        link.start_soon(dial.run)
        async with resident.living() as tasks:
            with anyio.CancelScope() as life:
                await tasks.start(on_signal, life)
                with anyio.move_on_after(_PATIENCE):
                    await resident.registered()
                if not resident.settled:
                    click.echo(f"no broker answers at {address} yet; still trying", err=True)
                    await resident.registered()
                if lifeline is None:
                    _announce(opened, address, as_json)
                else:
                    await tasks.start(_tied, lifeline, opened.session.info.id, life)
                if screen is not None:
                    tasks.start_soon(screen.run, opened.session)
                if outward is not None:
                    tasks.start_soon(outward.run)
                await anyio.sleep_forever()
        link.cancel_scope.cancel()


def _announce(opened: Opened, address: str, as_json: bool) -> None:
    from . import output

    info = opened.session.info
    if as_json:
        output.document(
            {
                "ready": True,
                "session": info.id,
                "device": info.device,
                "directory": info.cwd,
                "resumed": opened.resumed,
                "link": address,
            }
        )
    else:
        click.echo(f"{'resumed' if opened.resumed else 'new'} session {info.id} in {info.cwd}")
    sys.stdout.flush()


async def _tied(
    lifeline: int, session: str, life: anyio.CancelScope, *, task_status: TaskStatus[None]
) -> None:
    """Tell the parent which session this is, and end with it, however it ends."""
    import anyio

    with socket.socket(fileno=lifeline) as parent:
        parent.sendall(json.dumps({"session": session}).encode() + b"\n")
        task_status.started()
        try:
            while True:
                await anyio.wait_readable(parent)
                if not parent.recv(4096):
                    break
        except OSError:
            pass  # reset: gone as well
    life.cancel()


class Resident:
    """Implements `wire.ports.Attendant` for one session, and sees to its life."""

    def __init__(self, opened: Opened) -> None:
        import anyio
        from chappie_agents.attendant import AgentHost

        self._session = opened.session
        self._host = AgentHost()
        self._settled = anyio.Event()

    @property
    def settled(self) -> bool:
        """Has a broker said whether it takes the session?"""
        return self._settled.is_set()

    async def registered(self) -> None:
        """Wait until a broker took the session.  :raises BridgeError: it does not."""
        from chappie_bridge.wire.errors import from_failure

        await self._settled.wait()
        refused = self._host.refused.get(self._session.info.id)
        if refused is not None:
            raise from_failure(refused)

    @asynccontextmanager
    async def living(self) -> AsyncGenerator[TaskGroup]:
        """The session runs.  At the end its tools are stopped, and told so while the link still is there."""
        import anyio

        from .stopping import hurry

        async with anyio.create_task_group() as tasks:
            await tasks.start(self._host.run)
            await self._host.add(self._session)
            try:
                yield tasks
            finally:
                hurry()
                with anyio.move_on_after(_LAST_WORDS, shield=True):
                    # A session has no event for the end of its batches.
                    while self._session.stop("The agent was stopped."):  # noqa: ASYNC110
                        await anyio.sleep(0.02)
                self._host.end(self._session.info.id)
                tasks.cancel_scope.cancel()

    # -- wire.ports.Attendant --------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        self._host.link_up(link)

    def link_back(self, link: Link) -> None:
        self._host.link_back(link)

    def link_down(self, link: Link) -> None:
        self._host.link_down(link)

    def link_gone(self, link: Link) -> None:
        self._host.link_gone(link)

    def received(self, link: Link, message: Message) -> None:
        from chappie_bridge.wire.messages import Failed, Registered

        self._host.received(link, message)
        if isinstance(message, Registered | Failed):
            self._settled.set()

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> None:
        self._host.received_chunk(link, stream, offset, data)


class Inside:
    """The agent in the broker's own process, linked by method calls; the same to `up` as a child."""

    def __init__(
        self, settings: Settings, state: StateDirectory, broker: Serving, directory: Path, *, quiet: bool
    ) -> None:
        import anyio

        self._settings, self._state, self._broker, self._directory = settings, state, broker, directory
        self._quiet = quiet
        self.told = anyio.Event()
        self.session: str | None = None

    async def run(self) -> None:
        """Until cancelled.  :raises BridgeError: the broker does not take the session."""
        import anyio
        from chappie_agents.terminal import Terminal

        from chappie_bridge.inproc import connect
        from chappie_bridge.wire.ids import Mint
        from chappie_bridge.wire.ports import Peer

        from .outward import Outward
        from .serving import LOCAL

        terminal = Terminal()
        screen = terminal if terminal.attended and not self._quiet else None
        outward = Outward(self._state, None)
        opened = await anyio.to_thread.run_sync(
            _open, self._settings, self._state, self._directory, screen, outward
        )
        try:
            resident = Resident(opened)
            near = Peer("agent", LOCAL, Mint().instance(), opened.session.info.device)
            far = Peer("broker", LOCAL, Mint().instance(), "")
            end, _ = connect(self._broker.attendant, near, resident, far)
            try:
                async with resident.living() as tasks:
                    await resident.registered()
                    self.session = opened.session.info.id
                    self.told.set()
                    if screen is not None:
                        tasks.start_soon(screen.run, opened.session)
                    tasks.start_soon(outward.run)
                    await anyio.sleep_forever()
            finally:
                end.close()
        finally:
            opened.close()
            terminal.close()
