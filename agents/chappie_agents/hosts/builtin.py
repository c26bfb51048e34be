"""Our own agent: finds or makes its session for a directory and puts its parts together.  Connects
nothing."""

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import platformdirs

from chappie_agents.answers import Surroundings
from chappie_agents.callers import CallerRule
from chappie_agents.outbox import Outbox
from chappie_agents.policy import Policy
from chappie_agents.screen import Blank, Screen
from chappie_agents.session import AgentSession
from chappie_agents.spool import Spool
from chappie_agents.tools import BUILTIN, Tool
from chappie_agents.transcript import Transcript
from chappie_bridge.codec.unicode import clean_text, display
from chappie_bridge.wire.ids import Mint, SessionId
from chappie_bridge.wire.values import SessionInfo, Skill

AGENT = "builtin"

INSTRUCTIONS = ("AGENTS.md", "CLAUDE.md")
"""A directory's own instruction file; the first that exists counts."""

MAX_SKILLS = 100
SKILL_BYTES = 64 * 1024
"""Bytes of a skill's file that are looked at for its name and description."""

_SESSION = re.compile(r"s_[0-9a-z]{16,64}")
_FIELD = re.compile(r"(name|description):[ \t]*(.*)")


@dataclass(frozen=True)
class Opened:
    """A session whose files this process holds; `close` lets go of them after the session's `run` ended."""

    session: AgentSession
    directory: Path
    """Where its files are."""
    resumed: bool
    notices: tuple[str, ...]
    """What the owner should know of how it was found."""
    lock: int

    def close(self) -> None:
        os.close(self.lock)


def open_session(
    directory: Path,
    state: Path,
    *,
    new: bool = False,
    resumed: SessionId | None = None,
    screen: Screen | None = None,
    device: str | None = None,
    name: str | None = None,
    policy: Policy | None = None,
    callers: Sequence[CallerRule] = (),
    tools: Sequence[Tool] = BUILTIN,
    environment: Mapping[str, str] = os.environ,
    configuration: Path | None = None,
    now: Callable[[], float] = time.time,
    mint: Mint | None = None,
) -> Opened:
    """The newest session of `directory` that no other process holds, or a new one; with `resumed` just that
    one.  Blocks.

    Nothing of the environment's CHAPPIE_ variables reaches the session or its tools: a stale id there
    never names it.  `device` and `name` are shown to people; `configuration` is the user's own directory.
    Raises `OSError`, `BridgeError`."""
    mint = mint or Mint()
    directory = Path(os.path.realpath(directory))
    if not directory.is_dir():
        raise NotADirectoryError(f"{directory} is not a directory")
    configuration = configuration or platformdirs.user_config_path("chappie-bridge")
    above = state / "agents" / slug(directory)
    above.mkdir(mode=0o700, parents=True, exist_ok=True)
    home, lock, old = _claim(above, new, mint) if resumed is None else _held(above, resumed)
    try:
        spool = Spool(home / "spool")
        transcript = Transcript(home, spool)
        identifier = SessionId(home.name)
        outbox = Outbox(home / "journal", transcript, identifier, now=now)
        policy = policy or Policy()
        readable = (*policy.readable, spool.directory, configuration / "skills")
        session = AgentSession(
            SessionInfo(
                id=identifier,
                agent=AGENT,
                device=display(device or platform.node() or "device", 64),
                cwd=clean_text(str(directory))[0],
                name=None if name is None else display(name, 64),
                pid=os.getpid(),
            ),
            directory=directory,
            transcript=transcript,
            outbox=outbox,
            spool=spool,
            transfers=home / "transfers",
            tools=tools,
            policy=replace(policy, readable=readable),
            environment=scrubbed(environment),
            surroundings=lambda: look_around(directory, configuration),
            screen=screen or Blank(),
            now=now,
            callers=callers,
            mint=mint,
        )
    except BaseException:
        os.close(lock)
        raise
    notices = []
    if transcript.torn:
        notices.append(
            f"The last record of the transcript was unfinished: {transcript.torn} bytes were cut off."
        )
    if outbox.interrupted:
        notices.append(f"{len(outbox.interrupted)} operations were interrupted when the agent last stopped.")
    return Opened(session, home, old, tuple(notices), lock)


def slug(directory: Path) -> str:
    """The name under which a directory's sessions are kept: readable, and its own."""
    mark = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", directory.name)[:40] + "-" + mark


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what belongs to the bridge."""
    return {name: value for name, value in environment.items() if not name.startswith("CHAPPIE_")}


def look_around(directory: Path, configuration: Path) -> Surroundings:
    """The instruction files and skills of a directory and of its user, the directory's first.

    The directory's own instructions come as the first skill, which says to read them.  Blocks."""
    skills: list[Skill] = []
    for name in INSTRUCTIONS:
        if (directory / name).is_file():
            about = "Instructions for work in this directory. Read this file before anything else."
            skills.append(Skill(name=name, description=about, path=_text(directory / name)))
            break
    for root in (directory / ".chappie" / "skills", configuration / "skills"):
        skills += _skills(root)
    everyone = configuration / "AGENTS.md"
    return Surroundings(tuple(skills[:MAX_SKILLS]), _text(everyone) if everyone.is_file() else None)


def _skills(root: Path) -> Iterator[Skill]:
    with contextlib.suppress(OSError):
        for path in sorted(root.glob("*/SKILL.md"))[:MAX_SKILLS]:
            fields = {"name": path.parent.name, "description": "", **_front_matter(path)}
            name, description = display(fields["name"], 64), display(fields["description"], 1000)
            yield Skill(name=name, description=description, path=_text(path))


def _front_matter(path: Path) -> dict[str, str]:
    """`name` and `description` between the two `---` lines; a value may go on in indented lines."""
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return {}
            lines = file.read(SKILL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    field = None
    if not lines or lines[0].strip() != "---":
        return {}
    for line in lines[1:]:
        if line.strip() == "---":
            break
        if match := _FIELD.fullmatch(line):
            field = match[1]
            found[field] = match[2].strip().lstrip("|>").removeprefix("-").strip()
        elif field is not None and line[:1].isspace():
            found[field] = f"{found[field]} {line.strip()}".strip()
        else:
            field = None
    return {key: _unquoted(value) for key, value in found.items() if value}


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _text(path: Path) -> str:
    return clean_text(str(path))[0]


def _claim(above: Path, new: bool, mint: Mint) -> tuple[Path, int, bool]:
    """A session's directory, its lock, and whether it is an old one."""
    if not new:
        for home in sorted(_homes(above), key=_written, reverse=True):
            lock = _lock(home)
            if lock is not None:
                return home, lock, True
    home = above / mint.session()
    home.mkdir(mode=0o700)
    lock = _lock(home)
    if lock is None:
        raise BlockingIOError(f"{home} is held by another process already")
    return home, lock, False


def _held(above: Path, session: SessionId) -> tuple[Path, int, bool]:
    home = above / session
    if home not in _homes(above):
        raise FileNotFoundError(f"{home} is no session")
    lock = _lock(home)
    if lock is None:
        raise BlockingIOError(f"{home} is held by another process")
    return home, lock, True


def _homes(above: Path) -> Iterator[Path]:
    for path in above.iterdir():
        if _SESSION.fullmatch(path.name) and path.is_dir():
            yield path


def _written(home: Path) -> float:
    try:
        return (home / "transcript.jsonl").stat().st_mtime
    except OSError:
        return 0.0


def _lock(home: Path) -> int | None:
    """Held until it is closed or the process ends, however it ends."""
    descriptor = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
