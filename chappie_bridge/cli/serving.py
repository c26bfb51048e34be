"""The composition: one broker with its registry and its links.  Knows no face and no agent."""

import secrets
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from chappie_broker.addresses import Allowed
from chappie_broker.broker import Broker
from chappie_broker.codes import OneTimeCodes
from chappie_broker.desk import CallerDesk
from chappie_broker.devices import Devices, Entrance, token_hash
from chappie_broker.download import Bounds
from chappie_broker.guard import is_loopback
from chappie_broker.hub import Hub
from chappie_broker.limits import Limits
from chappie_broker.measures import of_links
from chappie_broker.office import OwnersOffice
from chappie_broker.state import StateDirectory
from chappie_broker.store.port import StoreError
from chappie_broker.store.rows import Device
from chappie_broker.store.sqlite import Options, SqliteStore

from chappie_bridge.config import Address, Settings, SettingsError
from chappie_bridge.wire.ids import LOCAL, Mint
from chappie_bridge.wire.messages import Message
from chappie_bridge.wire.pairing import CA, OPEN
from chappie_bridge.wire.ports import Attendant, Link

VERSION = version("chappie-bridge")


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
    state: StateDirectory,
    settings: Settings,
    *,
    ports: bool = True,
    entry: Callable[[], Awaitable[object]] | None = None,
) -> AsyncGenerator[Serving]:
    """A broker on a locked state directory, listening on its socket and, with `ports`, for other machines.
    Whoever comes over a link waits until `entry` came to its end.

    :raises OSError: the port is taken.
    :raises SettingsError: the certificate cannot be used.
    :raises StoreError: the registry cannot be opened."""
    mint = Mint()
    async with AsyncExitStack() as stack:
        store = await SqliteStore.open(state.database, Options(max_bytes=settings.registry_bytes))
        stack.push_async_callback(store.close)
        key = await store.meta_once("conversation-key", secrets.token_hex(32))
        codes, now = OneTimeCodes(time.monotonic), time.time()
        local = Device(LOCAL, socket.gethostname(), token_hash(state.secret("link-token")), now, now)
        devices = await Devices.open(store, codes, local=local, now=time.time, mint=mint)
        stack.push_async_callback(_written, devices)
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
            codes=codes,
            devices=devices,
            now=time.time,
        )
        desk = CallerDesk(broker, office, local_device=LOCAL)
        await stack.enter_async_context(desk.open())
        attendant = ByRole(broker.dispatch, desk)
        hub = Hub(
            attendant,
            instance=mint.instance(),
            authenticate=devices.authenticate,
            enrol=devices.enrol,
            local_device=LOCAL,
            version=VERSION,
        )
        stack.callback(hub.close)
        await stack.enter_async_context(hub.serve_unix(state.socket, entry=entry))
        entrance = await stack.enter_async_context(_entrance(hub, state, settings, entry)) if ports else None
        devices.serves(hub, None if entrance is None else _outside(entrance, settings))
        link = None if entrance is None else entrance.url
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
        keep_deliveries=settings.keep_deliveries,
        keep_questions=settings.keep_questions,
        mail_bytes=settings.waiting_bytes,
        keep_audit=settings.keep_audit,
        audit_lines=settings.audit_lines,
    )


@asynccontextmanager
async def _entrance(
    hub: Hub,
    state: StateDirectory,
    settings: Settings,
    entry: Callable[[], Awaitable[object]] | None,
) -> AsyncGenerator[Entrance]:
    """The link's port: TLS off loopback, and wherever a certificate is configured."""
    host, port = Address.parse(settings.listen)
    hosts = {socket.gethostname(), *settings.allowed_hosts}
    hosts.add(urlsplit(settings.link_url).hostname or host)
    pin, context = OPEN, None
    if settings.certificate or not is_loopback(host):
        pin, context = _tls(state, settings)
    async with hub.serve_tcp(host, port, ssl=context, hosts=hosts, entry=entry) as taken:
        yield Entrance(f"{'ws' if context is None else 'wss'}://{Address(host, taken)}", pin)


def _tls(state: StateDirectory, settings: Settings) -> tuple[str, ssl.SSLContext]:
    """:raises SettingsError: the configured certificate cannot be used."""
    from chappie_broker import certificate

    try:
        if settings.certificate:
            key = settings.certificate_key or settings.certificate
            chain = certificate.Chain(Path(settings.certificate).expanduser(), Path(key).expanduser())
        else:
            chain = certificate.own(state, datetime.now(UTC))
        return certificate.pin(chain), certificate.context(chain)
    except (OSError, ValueError) as error:
        raise SettingsError(f"certificate: {error}") from None


def _outside(entrance: Entrance, settings: Settings) -> Entrance:
    """What another machine dials: where nothing else is said, the address of the way to the internet."""
    if settings.link_url:
        secure = settings.link_url.startswith("wss:")
        return Entrance(settings.link_url, CA if secure else OPEN)
    url = urlsplit(entrance.url)
    if url.hostname not in ("0.0.0.0", "::"):  # noqa: S104 - every address, which is none to dial
        return entrance
    return Entrance(f"{url.scheme}://{Address(_own_address(), url.port or 0)}", entrance.pin)


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        try:
            end.connect(("192.0.2.1", 9))  # a route is looked up, nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(end.getsockname()[0])


async def _written(devices: Devices) -> None:
    with suppress(StoreError):
        await devices.write_down()
