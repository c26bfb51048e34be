"""The composition: one broker with its registry, its links and its front door.  Knows no agent."""

import hashlib
import hmac
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import anyio
import uvicorn
from chappie_broker.broker import Broker
from chappie_broker.desk import CallerDesk
from chappie_broker.guard import is_loopback
from chappie_broker.hub import Hub
from chappie_broker.limits import Limits
from chappie_broker.state import StateDirectory
from chappie_broker.store.rows import Device
from chappie_broker.store.sqlite import SqliteStore
from starlette.types import ASGIApp

from chappie_bridge.config import Address, Settings
from chappie_bridge.doctor import FRONT_DOOR
from chappie_bridge.faces.chatgpt.server import build
from chappie_bridge.wire.errors import Forbidden
from chappie_bridge.wire.ids import DeviceId, Mint
from chappie_bridge.wire.messages import Message
from chappie_bridge.wire.ports import Attendant, Link

from .face import VERSION, face_settings

LOCAL = DeviceId("local")
"""The device of every process of this user on this machine."""


class ByRole:
    """An attendant that leaves agents to the broker and callers to the desk."""

    def __init__(self, agents: Attendant, callers: Attendant) -> None:
        self._agents, self._callers = agents, callers

    def _of(self, link: Link) -> Attendant:
        return self._agents if link.peer.role == "agent" else self._callers

    def link_up(self, link: Link) -> None:
        self._of(link).link_up(link)

    def link_back(self, link: Link) -> None:
        self._of(link).link_back(link)

    def link_down(self, link: Link) -> None:
        self._of(link).link_down(link)

    def link_gone(self, link: Link) -> None:
        self._of(link).link_gone(link)

    def received(self, link: Link, message: Message) -> None:
        self._of(link).received(link, message)

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> None:
        self._of(link).received_chunk(link, stream, offset, data)


@dataclass(frozen=True)
class Serving:
    """What runs.  `url` and `link` are None where nothing listens; `attendant` is for links in process."""

    broker: Broker
    hub: Hub
    attendant: Attendant
    url: str | None
    link: str | None
    headers: dict[str, str]
    """What an MCP client must send."""
    closing: Callable[[], None]
    """The front door closes while other things still end."""


@asynccontextmanager
async def serving(state: StateDirectory, settings: Settings, *, ports: bool = True) -> AsyncIterator[Serving]:
    """A broker on a locked state directory, listening on its socket and, with `ports`, on both addresses.

    :raises OSError: a port is taken.
    :raises Forbidden: an address off loopback.
    :raises StoreError: the registry cannot be opened.
    :raises ValueError: an allow-list cannot be read."""
    secret = state.secret("install-secret") if settings.auth == "secret" else None
    token = _digest(state.secret("link-token"))
    mint = Mint()
    async with AsyncExitStack() as stack:
        store = await SqliteStore.open(state.database)
        stack.push_async_callback(store.close)
        key = await store.meta_once("conversation-key", secrets.token_hex(32))
        now = time.time()
        await store.save_device(Device(LOCAL, socket.gethostname(), token, now, now))
        broker = await stack.enter_async_context(
            Broker.open(store, key=bytes.fromhex(key), version=VERSION, limits=limits(settings), mint=mint)
        )
        desk = CallerDesk(broker, local_device=LOCAL)
        await stack.enter_async_context(desk.open())
        attendant = ByRole(broker.dispatch, desk)
        hub = Hub(
            attendant,
            instance=mint.instance(),
            authenticate=lambda given: LOCAL if hmac.compare_digest(_digest(given), token) else None,
            local_device=LOCAL,
            version=VERSION,
        )
        stack.callback(hub.close)
        await stack.enter_async_context(hub.serve_unix(state.socket))
        link = url = server = None

        def closing() -> None:
            if server is not None:
                server.should_exit = True

        if ports:
            host, port = Address.parse(settings.listen)
            link = f"ws://{Address(host, await stack.enter_async_context(hub.serve_tcp(host, port)))}"
            face = build(broker, face_settings(settings, secret))
            server, url = await stack.enter_async_context(_http(face, Address.parse(settings.http)))
            stack.enter_context(_told_to_doctor(state, url, link))
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        yield Serving(broker, hub, attendant, url, link, headers, closing)


@contextmanager
def _told_to_doctor(state: StateDirectory, url: str, link: str) -> Iterator[None]:
    """Where this broker is, for as long as it is there."""
    file = state.path / FRONT_DOOR
    part = file.with_suffix(".part")
    part.touch(mode=0o600)
    part.write_text(json.dumps({"mcp": url, "link": link}), encoding="utf-8")
    part.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def limits(settings: Settings) -> Limits:
    return Limits(
        session_wait=settings.session_wait,
        offline_grace=settings.offline_grace,
        stale_after=settings.stale_after,
        cooldown=settings.cooldown,
        queue_session=settings.queue_session,
        queue_caller=settings.queue_conversation,
        queue_seconds=settings.queue_seconds,
        keep_results=settings.keep_results,
    )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class _Server(uvicorn.Server):
    """Signals are the program's own affair; it stops what it started."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def _http(app: ASGIApp, address: Address) -> AsyncIterator[tuple[uvicorn.Server, str]]:
    """Serve; gives MCP's URL too.  :raises OSError: the port is taken.  :raises Forbidden: off loopback."""
    if not is_loopback(address.host):
        raise Forbidden(
            f"Refusing to serve MCP on {address.host!r} without TLS.",
            hint="Listen on 127.0.0.1 and put a tunnel or a TLS proxy before it; see `public_url`.",
        )
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
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
            yield server, f"http://{Address(address.host, listener.getsockname()[1])}/mcp"
        finally:
            server.should_exit = True


def _listener(address: Address) -> socket.socket:
    host = "127.0.0.1" if address.host == "localhost" else address.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, address.port))
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error
    return listener
