"""`agent`: the built-in agent in a directory, linked to a broker.  Imports no face."""

from __future__ import annotations

import json
import logging
import os
import platform
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from .options import as_json, settings

if TYPE_CHECKING:
    import anyio
    from anyio.abc import TaskStatus
    from chappie_agents.callers import CallerRule
    from chappie_agents.hosts.builtin import Opened
    from chappie_agents.policy import Policy
    from chappie_agents.residency import Residency
    from chappie_agents.terminal import Terminal
    from chappie_broker.state import StateDirectory

    from chappie_bridge.config import Loaded, Settings
    from chappie_bridge.wire.ids import SessionId

    from .outward import Outward
    from .resident import Resident
    from .serving import Serving
    from .where import Where

log = logging.getLogger("chappie.agent")

_PATIENCE = 3.0
"""Seconds until somebody who waits for the link is told that it is not there."""


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
    "--daemon",
    is_flag=True,
    help="No session at first: start one in any directory inside `agent_roots` when a chat asks for it.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The device token for --connect, instead of `join`; or CHAPPIE_TOKEN.",
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
    daemon: bool,
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

    from .loop import run
    from .outward import Outward
    from .where import Where

    state = StateDirectory.visit(loaded.settings.state_directory)
    token = token_file.read_text(encoding="utf-8").strip() if token_file else os.environ.get("CHAPPIE_TOKEN")
    where = Where.of(loaded.settings, state, token, here=lifeline is not None)
    if foreign != bool(command):
        raise click.UsageError("--mcp and the command of a server belong together: agent --mcp COMMAND…")
    if foreign:
        from .foreign import serve

        run(serve, loaded.settings, state, directory, command, name, new, where, as_json)
        return
    outward = Outward(where)
    if daemon:
        _daemon(loaded.settings, state, outward, where, as_json=as_json, fresh=new)
        return
    terminal = Terminal()
    screen = terminal if terminal.attended and not as_json else None
    residency = None if lifeline is None else _residency(loaded.settings, state, outward)
    opened = _open(loaded.settings, state, directory, screen, outward, name=name, new=new)
    try:
        run(linked, loaded.settings, opened, screen, where, as_json, lifeline, outward, residency)
    finally:
        opened.close()
        if residency is not None:
            residency.close()
        terminal.close()


def _daemon(
    settings: Settings,
    state: StateDirectory,
    outward: Outward,
    where: Where,
    *,
    as_json: bool,
    fresh: bool,
) -> None:
    from .loop import run

    given = click.get_current_context().get_parameter_source
    if any(given(name) is ParameterSource.COMMANDLINE for name in ("directory", "name", "foreign")):
        raise click.UsageError("--daemon starts sessions when it is asked: no directory, name or --mcp")
    if not settings.agent_roots:
        raise click.UsageError("--daemon needs `agent_roots`: the directories in which it may start agents")
    residency = _residency(settings, state, outward, fresh=fresh)
    if residency is None:
        raise click.ClickException("another process of this state directory starts agents already")
    try:
        run(linked, settings, None, None, where, as_json, None, outward, residency)
    finally:
        residency.close()


def _residency(
    settings: Settings, state: StateDirectory, outward: Outward, *, fresh: bool = False
) -> Residency | None:
    """None: nothing is allowed, or another process sees to it."""
    from chappie_agents.residency import Residency

    if not settings.agent_roots:
        return None

    def open_one(directory: Path, session: SessionId | None) -> Opened:
        return _open(settings, state, directory, None, outward, new=session is None, session=session)

    try:
        return Residency(settings.agent_roots, state.path / "resident", open_one, fresh=fresh)
    except BlockingIOError:
        log.warning("another process of this state directory starts agents in `agent_roots`")
        return None


def _open(
    settings: Settings,
    state: StateDirectory,
    directory: Path,
    screen: Terminal | None,
    outward: Outward,
    *,
    name: str | None = None,
    new: bool = False,
    session: SessionId | None = None,
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
        resumed=session,
        screen=screen,
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
    opened: Opened | None,
    screen: Terminal | None,
    where: Where,
    as_json: bool,
    lifeline: int | None,
    outward: Outward | None = None,
    residency: Residency | None = None,
) -> None:
    """The session, and those that `residency` starts, on a link of their own, until a signal or until the
    parent at the lifeline is gone."""
    import anyio

    from chappie_bridge.codec.unicode import display

    from .loop import settled
    from .resident import Resident
    from .stopping import on_signal

    resident = Resident(opened, residency)
    address = where.address
    name = opened.session.info.device if opened else display(platform.node() or "device", 64)
    dial = where.dial(resident, "agent", name)
    async with anyio.create_task_group() as link:
        link.start_soon(dial.run)
        async with resident.living() as tasks:
            with anyio.CancelScope() as life:
                await tasks.start(on_signal, life)
                with anyio.move_on_after(_PATIENCE):
                    await resident.registered()
                if not resident.settled:
                    waits = resident.waits or f"no broker answers at {address} yet"
                    click.echo(f"{waits}; still trying", err=True)
                    await resident.registered()
                if opened is None:
                    _announce_daemon(settings, resident, address, as_json)
                elif lifeline is None:
                    _announce(opened, address, as_json)
                else:
                    await tasks.start(_tied, lifeline, opened.session.info.id, life)
                if screen is not None and opened is not None:
                    tasks.start_soon(screen.run, opened.session)
                if outward is not None:
                    tasks.start_soon(outward.run)
                settled()
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


def _announce_daemon(settings: Settings, resident: Resident, address: str, as_json: bool) -> None:
    from . import output

    if as_json:
        sessions, roots = list(resident.sessions), list(settings.agent_roots)
        output.document({"ready": True, "roots": roots, "sessions": sessions, "link": address})
    else:
        where, count = ", ".join(settings.agent_roots), len(resident.sessions)
        click.echo(f"starts agents in {where}; {count} session{'s' if count != 1 else ''} resumed")
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
        from chappie_bridge.wire.ids import LOCAL, Mint
        from chappie_bridge.wire.ports import Peer

        from .outward import Outward
        from .resident import Resident
        from .where import Where

        terminal = Terminal()
        screen = terminal if terminal.attended and not self._quiet else None
        outward = Outward(Where.of(self._settings, self._state, None, here=True))
        opened = await anyio.to_thread.run_sync(
            _open, self._settings, self._state, self._directory, screen, outward
        )
        residency = _residency(self._settings, self._state, outward)
        try:
            resident = Resident(opened, residency)
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
            if residency is not None:
                residency.close()
            terminal.close()
