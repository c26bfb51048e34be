"""Who is online and who is bound: memory, filled from the store.  Decides, never waits, never writes."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath, PureWindowsPath

import anyio
from pydantic import JsonValue

from chappie_bridge.wire.errors import (
    NoFreeSession,
    NoSession,
    OpenElsewhere,
    SessionConflict,
    UnknownSession,
)
from chappie_bridge.wire.ids import ConversationId, DeviceId, InputId, OperationId, SessionId
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.requests import ListSessions
from chappie_bridge.wire.session import SESSION, Presence
from chappie_bridge.wire.values import (
    ApprovalAsked,
    Input,
    ModelRequest,
    Moving,
    SessionHead,
    SessionInfo,
    SessionRow,
    Standing,
)

from .clock import iso
from .operations import Operation
from .queue import FairQueue


@dataclass(slots=True, eq=False)
class Session:
    """One session as the broker knows it.  `owner` never changes."""

    info: SessionInfo
    owner: DeviceId
    first_seen: float
    last_seen: float
    queue: FairQueue[Operation]
    presence: Presence = Presence.GREETING
    link: Link | None = None
    running: Operation | None = None
    doubtful: dict[OperationId, Operation] = field(default_factory=dict)
    """Under way in an earlier life of the broker; `running` is one of them until the agent has spoken."""
    bound: set[ConversationId] = field(default_factory=set)
    executor: str | None = None
    """Origin id of who last ran `call` or `chat` here; local input goes there."""
    unclaimed: dict[InputId, Input] = field(default_factory=dict)
    """Local input before there is an executor."""
    definitions: str | None = None
    """SHA-256 of its tools as they were last told."""
    requests: dict[str, ModelRequest] = field(default_factory=dict)
    approvals: tuple[ApprovalAsked, ...] = ()
    """What waits for its owner's yes or no, as its agent told last."""
    seq: int = 0
    _readers: set[anyio.Event] = field(default_factory=set)

    @property
    def online(self) -> bool:
        return self.presence is Presence.ONLINE

    @property
    def head(self) -> SessionHead:
        return SessionHead(session=self.info.id, device=self.info.device, cwd=self.info.cwd)

    def advance(self, event: str) -> None:
        self.presence = SESSION.next(self.presence, event)

    def call_attention(self) -> None:
        """Something other than an entry needs a reader: an approval, a model request."""
        for event in self._readers:
            event.set()

    @contextmanager
    def attention(self) -> Generator[anyio.Event]:
        """Set when it is called."""
        event = anyio.Event()
        self._readers.add(event)
        try:
            yield event
        finally:
            self._readers.remove(event)


