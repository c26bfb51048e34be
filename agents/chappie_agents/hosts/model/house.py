"""Which session a request of a program belongs to: opens sessions, finds them again after a restart, and ends
them when their program is gone.  Reads no request's words: two greetings are two sessions.
"""

import fcntl
import json
import logging
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio import to_thread
from anyio.abc import TaskStatus

from chappie_agents.attendant import AgentHost
from chappie_agents.hosts.model.journal import Home, Memory, open_journal
from chappie_agents.hosts.model.knowledge import Habits, Settings
from chappie_agents.hosts.model.session import ProgramSession
from chappie_agents.hosts.model.turns import HOLD_LEASE, Phase
from chappie_agents.spool import Spool
from chappie_agents.transcript import Transcript
from chappie_bridge.codec.turn import Turn
from chappie_bridge.codec.unicode import clean_text, display
from chappie_bridge.wire.errors import DiskFull, Overloaded
from chappie_bridge.wire.ids import CallId, Mint, SessionId
from chappie_bridge.wire.values import SessionInfo

log = logging.getLogger("chappie.model")

MAX_SESSIONS = 1_000
"""Sessions of programs at the same time."""

MAX_JOINS = 10_000
"""Call ids by which sessions without an id of their own are known again."""

LOOK_EVERY = 15.0
"""Seconds between two looks at who is gone."""

FORGET_AFTER = 14 * 24 * 3600.0
"""Seconds after which what is kept of an ended session is deleted."""

_STILL_OURS = 24 * 3600.0


class Whose(NamedTuple):
    """A session as a request names it."""

    id: SessionId
    parent: SessionId | None
    named: bool
    """By the program itself."""


