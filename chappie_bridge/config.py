"""What the owner may set, and where each value came from.  Starts nothing.

Defaults < `config.toml` in the user's config directory, or the file named by `--config` < `CHAPPIE_*`
environment < flags.  A `config.toml` that merely lies in the current directory is never read: an
untrusted repository must not configure the bridge.
"""

import difflib
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import platformdirs
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from chappie_bridge.faces.flow.settings import FlowSettings

APP = "chappie-bridge"
PREFIX = "CHAPPIE_"

NOT_SETTINGS = frozenset({"CHAPPIE_REQUIRE", "CHAPPIE_TOKEN", "CHAPPIE_SESSION"})
"""Names in the environment that are ours and no settings: what the tests must not skip; an agent's secret;
for which session `local` works."""

ALSO = {"localTools": "local_tools"}
"""Names that configurations written elsewhere have for our keys."""


FLAGS = {"listen": "--link", "model_port": "--port"}
"""Settings whose flag has another name."""


class SettingsError(Exception):
    """A setting is wrong; the text names it, its source and what would be right."""


class Address(NamedTuple):
    """Where to listen.  Port 0: any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """`HOST:PORT`, IPv6 in brackets.  :raises ValueError: when it is not that."""
        match = re.fullmatch(r"(?:\[([0-9a-fA-F:.%]+)\]|([^\[\]:\s]+)):(\d{1,5})", text)
        if match is None or int(match[3]) > 65535:
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(match[1] or match[2], int(match[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(text: str) -> str:
    return str(Address.parse(text)) if text else ""


def _public_url(text: str) -> str:
    if text and not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", text):
        raise ValueError("an http(s) URL without user, query or fragment")
    return text.rstrip("/")


def _link_url(text: str) -> str:
    if text and not re.fullmatch(r"wss?://[^\s/?#@]+(/[^\s?#]*)?", text):
        raise ValueError("a ws(s) URL without user, query or fragment")
    return text


class Rule(BaseModel):
    """One line of the agent's policy: `tool` is a name or `*`, `root` limits it to a directory tree."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: str
    decision: Literal["allow", "ask", "deny"]
    root: str = ""


class CallerRule(BaseModel):
    """Which other sessions may do something at this agent: a session's id, `device:ID`, or `*`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    caller: str
    decision: Literal["allow", "ask", "deny"]


HostPort = Annotated[str, AfterValidator(_address)]


class Settings(BaseModel):
    """Every key of `config.toml`.  Times in seconds, sizes in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: str = ""
    http: HostPort = "127.0.0.1:24273"
    listen: HostPort = "127.0.0.1:24274"
    link_url: Annotated[str, AfterValidator(_link_url)] = ""
    certificate: str = ""
    certificate_key: str = ""
    connect: str = ""
    public_url: Annotated[str, AfterValidator(_public_url)] = ""
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    auth: Literal["secret", "none"] = "secret"
    wait: float = Field(40, gt=0, le=50)
    session_wait: float = Field(30, ge=0, le=50)
    offline_grace: float = Field(5, ge=0, le=50)
    stale_after: float = Field(14 * 86400, gt=0)
    cooldown: float = Field(20, ge=0, le=3600)
    trim_tokens: int = Field(10_000, ge=1_000)
    queue_session: int = Field(32, ge=1, le=10_000)
    queue_conversation: int = Field(8, ge=1, le=10_000)
    queue_seconds: float = Field(600, gt=0)
    keep_results: float = Field(86400, ge=60)
    keep_deliveries: float = Field(30 * 86400, ge=60)
    waiting_bytes: int = Field(128 * 1024**2, ge=1024**2)
    keep_questions: float = Field(90 * 86400, ge=60)
    registry_bytes: int = Field(1024**3, ge=16 * 1024**2)
    keep_audit: float = Field(90 * 86400, ge=60)
    audit_lines: int = Field(200_000, ge=1_000, le=10_000_000)
    roots: tuple[str, ...] = ()
    agent_roots: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    download_max: int = Field(2 * 1024**3, ge=1024)
    download_seconds: float = Field(3600, gt=0)
    download_hosts: tuple[str, ...] = ()
    model_port: int = Field(24275, ge=0, le=65535)
    keep_alive: float = Field(10, ge=1, le=120)
    hold_grace: float = Field(20, ge=0, le=600)
    titles: Literal["local", "chatgpt"] = "local"
    subagents: Literal["hide", "drive"] = "hide"
    summary_wait: float = Field(120, ge=1, le=3600)
    no_word: float = Field(60, ge=1, le=3600)
    hold_lease: float = Field(600, ge=60)
    local_tools: bool = False
    callers: tuple[CallerRule, ...] = ()
    body_max: int = Field(4 * 1024 * 1024, ge=64 * 1024, le=256 * 1024 * 1024)
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    flow: FlowSettings = FlowSettings()

    @property
    def state_directory(self) -> Path:
        return Path(self.state).expanduser().absolute() if self.state else platformdirs.user_data_path(APP)


class Loaded(NamedTuple):
    """`source` of each key: `default`, a file's path, a variable's name, or a flag."""

    settings: Settings
    source: dict[str, str]
    file: Path | None


def default_file() -> Path:
    return platformdirs.user_config_path(APP) / "config.toml"


def load(flags: Mapping[str, object] | None = None, file: Path | None = None) -> Loaded:
    """`flags` maps keys to values given on the command line (None: not given); `file` replaces the
    user's own.  :raises SettingsError: names the key and its source."""
    path = file or default_file()
    from_file = _read(path, required=file is not None)
    from_environment = _environment()
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    values: dict[str, Any] = {}
    source = dict.fromkeys(Settings.model_fields, "default")
    for key, value in from_file.items():
        values[key], source[key] = value, str(path)
    for key, value in from_environment.items():
        values[key], source[key] = value, PREFIX + key.upper()
    for key, value in given.items():
        values[key], source[key] = value, FLAGS.get(key, "--" + key.replace("_", "-"))
    try:
        settings = Settings(**values)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = str(fault["loc"][0])
        json_hint = (
            "; lists are JSON" if source[key].startswith(PREFIX) and fault["type"] == "tuple_type" else ""
        )
        raise SettingsError(f"{key} (from {source[key]}): {fault['msg']}{json_hint}") from None
    return Loaded(settings, source, path if from_file or path.exists() else None)


def _read(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            mode = os.fstat(stream.fileno())
            values = tomllib.load(stream)
    except FileNotFoundError:
        if required:
            raise SettingsError(f"{path}: there is no such file") from None
        return {}
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from None
    if mode.st_mode & stat.S_IWOTH or mode.st_uid not in (0, os.geteuid()):
        raise SettingsError(f"{path}: somebody else may write it; `chmod o-w` it and own it")
    for name, key in ALSO.items():
        if name in values:
            if key in values:
                raise SettingsError(f"{path}: {name!r} and {key!r} are the same setting")
            values[key] = values.pop(name)
    _known(values, str(path))
    return values


def _environment() -> dict[str, Any]:
    values = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in os.environ.items()
        if name.startswith(PREFIX) and name not in NOT_SETTINGS and value
    }
    _known(values, "the environment")
    return {key: _decoded(key, value) for key, value in values.items()}


def _decoded(key: str, text: str) -> Any:
    """A list or a number is JSON; a word is itself."""
    if isinstance(Settings.model_fields[key].default, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text  # the model then says what it wants


def _known(keys: Iterable[str], where: str) -> None:
    for key in keys:
        if key not in Settings.model_fields:
            near = difflib.get_close_matches(key, Settings.model_fields, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SettingsError(f"unknown setting {key!r} in {where}{hint}")
