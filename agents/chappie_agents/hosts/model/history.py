"""History from the program's own transcript: finds it, follows it, tells the session what stands there."""

import logging
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio import to_thread

from chappie_agents.hosts.model.habits import Plain, Waker
from chappie_agents.hosts.model.native import claude, codex, opencode, pi, qwen
from chappie_agents.hosts.model.native.lines import STOPPED, Line
from chappie_agents.hosts.model.native.mirror import LOOK_EVERY, Mirror, Replaced, open_mirror
from chappie_agents.hosts.model.session import ProgramSession
from chappie_bridge.codec.loose import Record
from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.ids import CallId
from chappie_bridge.wire.values import Entry, SessionInfo, ToolResult

log = logging.getLogger("chappie.model")

FIND_EVERY = 1.0
"""Seconds between two looks for a transcript that is not there yet: programs begin it with an answer."""

_CHATS = 5
"""Newest chats of a directory that are looked into for our call ids."""

_LOOK_INTO = 4 * 1024 * 1024
"""Bytes at the end of such a chat."""


class Kind(NamedTuple):
    """How one program keeps its transcript."""

    find: Callable[[Path, str], Path | None]
    read: Callable[[Record], Line | None]


KINDS = {
    "pi": Kind(pi.find, pi.read),
    "codex": Kind(codex.find, codex.read),
    "claude": Kind(claude.find, claude.read),
}


class Recorded(Plain):
    """Implements `session.Habits` for a program whose transcript can be read."""

    def __init__(
        self, info: SessionInfo, program: str, wake: Waker | None, *, home: Path | None = None
    ) -> None:
        super().__init__(program, wake, home=home)
        # A sub-agent of Codex has a thread, and of OpenCode a session, of its own.
        self._session = info.id.rpartition("/")[2] if program in ("codex", "opencode") else info.id
        self._mirror: Mirror | None = None

    async def follow(self, session: ProgramSession) -> None:
        """Beside the session, until cancelled."""
        if self._program not in KINDS and self._program not in ("opencode", "qwen"):
            return
        anew = False
        while True:
            place = session.directory / "native"
            mirror = await to_thread.run_sync(partial(open_mirror, place, session.spool, anew=anew))
            self._mirror = mirror
            try:
                session.show(mirror.transcript)
                if self._program == "opencode":
                    await self._follow_rows(session, mirror)
                else:
                    await self._follow_lines(session, mirror)
            except Replaced:
                anew = True
            finally:
                self._mirror = None
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(mirror.close)

    async def evidence(self) -> str:
        return self._mirror.evidence() if self._mirror is not None else ""

    async def recorded(self, calls: Sequence[CallId]) -> dict[CallId, ToolResult]:
        if self._mirror is None:
            return {}
        return await to_thread.run_sync(self._mirror.recorded, calls)

    # -- files of lines --------------------------------------------------------------------------

    async def _follow_lines(self, session: ProgramSession, mirror: Mirror) -> None:
        kind = KINDS.get(self._program)
        read = kind.read if kind is not None else qwen.read
        if session.info.parent is not None and self._program == "claude":
            read = claude.read_below
        # A program tells nobody when it begins its file.
        while (path := await to_thread.run_sync(self._find, session)) is None:  # noqa: ASYNC110
            await anyio.sleep(FIND_EVERY)
        log.info("session %s is recorded in %s", session.info.id, path)

        def told(line: Line) -> None:
            session.stirred()
            if line.stopped:
                self._stopped(session, mirror)

        await mirror.follow(path, read, told)

    def _find(self, session: ProgramSession) -> Path | None:
        kind = KINDS.get(self._program)
        if kind is not None:
            return kind.find(self._home, self._session)
        calls = session.minted
        if not calls:
            return None
        chats = sorted((self._home / ".qwen/projects").glob("*/chats/*.jsonl"), key=_written, reverse=True)
        return next((path for path in chats[:_CHATS] if _mentions(path, calls)), None)

    # -- OpenCode --------------------------------------------------------------------------------

    async def _follow_rows(self, session: ProgramSession, mirror: Mirror) -> None:
        path = opencode.database(self._home)
        upto = await to_thread.run_sync(mirror.upto, path)
        known: dict[str, Entry] = {}
        while True:
            try:
                changes = await to_thread.run_sync(opencode.changes, path, self._session, upto)
            except sqlite3.Error as error:
                log.debug("OpenCode's database cannot be read now: %s", error)
                await anyio.sleep(FIND_EVERY)
                continue
            fresh = [entry for entry in changes.entries if known.get(entry.id) != entry]
            for entry in fresh:
                known[entry.id] = entry
                mirror.put(await to_thread.run_sync(mirror.fitting, entry))
                session.stirred()
                if entry.kind == "notice" and entry.content == (Text(text=STOPPED),):
                    self._stopped(session, mirror)
            if upto != changes.upto:
                upto = changes.upto
                await to_thread.run_sync(mirror.taken_in, path, upto)
            while len(known) > opencode.PAGE:
                del known[next(iter(known))]
            if fresh:
                await mirror.transcript.keep(idle=True)
            await anyio.sleep(LOOK_EVERY)

    def _stopped(self, session: ProgramSession, mirror: Mirror) -> None:
        """The person stopped a turn: that of the calls that it has, if they stand there."""
        calls = session.calls
        if mirror.shows(calls):
            session.stopped(mirror.recorded(calls))


def habits_for(wake: Waker | None, home: Path | None = None) -> Callable[[SessionInfo, str], Plain]:
    return partial(_habits, wake, home)


def _habits(wake: Waker | None, home: Path | None, info: SessionInfo, program: str) -> Plain:
    return Recorded(info, program, wake, home=home)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _mentions(path: Path, calls: Sequence[CallId]) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOOK_INTO))
            text = file.read(_LOOK_INTO)
    except OSError:
        return False
    return any(call.encode() in text for call in calls)
