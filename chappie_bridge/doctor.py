"""Looks at everything end to end and says what to do.  Changes nothing unless asked to mend the registry."""

import json
import shutil
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import time
from typing import Literal
from urllib.parse import urlsplit

import anyio
from chappie_broker.guard import is_loopback
from chappie_broker.state import StateDirectory, StateError
from chappie_broker.store.port import StoreError
from chappie_broker.store.sqlite import InlineSqliteStore, move_aside

from chappie_bridge.codec.unicode import display
from chappie_bridge.config import Address, Loaded, Settings
from chappie_bridge.probe import Probe, ProbeError
from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.ports import Switchboard
from chappie_bridge.wire.requests import BrokerStatus
from chappie_bridge.wire.values import Caller

GIB = 1 << 30
LOW, NO_SPACE = GIB, GIB // 10
"""Free bytes below which the disk is a warning, and a fault."""

FRONT_DOOR = "front-door.json"
"""In the state directory while a broker serves: its MCP URL and its link."""

Reach = Callable[[StateDirectory], AbstractAsyncContextManager[Switchboard]]


@dataclass(frozen=True, slots=True)
class Finding:
    """`todo` says what to do; empty where nothing is."""

    name: str
    verdict: Literal["ok", "warning", "fault"]
    said: str
    todo: str = ""


async def examine(loaded: Loaded, policy: str, reach: Reach) -> AsyncGenerator[Finding]:
    """One finding after another.  `policy` is an agent's, in words; `reach` opens the broker of a state
    directory and raises BridgeError."""
    settings = loaded.settings
    yield Finding("configuration", "ok", f"read from {loaded.file}" if loaded.file else "all defaults")
    yield _auth(loaded)
    if settings.public_url:
        yield _public(settings)
    yield Finding("policy", "ok", policy.replace("\n", "; "))
    try:
        state = StateDirectory.visit(settings.state_directory)
        yield _modes(state)
    except StateError as error:
        yield Finding("state directory", "fault", str(error), "The message says what to do.")
        return
    yield _space(state.path)
    yield _ripgrep()
    owner = Caller(principal="owner", source="shell")
    try:
        async with reach(state) as broker:
            status = await broker.status(BrokerStatus(caller=owner, check=True))
    except BridgeError as error:
        yield Finding("broker", "warning", str(error), "Start one with `chappie-bridge up`.")
        yield await _registry(state)
        return
    yield _broker(status.version, status.sessions_online, status.sessions_known, status.started)
    faults = status.facts.get("integrity")
    yield _integrity([str(line) for line in faults] if isinstance(faults, list) else [])
    yield await anyio.to_thread.run_sync(_front_door, state, settings.auth)


def _auth(loaded: Loaded) -> Finding:
    settings = loaded.settings
    if settings.auth == "secret":
        where = settings.state_directory / "install-secret"
        return Finding("authentication", "ok", f"each MCP request needs the install secret, kept in {where}")
    beyond = _beyond(settings)
    return Finding(
        "authentication",
        "fault" if beyond else "warning",
        f'auth = "none": open to {", ".join(beyond) or "every process of this machine"}',
        'Remove `auth = "none"` from the configuration.',
    )


def _beyond(settings: Settings) -> list[str]:
    """Who reaches MCP from beyond this machine, as the settings have it."""
    found = [f"the public at {settings.public_url}"] if _elsewhere(settings.public_url) else []
    if not is_loopback(Address.parse(settings.http).host):
        found.append(f"every machine that reaches {settings.http}")
    names = [name for name in settings.allowed_hosts if _elsewhere(f"//{name.removesuffix(':*')}")]
    return [*found, *(f"whoever comes as {display(name, 100)}" for name in names)]


def _elsewhere(url: str) -> bool:
    host = urlsplit(url).hostname
    return bool(host) and not is_loopback(host or "")


def _public(settings: Settings) -> Finding:
    url = settings.public_url
    if _elsewhere(url) and not url.startswith("https://"):
        return Finding(
            "public address",
            "fault",
            f"{url} is not https: credentials can be read on their way, and OAuth is not offered",
            "Put TLS before it and write https:// in `public_url`.",
        )
    if settings.auth == "none":
        return Finding("public address", "warning", f"{url}, where nobody needs a credential")
    return Finding("public address", "ok", f"{url}; `chappie-bridge code` gives what lets an app in by OAuth")


