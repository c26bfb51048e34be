"""`up` and `serve`: the broker with its front door, and for `up` an agent beside it."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from .options import as_json, log_to, settings

if TYPE_CHECKING:
    import anyio
    from chappie_broker.state import StateDirectory

    from chappie_bridge.config import Loaded

    from .agent import Inside
    from .child import Child
    from .front import FrontDoor
    from .serving import Serving

    Agent = Literal["child", "inside"] | None

log = logging.getLogger("chappie.up")

_AGENT_WITHIN = 30.0
"""Seconds until an agent that has not registered counts as failed."""

_LOOK_EVERY = 5.0
"""Seconds between two looks at whether anybody still uses an idle broker."""


@click.command()
@click.option(
    "--directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    default=".",
    help="Where the agent works; the current directory by default.",
)
@click.option("--no-agent", is_flag=True, help="Without the built-in agent.")
@click.option("--in-process", is_flag=True, help="The agent in this process instead of a child.")
@settings("http", "listen")
@as_json
def up(loaded: Loaded, as_json: bool, directory: Path, no_agent: bool, in_process: bool) -> None:
    """Run everything here: the broker, MCP over HTTP, and an agent in DIR.

    Checks itself through its own front door, then prints `ready`, the MCP URL and what to paste into
    ChatGPT or a tunnel.  Ctrl-C stops all of it.
    """
    if no_agent and in_process:
        raise click.UsageError("--no-agent and --in-process exclude one another")
    agent: Agent = None if no_agent else "inside" if in_process else "child"
    _run(_Life(loaded, agent, directory, as_json=as_json))


@click.command()
@click.option("--no-ports", is_flag=True, help="Listen on the state directory's socket only.")
@click.option("--idle-exit", type=click.FloatRange(1), help="Leave after so many seconds without any link.")
@click.option("--log-file", metavar="FILE", type=click.Path(path_type=Path), help="Logs here, not on stderr.")
@settings("http", "listen")
@as_json
def serve(
    loaded: Loaded, as_json: bool, no_ports: bool, idle_exit: float | None, log_file: Path | None
) -> None:
    """Run the broker and MCP over HTTP, without an agent."""
    if log_file is not None:
        os.umask(0o077)  # nothing that this process writes is for others; no tool runs in it
        log_to(log_file, loaded.settings.log_level)
    _run(_Life(loaded, None, Path(), as_json=as_json, ports=not no_ports, idle_exit=idle_exit))


def _run(life: _Life) -> None:
    from chappie_broker.state import StateDirectory

    from .loop import run

    with StateDirectory.open(life.loaded.settings.state_directory) as state:
        run(life.run, state)


class _Life:
    """From the locked state directory to its end."""

    def __init__(
        self,
        loaded: Loaded,
        agent: Agent,
        directory: Path,
        *,
        as_json: bool,
        ports: bool = True,
        idle_exit: float | None = None,
    ) -> None:
        self.loaded = loaded
        self._agent, self._directory = agent, directory
        self._as_json, self._ports, self._idle_exit = as_json, ports, idle_exit

    async def run(self, state: StateDirectory) -> None:
        """Until a signal, or until nobody uses it any more."""
        import anyio

        from .stopping import on_signal

        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as life:
                await tasks.start(on_signal, life)
                await self._live(state, life)
            tasks.cancel_scope.cancel()

    async def _live(self, state: StateDirectory, life: anyio.CancelScope) -> None:
        import anyio

        from .serving import serving

        entry = anyio.Event()
        async with (
            serving(state, self.loaded.settings, ports=self._ports, entry=entry.wait) as broker,
            anyio.create_task_group() as tasks,
        ):
            agent = self._start(state, broker)
            if agent is not None:
                tasks.start_soon(agent.run)
            if self._ports:
                # Importing the SDK takes most of a second; the agent starts meanwhile.  Nobody is let in
                # before: after a restart all agents come at once, and it would take several times as long.
                await anyio.to_thread.run_sync(importlib.import_module, f"{__package__}.front")
                entry.set()
                from .front import front_door

                async with front_door(
                    state, self.loaded.settings, broker.broker, broker.office, broker.broker.apps
                ) as door:
                    try:
                        session = await _session(agent)
                        await _check(door, session)
                        await self._announce(state, broker, door, session)
                        await self._until_the_end(broker)
                    finally:
                        door.closing()  # and the agent ends at the same time
                        tasks.cancel_scope.cancel()
            else:
                entry.set()
                await self._announce(state, broker, None, None)
                await self._until_the_end(broker)
        life.cancel()

    async def _until_the_end(self, broker: Serving) -> None:
        import anyio

        from .loop import settled

        settled()
        if self._idle_exit is None:
            await anyio.sleep_forever()
        else:
            await _until_idle(broker, self._idle_exit)

    def _start(self, state: StateDirectory, broker: Serving) -> Inside | Child | None:
        if self._agent == "inside":
            from .agent import Inside

            return Inside(self.loaded.settings, state, broker, self._directory, quiet=self._as_json)
        if self._agent == "child":
            from .child import Child

            terminal = sys.stdin.isatty() and sys.stdout.isatty() and not self._as_json
            return Child(self._agent_argv(state), terminal=terminal)
        return None

    def _agent_argv(self, state: StateDirectory) -> list[str]:
        argv = [sys.executable, "-m", "chappie_bridge.cli", "agent"]
        argv += ["--directory", str(self._directory), "--state", str(state.path)]
        argv += ["--log-level", self.loaded.settings.log_level]
        if self.loaded.file is not None:
            argv += ["--config", str(self.loaded.file)]
        return argv

    async def _announce(
        self, state: StateDirectory, broker: Serving, door: FrontDoor | None, session: str | None
    ) -> None:
        from chappie_bridge.faces.chatgpt.admission import public_base

        from . import output
        from .words import Ready, login_link, words

        if self._as_json:
            output.document(
                {
                    "ready": True,
                    "mcp": door.url if door else None,
                    "headers": door.headers if door else {},
                    "dashboard": door.dashboard if door else None,
                    "link": broker.link,
                    "state": str(state.path),
                    "session": session,
                }
            )
        elif door is None or broker.link is None:
            click.echo(f"ready\n\n  socket   {state.socket}")
        else:
            secret = state.path / "install-secret" if door.headers else None
            directory = None if session is None else self._directory
            page = await login_link(broker.office, door.dashboard)
            ready = Ready(
                door.url,
                page,
                broker.link,
                state.path,
                secret,
                door.headers,
                session,
                directory,
                public_base(self.loaded.settings.public_url) if secret else "",
            )
            click.echo(words(ready))
        sys.stdout.flush()


async def _session(agent: Inside | Child | None) -> str | None:
    """The agent's session, once it is registered."""
    import anyio

    if agent is None:
        return None
    with anyio.move_on_after(_AGENT_WITHIN):
        await agent.told.wait()
    if agent.session is None:
        raise click.ClickException("the agent did not start; its own words are above")
    return agent.session


async def _check(door: FrontDoor, session: str | None) -> None:
    """The self-check, through the front door."""
    import anyio

    from chappie_bridge.probe import Probe, ProbeError, check

    try:
        await anyio.to_thread.run_sync(check, Probe(door.url, door.headers), session)
    except ProbeError as error:
        raise click.ClickException(f"the self-check failed: {error}") from None


async def _until_idle(broker: Serving, seconds: float) -> None:
    """Until no agent and no caller has been linked for so long."""
    import anyio

    idle_since = anyio.current_time()
    while anyio.current_time() - idle_since < seconds:
        await anyio.sleep(min(_LOOK_EVERY, seconds))
        if broker.hub.statistics().sockets:
            idle_since = anyio.current_time()
