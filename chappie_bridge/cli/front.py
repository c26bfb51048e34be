"""The front door: MCP over HTTP on a port of its own.  Knows the broker as a Switchboard only."""

import json
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import anyio
import uvicorn
from chappie_broker.guard import is_loopback
from chappie_broker.state import StateDirectory
from starlette.types import ASGIApp

from chappie_bridge.config import Address, Settings, SettingsError
from chappie_bridge.doctor import FRONT_DOOR
from chappie_bridge.faces.chatgpt.gate import Gate
from chappie_bridge.faces.chatgpt.server import build
from chappie_bridge.faces.dashboard import AT as DASHBOARD
from chappie_bridge.wire.errors import Forbidden
from chappie_bridge.wire.ports import Consents, Office, Switchboard

from .doorstep import HEAD_BYTES, Doorstep, protocol
from .face import face_settings


@dataclass(frozen=True)
class FrontDoor:
    """`url` of MCP and `headers` that a client must send; `dashboard` is for a browser."""

    url: str
    dashboard: str
    headers: dict[str, str]
    server: uvicorn.Server
    gate: Gate

    def closing(self) -> None:
        """Take no more and finish what is under way, while other things end as well."""
        self.server.should_exit = True
        self.gate.close()


@asynccontextmanager
async def front_door(
    state: StateDirectory, settings: Settings, switchboard: Switchboard, office: Office, consents: Consents
) -> AsyncGenerator[FrontDoor]:
    """Serve; `doctor` finds it by a file in the state directory.

    :raises OSError: the port is taken.
    :raises Forbidden: an address off loopback.
    :raises SettingsError: an allow-list cannot be read."""
    secret = state.secret("install-secret") if settings.auth == "secret" else None
    try:
        face = build(switchboard, face_settings(settings, secret), office, consents)
    except ValueError as error:
        raise SettingsError(f"allowed_hosts or allowed_origins: {error}") from None
    async with _served(face, Address.parse(settings.http), settings.body_max) as (server, url):
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        door = FrontDoor(f"{url}/mcp", url + DASHBOARD, headers, server, face)
        with _told(state, door):
            yield door


@contextmanager
def _told(state: StateDirectory, door: FrontDoor) -> Generator[None]:
    """To `doctor` and to who asks for a link."""
    file = state.path / FRONT_DOOR
    part = file.with_suffix(".part")
    part.touch(mode=0o600)
    part.write_text(json.dumps({"mcp": door.url, "dashboard": door.dashboard}), encoding="utf-8")
    part.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


class _Server(uvicorn.Server):
    """Signals are the program's own affair; it stops what it started."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def _served(
    app: ASGIApp, address: Address, body_max: int
) -> AsyncGenerator[tuple[uvicorn.Server, str]]:
    """Serve; gives the URL too.  :raises OSError: the port is taken.  :raises Forbidden: off loopback."""
    if not is_loopback(address.host):
        raise Forbidden(
            f"Refusing to serve MCP on {address.host!r} without TLS.",
            hint="Listen on 127.0.0.1 and put a tunnel or a TLS proxy before it; see `public_url`.",
        )
    config = uvicorn.Config(
        app,
        http=cast("Any", protocol(Doorstep(4 * body_max + HEAD_BYTES))),  # uvicorn takes what makes one
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,  # longer than the pools of clients and tunnels, which close theirs first
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    listener = _listener(address)

    async def serve() -> None:
        with anyio.CancelScope(shield=True):  # it ends by `should_exit`, so that it closes what is open
            await server.serve([listener])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        try:
            yield server, f"http://{Address(address.host, listener.getsockname()[1])}"
        finally:
            server.should_exit = True


def _listener(address: Address) -> socket.socket:
    host = "127.0.0.1" if address.host == "localhost" else address.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by what it accepts: without it an answer in two writes waits 40 ms for the peer's word.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, address.port))
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error
    return listener
