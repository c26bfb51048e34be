"""Starts sessions for directories that the owner allowed, and remembers which were open.  Knows no link."""

import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path

from anyio import to_thread

from chappie_agents.hosts.builtin import AGENT, Opened
from chappie_agents.kept import Records
from chappie_agents.policy import absolute, inside
from chappie_agents.session import AgentSession
from chappie_bridge.wire.errors import BadArguments, Denied, DiskFull, Overloaded, PathMissing
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.messages import Residence

log = logging.getLogger("chappie.agent")

MAX_SESSIONS = 64
"""Sessions that one process starts."""

_OPEN = "open"
"""The one record: which sessions were open."""


class Residency:
    """`open_one(directory, session)` opens a new session, or the one of that id; it blocks.

    One per `directory`, where it keeps its record; with `fresh` what was open before is forgotten.

    :raises BlockingIOError: another process has it.
    """

    def __init__(
        self,
        roots: tuple[str, ...],
        directory: Path,
        open_one: Callable[[Path, SessionId | None], Opened],
        *,
        fresh: bool = False,
    ) -> None:
        self._records = Records(directory)
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise
        if fresh:
            self._records.remove(_OPEN)
        self._open_one = open_one
        self._roots = tuple(absolute(root, Path("/")) for root in roots)
        self._opened: dict[SessionId, Opened] = {}
        self._starting = 0

    @property
    def residence(self) -> Residence:
        """What the broker is told."""
        return Residence(agent=AGENT, roots=tuple(str(root) for root in self._roots), home=str(Path.home()))

    @property
    def sessions(self) -> tuple[AgentSession, ...]:
        return tuple(opened.session for opened in self._opened.values())

    def resume(self) -> tuple[AgentSession, ...]:
        """The sessions that were open when the last process ended, however it ended.  Blocks.

        One that is held elsewhere now, or whose directory is gone or no longer allowed, is left out."""
        kept = (self._records.get(_OPEN) or {}).get("sessions")
        for each in kept if isinstance(kept, list) else ():
            try:
                directory, session = self._allowed(each["directory"]), SessionId(each["session"])
                self._opened[session] = self._open_one(directory, session)
            except Exception as error:
                log.warning("a session that was open is not resumed: %s", error)
        self._keep()
        return self.sessions

    async def start(self, directory: str) -> AgentSession:
        """A new session in `directory`.

        :raises Denied: it lies in no root.  :raises PathMissing: it is no directory.
        :raises Overloaded: there are `MAX_SESSIONS`.
        """
        if len(self._opened) + self._starting >= MAX_SESSIONS:
            raise Overloaded(
                f"This device runs {MAX_SESSIONS} started sessions, which is all it takes.",
                hint="Choose one of them with `sessions`, or start its agent anew with `--new`.",
            )
        self._starting += 1
        try:
            opened = await to_thread.run_sync(self._started, directory)
        except OSError as error:
            raise DiskFull(f"The session's files could not be made: {error.strerror}.") from error
        finally:
            self._starting -= 1
        self._opened[opened.session.info.id] = opened
        self._keep()
        return opened.session

    def close(self) -> None:
        """Let go of all files, after the sessions ended.  What was open is still remembered."""
        for opened in self._opened.values():
            opened.close()
        os.close(self._lock)

    def _started(self, directory: str) -> Opened:
        return self._open_one(self._allowed(directory), None)

    def _allowed(self, directory: str) -> Path:
        if not directory.startswith(("/", "~/")) and directory != "~":
            raise BadArguments("A directory to start in is absolute, or begins with `~/`.")
        path = absolute(directory, Path("/"))
        if not any(inside(root, path) for root in self._roots):
            roots = ", ".join(str(root) for root in self._roots) or "none"
            raise Denied(f"Agents may not be started in {directory}: its owner allowed {roots}.")
        if not path.is_dir():
            raise PathMissing(f"There is no directory {directory}; it is not made.")
        return path

    def _keep(self) -> None:
        sessions = [
            {"directory": opened.session.info.cwd, "session": identifier}
            for identifier, opened in self._opened.items()
        ]
        try:
            self._records.put(_OPEN, {"sessions": sessions})
        except OSError as error:  # they run all the same
            log.warning("which sessions are open could not be noted: %s", error)
