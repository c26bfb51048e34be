"""What each agent program needs so that its person can select the model `chappie`.  Plans changes of files;
`write` carries them out and keeps what was there.  Starts no program."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chappie_bridge.wire.errors import BadArguments

HERE = Path(__file__).parent

PROGRAMS = ("pi", "codex", "opencode", "claude", "qwen")

HOUR_MS = 3_600_000
LONG_MS = 7_200_000
"""Hours that a program waits for its model: ChatGPT may be silent for long."""


START_SECONDS = 60
"""Seconds that a program gives the local server to start, on a machine however slow."""

Command = tuple[str, ...]


class Change(NamedTuple):
    """One file as it should be; `before` is None where there is none now."""

    path: Path
    text: str
    before: str | None

    @property
    def needed(self) -> bool:
        return self.text != self.before


class Plan(NamedTuple):
    """`start` says how the program is started then."""

    program: str
    changes: tuple[Change, ...]
    start: str


def plan(program: str, url: str, key: str, home: Path, local: Sequence[str]) -> Plan:
    """`url` of the endpoint without a path; `home` is the user's directory; `local` starts the server of the
    local tools.  Blocks.

    :raises BadArguments: another program, or a file that cannot be merged into."""
    make = _PLANS.get(program)
    if make is None:
        raise BadArguments(f"No configuration for {program!r}; there is one for {', '.join(PROGRAMS)}.")
    return make(url, key, home, tuple(local))


def write(changes: tuple[Change, ...]) -> list[Path]:
    """Carry out what is needed; returns the backups of what was there.  Blocks.  Raises `OSError`."""
    backups: list[Path] = []
    for change in changes:
        if not change.needed:
            continue
        target = change.path.resolve()  # a linked configuration stays a link
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = 0o600
        if change.before is not None:
            mode = target.stat().st_mode & 0o777
            backup = target.with_name(f"{target.name}.before-chappie-{int(time.time())}")
            backup.touch(mode=0o600)
            backup.write_text(change.before, encoding="utf-8")
            backups.append(backup)
        part = target.with_name(f".{target.name}.chappie.part")
        part.touch(mode=0o600)
        part.write_text(change.text, encoding="utf-8")
        part.chmod(mode & 0o700 | (mode & 0o077 if change.before is not None else 0))
        part.replace(target)
    return backups


# --- one program each ---------------------------------------------------------------------------


def _pi(url: str, key: str, home: Path, local: Command) -> Plan:
    agent = home / ".pi" / "agent"
    provider = {
        "baseUrl": f"{url}/v1",
        "api": "openai-completions",
        "apiKey": key,
        "headers": {"x-chappie-host": "pi"},
        "compat": {
            "sendSessionAffinityHeaders": True,
            "promptCacheKeyMode": "enabled",
            "supportsStore": False,
            "supportsDeveloperRole": False,
            "maxTokensField": "max_tokens",
        },
        "models": [
            {"id": "chappie", "input": ["text", "image"], "contextWindow": 400_000, "maxTokens": 64_000}
        ],
    }
    return Plan(
        "pi",
        (
            _merged(agent / "models.json", {"providers": {"chappie": provider}}),
            _merged(agent / "settings.json", {"httpIdleTimeoutMs": "disabled", "retry": {"maxRetries": 20}}),
            _merged(agent / "mcp.json", _servers(local, exposure="direct")),
            _own(agent / "extensions" / "chappie.ts", _extension("pi.ts", url, key)),
        ),
        "pi --model chappie/chappie",
    )


def _codex(url: str, key: str, home: Path, local: Command) -> Plan:
    base = home / ".codex"
    catalog = base / "chappie-models.json"
    text = f"""# Written by chappie-bridge; used by `codex --profile chappie` alone.
model = "chappie"
model_provider = "chappie"
model_catalog_json = {_toml(str(catalog))}
web_search = "disabled"

[features]
multi_agent = false
goals = false

[model_providers.chappie]
name = "ChatGPT via chappie-bridge"
base_url = {_toml(f"{url}/v1")}
wire_api = "responses"
experimental_bearer_token = {_toml(key)}
stream_idle_timeout_ms = {HOUR_MS}
stream_max_retries = 20
request_max_retries = 20
http_headers = {{ "x-chappie-host" = "codex" }}

