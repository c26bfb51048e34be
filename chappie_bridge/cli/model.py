"""`model`: the model endpoint for agent programs, linked to a broker.  Imports no face."""

from __future__ import annotations

import json
import logging
import os
import platform
import socket
import sys
import time
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import as_json, settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from chappie_agents.hosts.model.endpoint import Endpoint
    from chappie_agents.hosts.model.install import Plan
    from chappie_agents.hosts.model.knowledge import Settings
    from chappie_agents.hosts.model.session import ProgramSession
    from chappie_broker.state import StateDirectory

    from chappie_bridge.config import Loaded
    from chappie_bridge.config import Settings as BridgeSettings

log = logging.getLogger("chappie.model")


@click.group(invoke_without_command=True)
@settings("connect", "model_port")
@as_json
@click.pass_context
def model(ctx: click.Context, loaded: Loaded, as_json: bool) -> None:
    """Serve the model `chappie` to agent programs of this machine.

    A person selects it in Pi, Codex, OpenCode, Claude Code or Qwen Code, and ChatGPT works there.
    `chappie-bridge model install PROGRAM` prints what each one needs.
    """
    if ctx.invoked_subcommand is None:
        from chappie_broker.state import StateDirectory

        from .loop import run

        state = StateDirectory.visit(loaded.settings.state_directory)
        run(_serve, loaded, state, as_json)


async def _serve(loaded: Loaded, state: StateDirectory, as_json: bool) -> None:
    import anyio
    from chappie_agents.attendant import AgentHost
    from chappie_agents.hosts.model.endpoint import Endpoint
    from chappie_agents.hosts.model.extensions import Extensions
    from chappie_agents.hosts.model.history import habits_for
    from chappie_agents.hosts.model.house import House

    from chappie_bridge.wire.ids import Mint

    from .stopping import on_signal
    from .where import Where

    mint = Mint()
    host = AgentHost()
    wakers: list[Extensions] = []  # the house comes first

    async def wake(session: ProgramSession, text: str) -> bool:
        return await wakers[0].wake(session, text)

    house = House(
        host,
        state.path / "programs",
        device=platform.node() or "device",
        settings=_chosen(loaded.settings),
        lease=loaded.settings.hold_lease,
        habits=habits_for(wake),
        now=time.time,
        mint=mint,
    )
    where = Where.of(loaded.settings, state, os.environ.get("CHAPPIE_TOKEN"))
    dial = where.dial(host, "agent", platform.node() or "device")
    wakers.append(Extensions(house))
    endpoint = Endpoint(house, state.secret("model-key"), now=time.time, extensions=wakers[0])
    with ExitStack() as stack:
        stack.enter_context(house.held())
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as life:
                await tasks.start(on_signal, life)
                await tasks.start(host.run)
                await tasks.start(house.run)
                async with _http(endpoint, loaded.settings.model_port) as taken:
                    stack.enter_context(_told_to_doctor(state, f"http://127.0.0.1:{taken}"))
                    tasks.start_soon(dial.run)
                    _announce(state, taken, as_json)
                    await anyio.sleep_forever()
            tasks.cancel_scope.cancel()


def _chosen(settings: BridgeSettings) -> Settings:
    from chappie_agents.callers import Callers
    from chappie_agents.hosts.model.knowledge import Settings

    from .agent import callers, policy

    return Settings(
        summary_wait=settings.summary_wait,
        no_word=settings.no_word,
        keep_alive=settings.keep_alive,
        grace=settings.hold_grace,
        subagents=settings.subagents == "drive",
        titles=settings.titles == "chatgpt",
        callers=Callers(callers(settings)),
        policy=policy(settings),
    )


@contextmanager
def _told_to_doctor(state: StateDirectory, url: str) -> Generator[None]:
    from .programs import MODEL_DOOR

    file = state.path / MODEL_DOOR
    part = file.with_suffix(".part")
    part.touch(mode=0o600)
    part.write_text(json.dumps({"url": url}), encoding="utf-8")
    part.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _announce(state: StateDirectory, port: int, as_json: bool) -> None:
    from . import output

    url = f"http://127.0.0.1:{port}/v1"
    if as_json:
        output.document({"ready": True, "url": url, "key": str(state.path / "model-key")})
    else:
        click.echo(f"ready\n\n  model    {url}\n  key      {state.path / 'model-key'}")
    sys.stdout.flush()


@model.command()
@click.argument("program", type=click.Choice(["pi", "codex", "opencode", "claude", "qwen"]))
@click.option("--write", is_flag=True, help="Write the files; what was there is kept beside them.")
@click.option("--home", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), hidden=True)
@settings("model_port")
@as_json
def install(loaded: Loaded, as_json: bool, program: str, write: bool, home: Path | None) -> None:
    """Print, or with --write write, what PROGRAM needs to use the model `chappie`."""
    from chappie_agents.hosts.model import install
    from chappie_broker.state import StateDirectory

    from . import output
    from .programs import local

    port = loaded.settings.model_port
    if not port:
        raise click.UsageError("A program must know the port: give --port, or set model_port.")
    state = StateDirectory.visit(loaded.settings.state_directory)
    key = state.secret("model-key")
    plan = install.plan(program, f"http://127.0.0.1:{port}", key, home or Path.home(), local(state))
    backups = install.write(plan.changes) if write else []
    if as_json:
        output.document(
            {
                "program": program,
                "written": write,
                "files": {str(change.path): change.text for change in plan.changes},
                "backups": [str(path) for path in backups],
                "start": plan.start,
            }
        )
        return
    _show(plan, write)
    for path in backups:
        click.echo(f"kept as it was: {path}", err=True)
    click.echo(f"start it with: {plan.start}", err=True)


def _show(plan: Plan, written: bool) -> None:
    for change in plan.changes:
        if written:
            click.echo(f"{'written' if change.needed else 'as it should be'}: {change.path}")
        else:
            click.echo(f"# {change.path}\n{change.text}")


@asynccontextmanager
async def _http(endpoint: Endpoint, port: int) -> AsyncGenerator[int]:
    """Serve on loopback; gives the port.  :raises OSError: it is taken."""
    import anyio
    import uvicorn

    config = uvicorn.Config(
        endpoint,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", port)) as listener:

        async def serve() -> None:
            with anyio.CancelScope(shield=True):  # it ends by `should_exit`, so that it closes what is open
                await server._serve([listener])  # `serve` without its own signal handlers

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            try:
                yield listener.getsockname()[1]
            finally:
                server.should_exit = True
