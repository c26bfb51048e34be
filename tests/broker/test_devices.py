"""Devices are paired with a code, known by a hash, and revoked."""

import asyncio
import hashlib
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from chappie_agents.enrol import new_token, pair, rotate
from chappie_agents.pin import pinned
from chappie_broker import certificate, door, hub
from chappie_broker.codes import OneTimeCodes
from chappie_broker.devices import Devices, Enrolment, Entrance, token_hash
from chappie_broker.state import StateDirectory
from chappie_broker.store.port import StoreFull
from chappie_broker.store.rows import Device
from chappie_broker.store.sqlite import InlineSqliteStore

from chappie_bridge.wire.errors import BadArguments, Forbidden, Overloaded
from chappie_bridge.wire.ids import DeviceId
from chappie_bridge.wire.pairing import Pairing
from tests.broker.device_rig import devices
from tests.peer.link_rig import LOCAL, a_dial, a_hub, running
from tests.peer.recorder import Recorder

pytestmark = pytest.mark.anyio

PIN = "sha256:" + "0" * 64


@asynccontextmanager
async def desk(root: Path) -> AsyncGenerator[tuple[Devices, OneTimeCodes, InlineSqliteStore]]:
    store = await InlineSqliteStore.open(root / "broker.db")
    codes = OneTimeCodes(lambda: 0.0)
    try:
        yield await devices(store, codes), codes, store
    finally:
        await store.close()


async def full(device: DeviceId, at: float) -> bool:
    raise StoreFull(Path("broker.db"))


def enrolment(token: str, code: str = "", device: DeviceId | None = None) -> Enrolment:
    return Enrolment(token_hash(token), "192.0.2.1", code=code, name="lap\x1btop", device=device)


async def test_a_code_makes_one_device_and_a_lost_answer_can_be_asked_for_again(tmp_path: Path) -> None:
    async with desk(tmp_path) as (known, codes, store):
        code = codes.make("pair")
        made = await known.enrol(enrolment("a", code))
        assert known.authenticate("a") == made.device
        assert "\x1b" not in made.name
        assert await known.enrol(enrolment("a", code)) == made
        with pytest.raises(Forbidden):
            await known.enrol(enrolment("b", code))
        for other in ("login", "consent"):
            with pytest.raises(Forbidden):
                await known.enrol(enrolment("b", codes.make(other)))
        again = await devices(store)  # the broker restarts
        assert again.authenticate("a") == made.device


async def test_a_device_replaces_its_own_token_alone(tmp_path: Path) -> None:
    """S11: what it says about whose token that is does not count."""
    async with desk(tmp_path) as (known, codes, _):
        one = (await known.enrol(enrolment("a", codes.make("pair")))).device
        two = (await known.enrol(enrolment("b", codes.make("pair")))).device
        assert (await known.enrol(enrolment("c", device=one))).device == one
        assert known.authenticate("a") is None
        assert known.authenticate("c") == one
        assert (await known.enrol(enrolment("c", device=one))).device == one
        with pytest.raises(Forbidden):
            await known.enrol(enrolment("c", device=two))
        for taken in ("token-of-here", "d"):
            with pytest.raises(Forbidden):
                await known.enrol(enrolment(taken, device=LOCAL))
        with pytest.raises(BadArguments):
            await known.enrol(Enrolment("no hash", "192.0.2.1", code=codes.make("pair")))


async def test_a_revoked_device_leaves_no_hash_and_its_name_may_be_used_again(tmp_path: Path) -> None:
    async with desk(tmp_path) as (known, codes, store):
        one = (await known.enrol(enrolment("a", codes.make("pair", note="laptop")))).device
        await known.enrol(enrolment("b", codes.make("pair", note="laptop")))
        with pytest.raises(BadArguments, match="2 devices"):
            await known.revoke("laptop")
        assert await known.revoke(one) == one
        assert known.authenticate("a") is None
        assert token_hash("a") not in {device.token_hash for device in await store.devices()}
        with pytest.raises(Forbidden):
            await known.enrol(enrolment("c", device=one))
        assert await known.revoke("laptop") != one
        for nobody in ("laptop", "nobody", LOCAL):
            with pytest.raises(BadArguments):
                await known.revoke(nobody)
        assert (await devices(store)).authenticate("a") is None


async def test_a_token_that_is_being_replaced_does_not_outlive_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S11: whichever of `rotate` and `revoke` is written first, the device is revoked at the end."""
    async with desk(tmp_path) as (known, codes, store):
        one = (await known.enrol(enrolment("a", codes.make("pair")))).device
        saving, go_on, save = anyio.Event(), anyio.Event(), store.save_device

        async def slow(device: Device) -> None:
            saving.set()
            await go_on.wait()
            await save(device)

        monkeypatch.setattr(store, "save_device", slow)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(known.enrol, enrolment("b", device=one))
            await saving.wait()
            tasks.start_soon(known.revoke, one)
            await anyio.wait_all_tasks_blocked()
            go_on.set()
        for each in (known, await devices(store)):
            assert each.authenticate("a") is None
            assert each.authenticate("b") is None


async def test_a_device_stays_refused_when_its_revocation_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S11: the owner is told to ask again, and then it lasts."""
    async with desk(tmp_path) as (known, codes, store):
        one = (await known.enrol(enrolment("a", codes.make("pair", note="laptop")))).device
        with monkeypatch.context() as broken:
            broken.setattr(store, "revoke_device", full)
            with pytest.raises(StoreFull):
                await known.revoke("laptop")
        assert known.authenticate("a") is None
        with pytest.raises(Forbidden):
            await known.enrol(enrolment("b", device=one))
        assert await known.revoke("laptop") == one
        assert (await devices(store)).authenticate("a") is None