def _modes(state: StateDirectory) -> Finding:
    loose = [
        file.name
        for file in state.path.iterdir()
        if not stat.S_ISDIR(mode := file.lstat().st_mode) and stat.S_IMODE(mode) & 0o077
    ]
    if loose:
        return Finding(
            "state directory",
            "fault",
            f"others may read {', '.join(sorted(loose))} in {state.path}",
            f"chmod 600 {' '.join(str(state.path / name) for name in sorted(loose))}",
        )
    return Finding("state directory", "ok", f"{state.path}, private")


def _space(path: Path) -> Finding:
    free = shutil.disk_usage(path).free
    said = f"{free / GIB:.1f} GiB free at {path}"
    if free < LOW:
        verdict: Literal["warning", "fault"] = "fault" if free < NO_SPACE else "warning"
        return Finding("disk", verdict, said, "Free some space; transcripts and results are kept there.")
    return Finding("disk", "ok", said)


def _ripgrep() -> Finding:
    found = shutil.which("rg")
    if found is None:
        return Finding(
            "ripgrep", "warning", "`rg` is not on the PATH; `grep` is slower without", "Install ripgrep."
        )
    return Finding("ripgrep", "ok", found)


def _broker(running: str, online: int, known: int, started: str) -> Finding:
    own = version("chappie-bridge")
    said = f"version {running}, since {started}, {online} of {known} sessions online"
    if running != own:
        return Finding("broker", "warning", f"{said}; this program is {own}", "Restart the broker.")
    if not online:
        return Finding("broker", "warning", said, "Start an agent: `chappie-bridge agent` in a directory.")
    return Finding("broker", "ok", said)


def _integrity(faults: list[str]) -> Finding:
    if faults:
        return Finding(
            "registry",
            "fault",
            "; ".join(faults),
            "Stop the broker, then `chappie-bridge doctor --restore BACKUP` or `--move-aside`.",
        )
    return Finding("registry", "ok", "sound")


async def _registry(state: StateDirectory) -> Finding:
    """Without a broker the file is looked at directly."""
    if not state.database.exists():
        return Finding("registry", "ok", "none yet")
    try:
        store = await InlineSqliteStore.open(state.database)
        try:
            return _integrity(list(await store.integrity_check()))
        finally:
            await store.close()
    except StoreError as error:
        return _integrity([str(error)])


def _front_door(state: StateDirectory, auth: str) -> Finding:
    """A real `tools/list` over HTTP, as a client would send it."""
    try:
        door = json.loads((state.path / FRONT_DOOR).read_text(encoding="utf-8"))
        url = door["mcp"]
    except (OSError, ValueError, KeyError):
        return Finding("MCP over HTTP", "ok", "this broker serves stdio clients only")
    headers = {"X-Chappie-Key": state.secret("install-secret")} if auth == "secret" else {}
    try:
        tools = Probe(url, headers).request("tools/list", {})["tools"]
    except (ProbeError, KeyError) as error:
        return Finding("MCP over HTTP", "fault", str(error), "Restart the broker; its log says more.")
    if auth == "secret" and _is_open(url):
        return Finding(
            "MCP over HTTP",
            "fault",
            f"{url} answers without a credential, although the configuration wants one",
            "Restart the broker: it was started with another configuration.",
        )
    return Finding("MCP over HTTP", "ok", f"{url} answers with {len(tools)} tools")


def _is_open(url: str) -> bool:
    try:
        Probe(url, {}).request("tools/list", {})
    except ProbeError:
        return False
    return True


def move_registry_aside(path: Path) -> Path:
    """Put a damaged registry out of the way; gives its new place.

    :raises StateError: also while a broker runs.  StoreError, BridgeError: it was not moved."""
    with StateDirectory.open(path) as state:
        return move_aside(state.database, time())


def restore_registry(path: Path, backup: Path) -> Path | None:
    """Put a backup in the registry's place; gives where the one before it went.

    :raises StateError: also while a broker runs.  StoreError, BridgeError, OSError: nothing was replaced."""
    with StateDirectory.open(path) as state:
        part = state.database.with_name(".restored.part")
        try:
            shutil.copyfile(backup, part)
            part.chmod(0o600)
            before = move_aside(state.database, time()) if state.database.exists() else None
            part.replace(state.database)
        finally:
            part.unlink(missing_ok=True)
        return before
