"""`mcp`: one MCP client over stdio, on a broker that outlives it.  Writes nothing to stdout but MCP."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import click

from .options import settings

if TYPE_CHECKING:
    from chappie_agents.dial import Dial
    from chappie_broker.state import StateDirectory

    from chappie_bridge.config import Loaded

log = logging.getLogger("chappie.mcp")

IDLE_EXIT = 600
"""Seconds after which a broker that was started here, and that nobody uses, leaves."""

_LOOK_EVERY = 2.0
"""Seconds between two looks at whether a broker is there."""


@click.command()
@settings()
def mcp(loaded: Loaded) -> None:
    """Speak MCP over stdio; joins the running broker, or starts one.

    The broker that it starts listens on no port and leaves when nobody used it for ten minutes; agents on
    this machine join it with `chappie-bridge agent`.
    """
    from chappie_bridge.faces.chatgpt.descriptors import claimed

    with claimed() as descriptors:
        from chappie_broker.state import StateDirectory

        from .loop import run

        state = StateDirectory.visit(loaded.settings.state_directory)
        run(_serve, loaded, state, *descriptors)


async def _serve(loaded: Loaded, state: StateDirectory, source: int, sink: int) -> None:
    import anyio
    from chappie_agents.caller import RemoteSwitchboard

    from .reach import dialling

    switchboard = RemoteSwitchboard()
    dial = dialling(state, switchboard)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dial.run)
        tasks.start_soon(_keep_a_broker, dial, state, loaded)
        # Importing the SDK takes most of a second; the broker starts meanwhile.
        await anyio.to_thread.run_sync(importlib.import_module, "chappie_bridge.cli.face")
        from chappie_bridge.faces.chatgpt.server import serve_stdio

        from .face import face_settings

        await serve_stdio(switchboard, face_settings(loaded.settings, None), source, sink)
        tasks.cancel_scope.cancel()


async def _keep_a_broker(dial: Dial, state: StateDirectory, loaded: Loaded) -> None:
    """Start one whenever nobody listens.  Two that start at once are sorted out by the state's lock."""
    import anyio

    process: subprocess.Popen[bytes] | None = None
    while True:
        running = process is not None and process.poll() is None
        if not running and not dial.up and not _listens(state):
            process = await anyio.to_thread.run_sync(_start, state, loaded)
            log.info("started a broker, process %d", process.pid)
        await anyio.sleep(_LOOK_EVERY)


def _listens(state: StateDirectory) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        try:
            end.connect(str(state.socket))
        except OSError:
            return False
    return True


def _start(state: StateDirectory, loaded: Loaded) -> subprocess.Popen[bytes]:
    """A broker that belongs to nobody: its own session, no terminal, its log in the state directory."""
    argv = [sys.executable, "-m", "chappie_bridge.cli", "serve", "--no-ports"]
    argv += ["--idle-exit", str(IDLE_EXIT), "--log-file", str(state.logs / "serve.log")]
    argv += ["--state", str(state.path), "--log-level", loaded.settings.log_level]
    if loaded.file is not None:
        argv += ["--config", str(loaded.file)]
    state.logs.mkdir(mode=0o700, exist_ok=True)
    mode = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with os.fdopen(os.open(state.logs / "serve.err", mode, 0o600), "wb") as errors:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            cwd=state.path,
        )