class House:
    """All sessions of one endpoint; one process holds `directory`."""

    def __init__(
        self,
        host: AgentHost,
        directory: Path,
        *,
        device: str,
        settings: Settings,
        habits: Callable[[SessionInfo, str], Habits],
        now: Callable[[], float],
        mint: Mint,
        lease: float = HOLD_LEASE,
    ) -> None:
        """`habits` makes what a session knows of its program.  `now`: seconds since the epoch."""
        self.sessions: dict[SessionId, ProgramSession] = {}
        self.settings, self.directory = settings, directory
        self.make_habits = habits
        self._host, self._device = host, device
        self._now, self._mint, self._lease = now, mint, lease
        self._joins: OrderedDict[CallId, SessionId] = OrderedDict()
        self._nameless: set[SessionId] = set()
        self._opening = anyio.Lock()

    @contextmanager
    def held(self) -> Generator[None]:
        """Nobody else uses the directory.  Raises `BlockingIOError`, `OSError`."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(self.directory / "lock", flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(lock)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Takes up what the last process left, then ends what is gone; until cancelled."""
        for home, memory in await to_thread.run_sync(self._left):
            await self._open(home, memory)
        task_status.started()
        while True:
            await anyio.sleep(LOOK_EVERY)
            self.look()

    def look(self) -> None:
        """End the sessions whose program was not heard of for a lease."""
        for session in tuple(self.sessions.values()):
            if not session.busy and self._now() - session.seen >= self._lease:
                self.end(session)

    def heard(self, session: ProgramSession) -> None:
        """Its program is there, though it asks nothing."""
        session.seen = self._now()

    def end(self, session: ProgramSession) -> None:
        """The program is gone, or has selected another model."""
        session.leave()
        if session.phase is not Phase.GONE:
            return
        del self.sessions[session.info.id]
        if session.info.parent is not None and (parent := self.sessions.get(session.info.parent)) is not None:
            parent.subagent(session.info, waits=False)
        self._host.end(session.info.id)

    async def session(self, turn: Turn) -> ProgramSession:
        """The session that a request belongs to, opened if need be.

        :raises Overloaded: too many.  DiskFull: it cannot be kept."""
        whose = self.whose(turn)
        async with self._opening:
            found = self.sessions.get(whose.id)
            if found is not None:
                return found
            if len(self.sessions) >= MAX_SESSIONS:
                raise Overloaded("Too many sessions of agent programs.")
            home = Home.of(self.directory, turn.program, whose.id)
            memory = await to_thread.run_sync(home.read)
            info = SessionInfo(
                id=whose.id,
                agent=turn.program,
                device=display(self._device, 64),
                cwd=clean_text(turn.cwd or "")[0],
                model=turn.model or None,
                name=memory.info.name if memory else None,
                parent=whose.parent,
            )
            fresh = Memory(info, turn.program, self._now(), None, {})
            kept = memory._replace(info=info, seen=self._now(), ended=False) if memory else fresh
            if not whose.named:
                self._nameless.add(whose.id)
            return await self._open(home, kept)

    def whose(self, turn: Turn) -> Whose:
        """By the program's own id, else by our call ids in its history, else it is a new session."""
        named = turn.session.id
        if named is not None and turn.agent is not None:
            above = f"{named}/{turn.agent.parent}" if turn.agent.parent else named
            own = turn.session_id or SessionId(f"{named}/{turn.agent.kind}")
            return Whose(own, SessionId(above), named=True)
        if named is not None:
            return Whose(named, None, named=True)
        for call in turn.session.calls:
            if (joined := self._joins.get(call)) is not None:
                return Whose(joined, None, named=False)
        return Whose(self._mint.session(), None, named=False)

    def known(self, turn: Turn) -> ProgramSession | None:
        """The session of a request, if it is open."""
        return self.sessions.get(self.whose(turn).id)

    def _moved(self, session: ProgramSession) -> None:
        info = session.info
        if info.parent is not None and (parent := self.sessions.get(info.parent)) is not None:
            parent.subagent(info, waits=session.waits)
        if info.id in self._nameless and session.phase is Phase.ANSWERED:
            self._join(info.id, session.calls)

    def _join(self, session: SessionId, calls: tuple[CallId, ...]) -> None:
        new = [call for call in calls if call not in self._joins]
        if not new:
            return
        self._joins.update(dict.fromkeys(new, session))
        while len(self._joins) > MAX_JOINS:
            self._joins.popitem(last=False)
        try:
            with (self.directory / "joins.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps([session, new]) + "\n")
        except OSError as error:
            log.error("the session %s cannot be joined after a restart: %s", session, error)

    async def _open(self, home: Home, memory: Memory) -> ProgramSession:
        habits = self.make_habits(memory.info, memory.program)

        def make() -> ProgramSession:
            home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            spool = Spool(home.path / "spool")
            transcript = Transcript(home.path, spool)
            return ProgramSession(
                home,
                memory,
                transcript=transcript,
                journal=open_journal(home, transcript, memory.info.id, self._now),
                spool=spool,
                habits=habits,
                settings=self.settings,
                moved=self._moved,
                now=self._now,
                mint=self._mint,
            )

        try:
            session = await to_thread.run_sync(make)
        except OSError as error:
            raise DiskFull(f"The session cannot be kept: {error.strerror}.") from error
        self.sessions[memory.info.id] = session
        await self._host.add(session)
        return session

    def _left(self) -> list[tuple[Home, Memory]]:
        """Sessions of the last process that may still be there.  Blocks."""
        self._read_joins()
        found: list[tuple[Home, Memory]] = []
        for path in self.directory.iterdir():
            home = Home(path)
            memory = home.read() if path.is_dir() else None
            if memory is None:
                continue
            age = self._now() - memory.seen
            if not memory.ended and (age < self._lease or (memory.given is not None and age < _STILL_OURS)):
                found.append((home, memory))
            elif age > FORGET_AFTER:
                shutil.rmtree(path, ignore_errors=True)
        return found[:MAX_SESSIONS]

    def _read_joins(self) -> None:
        file = self.directory / "joins.jsonl"
        with suppress(FileNotFoundError), file.open(encoding="utf-8") as lines:
            for line in lines:
                with suppress(ValueError, TypeError):
                    session, calls = json.loads(line)
                    self._joins.update((CallId(call), SessionId(session)) for call in calls)
        while len(self._joins) > MAX_JOINS:
            self._joins.popitem(last=False)
        self._nameless.update(self._joins.values())
        kept: dict[SessionId, list[CallId]] = {}
        for call, session in self._joins.items():
            kept.setdefault(session, []).append(call)
        part = file.with_suffix(".part")
        part.touch(mode=0o600)
        part.write_text("".join(json.dumps([s, c]) + "\n" for s, c in kept.items()), encoding="utf-8")
        part.replace(file)
