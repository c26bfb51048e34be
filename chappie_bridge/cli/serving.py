"""The composition: one broker with its registry and its links.  Knows no face and no agent."""

import hashlib
import hmac
import secrets
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version

from chappie_broker.addresses import Allowed
from chappie_broker.broker import Broker
from chappie_broker.desk import CallerDesk
from chappie_broker.download import Bounds
from chappie_broker.hub import Hub
from chappie_broker.limits import Limits
from chappie_broker.measures import of_links
from chappie_broker.office import OwnersOffice
from chappie_broker.state import StateDirectory
from chappie_broker.store.rows import Device
from chappie_broker.store.sqlite import SqliteStore

from chappie_bridge.config import Address, Settings
from chappie_bridge.wire.ids import DeviceId, Mint
from chappie_bridge.wire.messages import Message
from chappie_bridge.wire.ports import Attendant, Link

VERSION = version("chappie-bridge")

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
    """What runs.  `link` is None where no port listens; `attendant` is for links in process."""

    broker: Broker
    office: OwnersOffice
    hub: Hub
    attendant: Attendant
    link: str | None


@asynccontextmanager
async def serving(
    state: StateDirectory, settings: Settings, *, ports: bool = True
) -> AsyncGenerator[Serving]:
    """A broker on a locked state directory, listening on its socket and, with `ports`, for other machines.

    :raises OSError: the port is taken.
    :raises Forbidden: an address off loopback.
    :raises StoreError: the registry cannot be opened."""
    token = _digest(state.secret("link-token"))
    mint = Mint()
    async with AsyncExitStack() as stack:
        store = await SqliteStore.open(state.database)
        stack.push_async_callback(store.close)
        key = await store.meta_once("conversation-key", secrets.token_hex(32))
        now = time.time()
        await store.save_device(Device(LOCAL, socket.gethostname(), token, now, now))
        broker = await stack.enter_async_context(
            Broker.open(
                store,
                key=bytes.fromhex(key),
                version=VERSION,
                limits=limits(settings),
                mint=mint,
                bounds=bounds(settings),
            )
        )
        office = OwnersOffice(
            store,
            broker.dispatch,
            broker.questions,
            broker.changes,
            lambda: (*broker.measures(), *of_links(hub.statistics())),
            broker.apps,
            broker.subjects,
            now=time.time,
            clock=time.monotonic,
        )
        desk = CallerDesk(broker, office, local_device=LOCAL)
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
        link = None
        if ports:
            host, port = Address.parse(settings.listen)
            link = f"ws://{Address(host, await stack.enter_async_context(hub.serve_tcp(host, port)))}"
        yield Serving(broker, office, hub, attendant, link)


def bounds(settings: Settings) -> Bounds:
    """Of what is downloaded."""
    return Bounds(
        max_bytes=settings.download_max,
        seconds=settings.download_seconds,
        allowed=Allowed.of(settings.download_hosts),
    )


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
        keep_audit=settings.keep_audit,
        audit_lines=settings.audit_lines,
    )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