[mcp_servers.chappie]
command = {_toml(local[0])}
args = {json.dumps(local[1:], ensure_ascii=False)}
startup_timeout_sec = {START_SECONDS}
tool_timeout_sec = {HOUR_MS // 1000}
"""
    changes = (_own(base / "chappie.config.toml", text), _own(catalog, _shipped("codex-catalog.json")))
    return Plan("codex", changes, "codex --profile chappie")


def _opencode(url: str, key: str, home: Path, local: Command) -> Plan:
    base = home / ".config" / "opencode"
    model = {
        "name": "ChatGPT via chappie-bridge",
        "attachment": True,
        "tool_call": True,
        "modalities": {"input": ["text", "image"], "output": ["text"]},
        "limit": {"context": 400_000, "output": 64_000},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "chappie-bridge",
        "options": {"baseURL": f"{url}/v1", "apiKey": key},
        "models": {"chappie": model},
    }
    server = {"type": "local", "command": [*local], "enabled": True, "timeout": START_SECONDS * 1000}
    changes = (
        _merged(base / "opencode.json", {"provider": {"chappie": provider}, "mcp": {"chappie": server}}),
        _own(base / "plugin" / "chappie.ts", _extension("opencode.ts", url, key)),
    )
    return Plan("opencode", changes, "opencode --model chappie/chappie")


def _claude(url: str, key: str, home: Path, local: Command) -> Plan:
    settings = {
        "env": {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": key,
            "ANTHROPIC_MODEL": "chappie",
            "ANTHROPIC_SMALL_FAST_MODEL": "chappie-small",
            "ANTHROPIC_CUSTOM_HEADERS": "x-chappie-host: claude",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "ENABLE_TOOL_SEARCH": "false",
            "API_TIMEOUT_MS": str(LONG_MS),
            "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(LONG_MS),
        }
    }
    path = home / ".claude" / "chappie.json"
    servers = home / ".claude" / "chappie-mcp.json"
    changes = (
        _own(path, json.dumps(settings, indent=2) + "\n"),
        _own(servers, json.dumps(_servers(local), indent=2) + "\n"),
    )
    start = f"claude --settings {path} --mcp-config {servers} --permission-mode default"
    return Plan("claude", changes, start)


def _qwen(url: str, key: str, home: Path, local: Command) -> Plan:
    path = home / ".qwen" / "chappie.env"
    text = f"OPENAI_API_KEY={key}\nOPENAI_BASE_URL={url}/v1\nOPENAI_MODEL=chappie\n"
    changes = (_own(path, text), _merged(home / ".qwen" / "settings.json", _servers(local)))
    return Plan("qwen", changes, f"env $(cat {path}) qwen --auth-type openai")


_PLANS: Mapping[str, Callable[[str, str, Path, Command], Plan]] = {
    "pi": _pi,
    "codex": _codex,
    "opencode": _opencode,
    "claude": _claude,
    "qwen": _qwen,
}


def _servers(local: Command, **more: str) -> dict[str, Any]:
    """In the form that most programs share."""
    return {"mcpServers": {"chappie": {"command": local[0], "args": [*local[1:]], **more}}}


# --- files --------------------------------------------------------------------------------------


def _own(path: Path, text: str) -> Change:
    """A file that is ours alone."""
    return Change(path, text, _before(path))


def _merged(path: Path, ours: Mapping[str, Any]) -> Change:
    """A JSON file with our keys in it and every other one as it was."""
    before = _before(path)
    try:
        there = json.loads(before) if before and before.strip() else {}
        if not isinstance(there, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise BadArguments(
            f"{path} cannot be merged into: {error}.",
            hint="Comments and trailing commas are not understood; add what is printed by hand.",
            data={"path": str(path), "add": dict(ours)},
        ) from None
    merged = _with(there, ours)
    return Change(path, before or "" if merged == there else json.dumps(merged, indent=2) + "\n", before)


def _with(there: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(there)
    for name, value in ours.items():
        old = merged.get(name)
        merged[name] = _with(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _before(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _shipped(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _extension(name: str, url: str, key: str) -> str:
    return _shipped(name).replace("__URL__", url).replace("__KEY__", key)


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
