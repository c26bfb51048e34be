"""What `doctor` says of a home without a broker; with one, see story/test_up.py."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from chappie_broker.state import StateDirectory
from chappie_broker.store.sqlite import InlineSqliteStore

from chappie_bridge.config import load
from chappie_bridge.doctor import Finding, examine, move_registry_aside, restore_registry
from chappie_bridge.probe import Probe, ProbeError
from chappie_bridge.wire.errors import Lost
from chappie_bridge.wire.ports import Switchboard

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def nobody(state: StateDirectory) -> AsyncGenerator[Switchboard]:
    raise Lost(f"nobody in {state.path}")
    yield


async def findings(state: Path, **settings: object) -> dict[str, Finding]:
    loaded = load({"state": str(state), **settings})
    return {found.name: found async for found in examine(loaded, "no root set", nobody)}


async def registry(state: Path) -> Path:
    path = StateDirectory.visit(state).database
    await (await InlineSqliteStore.open(path)).close()
    return path


async def test_a_new_home_has_no_fault_and_no_broker(tmp_path: Path) -> None:
    found = await findings(tmp_path / "state")
    assert found["broker"].verdict == "warning"
    assert "chappie-bridge up" in found["broker"].todo
    assert found["registry"].said == "none yet"
    assert "fault" not in {each.verdict for each in found.values()}


async def test_no_authentication_is_told_and_in_public_a_fault(tmp_path: Path) -> None:
    """S25: who is let in is said, always."""
    assert (await findings(tmp_path / "a"))["authentication"].verdict == "ok"
    alone = await findings(tmp_path / "a", auth="none")
    assert alone["authentication"].verdict == "warning"
    public = await findings(tmp_path / "a", auth="none", public_url="https://bridge.example")
    assert public["authentication"].verdict == "fault"
    assert public["public address"].verdict == "warning"


@pytest.mark.parametrize(
    ("setting", "verdict"),
    [
        ({"http": "192.0.2.1:24273"}, "fault"),
        ({"http": "[::]:24273"}, "fault"),
        ({"http": "[::1]:24273"}, "warning"),
        ({"allowed_hosts": ["bridge.example:*"]}, "fault"),
        ({"allowed_hosts": ["localhost:8080", "127.0.0.1:*"]}, "warning"),
        ({"public_url": "http://127.0.0.1:8080"}, "warning"),
    ],
)
async def test_open_beyond_this_machine_is_a_fault_however_it_is_reached(
    tmp_path: Path, setting: dict[str, object], verdict: str
) -> None:
    """S25: by an address to listen on, a proxy's name, or `public_url`."""
    assert (await findings(tmp_path / "a", auth="none", **setting))["authentication"].verdict == verdict
    assert (await findings(tmp_path / "a", **setting))["authentication"].verdict == "ok"


async def test_a_public_address_is_https_and_its_code_is_named(tmp_path: Path) -> None:
    """S25 S18: over plain http the secret and the tokens could be read on their way."""
    found = (await findings(tmp_path / "a", public_url="https://bridge.example"))["public address"]
    assert (found.verdict, "chappie-bridge code" in found.said) == ("ok", True)
    plain = (await findings(tmp_path / "a", public_url="http://bridge.example"))["public address"]
    assert (plain.verdict, "https" in plain.todo) == ("fault", True)
    assert "public address" not in await findings(tmp_path / "a")


async def test_no_root_is_a_visible_state(tmp_path: Path) -> None:
    """S13: that nothing is restricted is said, not left to be guessed."""
    assert (await findings(tmp_path / "a"))["policy"].said == "no root set"


async def test_a_file_that_others_may_read_is_a_fault_with_its_remedy(tmp_path: Path) -> None:
    state = tmp_path / "state"
    await findings(state)
    (state / "broker.lock").touch(mode=0o600)
    (state / "broker.lock").chmod(0o644)
    found = (await findings(state))["state directory"]
    assert found.verdict == "fault"
    assert found.todo == f"chmod 600 {state / 'broker.lock'}"


async def test_a_damaged_registry_is_a_fault_and_can_be_moved_aside(tmp_path: Path) -> None:
    """B88: the damage is told, and nothing of the file is lost."""
    state = tmp_path / "state"
    path = await registry(state)
    path.write_bytes(b"no database" * 1000)
    assert (await findings(state))["registry"].verdict == "fault"
    aside = move_registry_aside(state)
    assert aside.read_bytes().startswith(b"no database")
    assert (await findings(state))["registry"].said == "none yet"


async def test_a_backup_takes_the_place_of_the_registry(tmp_path: Path) -> None:
    """B88: a copy made online is a whole registry."""
    state = tmp_path / "state"
    path = await registry(state)
    store = await InlineSqliteStore.open(path)
    await store.meta_once("mark", "from the backup")
    await store.backup(tmp_path / "copy.db")
    await store.close()
    path.write_bytes(b"no database" * 1000)
    before = restore_registry(state, tmp_path / "copy.db")
    assert before is not None
    assert before.exists()
    restored = await InlineSqliteStore.open(path)
    assert await restored.meta("mark") == "from the backup"
    await restored.close()


async def test_a_probe_says_what_it_met(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match=r"127\.0\.0\.1:1/mcp"):
        Probe("http://127.0.0.1:1/mcp", {}).request("tools/list", {})