class Directory:
    """Sessions in the order in which they were last registered; bindings by conversation."""

    def __init__(
        self, make_queue: Callable[[], FairQueue[Operation]], stale_after: float, now: Callable[[], float]
    ) -> None:
        self._make_queue, self._now = make_queue, now
        self._stale_after = stale_after
        self.sessions: dict[SessionId, Session] = {}
        self._bindings: dict[ConversationId, SessionId] = {}
        self._heard: dict[ConversationId, float] = {}
        self._online: dict[SessionId, Session] = {}
        self._by_link: dict[Link, dict[SessionId, Session]] = {}
        self.moving: Callable[[SessionId], tuple[Moving, ...]] = lambda _: ()
        """What is transferred from or to a session now."""
        self._promised: dict[SessionId, float] = {}

    # -- sessions --------------------------------------------------------------------------------

    def restore(self, info: SessionInfo, owner: DeviceId, first_seen: float, last_seen: float) -> None:
        """A session from the store, at start."""
        self.sessions[info.id] = Session(info, owner, first_seen, last_seen, self._make_queue())

    def register(self, info: SessionInfo, owner: DeviceId, link: Link, now: float) -> Session:
        """:raises SessionConflict: when the id belongs to another device, or to a live link of this one."""
        session = self.sessions.get(info.id)
        if session is None:
            session = Session(info, owner, now, now, self._make_queue())
            self.sessions[info.id] = session
        elif session.owner != owner:
            raise SessionConflict
        elif session.link is not None and session.link is not link and session.link.up:
            raise OpenElsewhere
        self._attach(session, link)
        session.info, session.last_seen = info, now
        return session

    def _attach(self, session: Session, link: Link | None) -> None:
        if session.link is not None:
            others = self._by_link[session.link]
            del others[session.info.id]
            if not others:
                del self._by_link[session.link]
        session.link = link
        session.approvals = ()  # told again once this registration is answered
        if link is not None:
            self._by_link.setdefault(link, {})[session.info.id] = session

    def admit(self, session: Session) -> None:
        """Its registration is committed: from now on it may be chosen."""
        session.advance("registered")
        if session.link is None or not session.link.up:
            session.advance("link_lost")
        self._online.pop(session.info.id, None)
        self._online[session.info.id] = session

    def of_link(self, link: Link) -> list[Session]:
        """Every session for which this link speaks."""
        return list(self._by_link.get(link, {}).values())

    def end(self, session: Session, now: float) -> None:
        """It said goodbye or its lease ran out: known, but offline."""
        self._attach(session, None)
        session.last_seen = now
        self._online.pop(session.info.id, None)

    def get(self, session: SessionId) -> Session:
        """:raises UnknownSession:"""
        try:
            return self.sessions[session]
        except KeyError:
            raise UnknownSession(f"No session has the id {session!r}.", hint="Call `sessions`.") from None

    @property
    def online(self) -> Iterator[Session]:
        return (session for session in self._online.values() if session.online)

    # -- bindings --------------------------------------------------------------------------------

    def bound(self, conversation: ConversationId | None) -> SessionId | None:
        return None if conversation is None else self._bindings.get(conversation)

    def hear(self, conversation: ConversationId, now: float) -> None:
        """The conversation sent a request: its binding is alive."""
        self._heard[conversation] = now

    def heard(self, conversation: ConversationId) -> float:
        return self._heard.get(conversation, 0.0)

    def bind(self, conversation: ConversationId, session: SessionId) -> SessionId | None:
        """Make `session` the default; the one before, if any."""
        before = self._bindings.get(conversation)
        if before is not None and before in self.sessions:
            self.sessions[before].bound.discard(conversation)
        self._bindings[conversation] = session
        if session in self.sessions:
            self.sessions[session].bound.add(conversation)
        return before

    def unbind(self, conversation: ConversationId, session: SessionId) -> None:
        """Undo a binding that was not saved."""
        if self._bindings.get(conversation) == session:
            del self._bindings[conversation]
            self.sessions[session].bound.discard(conversation)

    @property
    def binding_count(self) -> int:
        return len(self._bindings)

    def free(self, now: float, agent: str | None, directory: str | None) -> Session | None:
        """The online session of nobody that was first seen earliest; sub-agents are never chosen."""
        best: Session | None = None
        for session in self.online:
            if session.info.parent is not None or self._taken(session, now):
                continue
            if self._promised.get(session.info.id, 0.0) > now or not self.fits(session, agent, directory):
                continue
            if best is None or session.first_seen < best.first_seen:
                best = session
        return best

    def fits(self, session: Session, agent: str | None, directory: str | None) -> bool:
        """Is it what `init` asks for?"""
        if agent is not None and agent.lower() not in session.info.agent.lower():
            return False
        return directory is None or within(session.info.cwd, directory)

    def forget_unbound(self, before: float, limit: int) -> None:
        """Conversations without a default that were last heard of earlier than `before`."""
        old = [c for c, at in self._heard.items() if at < before and c not in self._bindings][:limit]
        for conversation in old:
            del self._heard[conversation]

    def _taken(self, session: Session, now: float) -> bool:
        alive = now - self._stale_after
        return any(self._heard.get(conversation, 0.0) >= alive for conversation in session.bound)

    def promise(self, session: SessionId, until: float) -> None:
        """It was started for somebody: nobody else is given it before `until` (wall clock)."""
        now = self._now()
        self._promised = {each: end for each, end in self._promised.items() if end > now}
        self._promised[session] = until

    def redeem(self, session: SessionId) -> None:
        """Whom it was promised to has it, or wants it no more."""
        self._promised.pop(session, None)

    def none_free(self) -> NoFreeSession | NoSession:
        """The error that says why `free` found nothing."""
        online = list(self.online)
        if not online:
            return NoSession()
        infos = [session.info for session in online[:20]]
        shown: list[JsonValue] = [
            {"id": info.id, "agent": info.agent, "device": info.device, "cwd": info.cwd} for info in infos
        ]
        return NoFreeSession(
            hint="Call `init` with one of these `sessionId`s to share it, or start another agent.",
            data={"sessions": shown},
        )

    # -- listing ---------------------------------------------------------------------------------

    def row(self, session: Session) -> SessionRow:
        info = session.info
        status: Standing = "adrift" if session.presence is Presence.ADRIFT else "offline"
        if session.online:
            working = session.running is not None and info.activity in ("ready", "idle")
            status = "executing" if working else info.activity
        return SessionRow(
            id=info.id,
            agent=info.agent,
            device=info.device,
            cwd=info.cwd,
            status=status,
            binding_count=len(session.bound),
            last_seen=iso(self._now() if session.online else session.last_seen),
            model=info.model,
            name=info.name,
            parent=info.parent,
            pid=info.pid,
            running=None if session.running is None else session.running.id,
            transfers=self.moving(info.id),
        )

    def find(self, query: ListSessions) -> tuple[list[Session], bool]:
        """Online ones first, newest registration first within each; and whether there are more.

        :raises UnknownSession: when `after` names none.
        """
        found: list[Session] = []
        skipping = query.after is not None
        if query.after is not None:
            self.get(query.after)
        for session in self._in_order():
            if skipping:
                skipping = session.info.id != query.after
                continue
            if self._matches(session, query):
                if len(found) == query.limit:
                    return found, True
                found.append(session)
        return found, False

    def _in_order(self) -> Iterator[Session]:
        yield from reversed(self._online.values())
        for session in reversed(self.sessions.values()):
            if session.info.id not in self._online:
                yield session

    def _matches(self, session: Session, query: ListSessions) -> bool:
        info = session.info
        wanted = (
            (query.session, info.id),
            (query.agent, info.agent),
            (query.device, info.device),
            (query.name, info.name),
        )
        for part, text in wanted:
            if part is not None and part.lower() not in (text or "").lower():
                return False
        if query.online is not None and query.online != session.online:
            return False
        return query.directory is None or within(info.cwd, query.directory)


def within(cwd: str, directory: str) -> bool:
    """Is `directory` a run of whole path components of `cwd`?  An absolute one must be a leading run.

    Windows paths (a drive or a share) compare without case.
    """
    windows = "\\" in cwd or (len(cwd) > 1 and cwd[1] == ":")
    kind: type[PurePath] = PureWindowsPath if windows else PurePath
    have, want = kind(cwd).parts, kind(directory).parts
    if windows:
        have, want = tuple(p.lower() for p in have), tuple(p.lower() for p in want)
    if not want:
        return True
    if kind(directory).is_absolute():
        return have[: len(want)] == want
    return any(have[i : i + len(want)] == want for i in range(len(have) - len(want) + 1))