async def test_a_line_needs_a_port(tmp_path: Path) -> None:
    async with desk(tmp_path) as (known, _, _):
        with pytest.raises(BadArguments, match="no port"):
            known.invite("", "")
        known.serves(a_hub(Recorder()), Entrance("wss://192.0.2.1:1", PIN))
        line = known.invite("laptop", "")
        assert (line.url, line.pin) == ("wss://192.0.2.1:1", PIN)
        assert known.invite("", "wss://broker.lan:2").url == "wss://broker.lan:2"


# --- over TLS ---


@asynccontextmanager
async def listening(root: Path) -> AsyncGenerator[tuple[Devices, Recorder, str, str]]:
    """Devices behind a hub that speaks TLS on loopback; gives its address and pin."""
    chain = certificate.own(StateDirectory.visit(root / "state"), datetime.now(UTC))
    async with desk(root) as (known, _, _):
        agents = Recorder()
        hub = a_hub(agents, authenticate=known.authenticate, enrol=known.enrol)
        async with hub.serve_tcp("127.0.0.1", 0, ssl=certificate.context(chain)) as port:
            entrance = Entrance(f"wss://127.0.0.1:{port}", certificate.pin(chain))
            known.serves(hub, entrance)
            yield known, agents, entrance.url, entrance.pin


async def test_a_paired_device_links_over_tls_and_a_revoked_one_is_cut(tmp_path: Path) -> None:
    """S11 S18: the certificate is made once and pinned; revoking cuts what is connected."""
    async with listening(tmp_path) as (known, agents, url, pin):
        token, peer = new_token(), Recorder()
        made = await anyio.to_thread.run_sync(pair, known.invite("", ""), token, "laptop")
        dial = a_dial(url, peer, token=token, pin=pin)
        async with anyio.create_task_group() as tasks:

            async def until_refused() -> None:
                with pytest.raises(Forbidden, match="not known"):
                    await dial.run()
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_refused)
            await agents.until_events("up")
            assert agents.link.peer.device == made.device
            await known.revoke(made.device)
            assert agents.names[-1] == "gone"  # at once: nothing was waited for


async def test_a_thief_of_the_old_token_is_cut_when_it_is_replaced(tmp_path: Path) -> None:
    async with listening(tmp_path) as (known, agents, url, pin):
        old, new, peer = new_token(), new_token(), Recorder()
        await anyio.to_thread.run_sync(pair, known.invite("", ""), old, "laptop")
        async with running(a_dial(url, peer, token=lambda: (old, new), pin=pin)):
            await agents.until_events("up")
            await anyio.to_thread.run_sync(rotate, url, pin, old, new)
            await peer.until_events("up", "down", "back")
        with pytest.raises(Forbidden):
            await a_dial(url, Recorder(), token=old, pin=pin).run()


async def test_a_server_with_another_certificate_hears_nothing(tmp_path: Path) -> None:
    """S18: who stands between sees neither the code nor the token."""
    other = certificate.own(StateDirectory.visit(tmp_path / "other"), datetime.now(UTC))
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # the other end may leave by a reset
            heard.extend(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=certificate.context(other))
    url = f"wss://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        with pytest.raises(Forbidden, match="another certificate"):
            await anyio.to_thread.run_sync(pair, Pairing(url, "ABCD-EFGH", PIN), "token", "laptop")
        tried = anyio.Event()

        async def pause(seconds: float) -> None:
            tried.set()
            await anyio.sleep_forever()

        async with running(a_dial(url, Recorder(), token="token", pin=PIN, pause=pause)):
            await tried.wait()
    assert not heard


async def test_silent_handshakes_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S22: half-open handshakes are few; the oldest of the most crowded address goes."""
    monkeypatch.setattr(door, "MAX_HALF_OPEN", 4)
    monkeypatch.setattr(hub, "GREETING", 600)  # it is not their time that cuts them
    async with listening(tmp_path) as (_, _, url, _):
        port = int(url.rpartition(":")[2])
        mute = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        for reader, _ in mute[:8]:
            with anyio.fail_after(10):
                with suppress(ConnectionError):
                    assert await reader.read() == b""
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=pinned(PIN))
        shown = writer.get_extra_info("ssl_object").getpeercert(True)
        assert len(hashlib.sha256(shown).digest()) == 32
        writer.close()
        for _, each in mute:
            each.close()


def test_the_certificate_is_kept_and_its_key_is_private(tmp_path: Path) -> None:
    state = StateDirectory.visit(tmp_path / "state")
    chain = certificate.own(state, datetime.now(UTC))
    first = certificate.pin(chain)
    assert certificate.pin(certificate.own(state, datetime.now(UTC))) == first
    assert chain.key.stat().st_mode & 0o777 == 0o600
    assert certificate.context(chain).minimum_version == ssl.TLSVersion.TLSv1_3


def test_too_many_wrong_codes_have_to_wait() -> None:
    codes = OneTimeCodes(lambda: 0.0)
    for _ in range(10):
        with pytest.raises(Forbidden):
            codes.redeem("pair", "AAAA", by="192.0.2.1")
    with pytest.raises(Overloaded):
        codes.redeem("pair", "AAAA", by="192.0.2.1")
