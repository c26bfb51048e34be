"""Which session a request means (SPEC §1 "Which session") and how a conversation takes part in it (§2)."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import anyio

from chappie_bridge.wire.errors import Executed, Forbidden, NoConversation, NoSession, SessionOffline, Timeout
from chappie_bridge.wire.ids import ConversationId, SessionId
from chappie_bridge.wire.messages import Notice
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.requests import OpenSession
from chappie_bridge.wire.values import Initialization, Origin

from . import instructions
from .clock import iso
from .directory import Session
from .dispatch import Dispatch
from .store.port import Store
from .store.rows import Conversation
from .storing import storing

MAX_WINDOWS = 10_000


@dataclass(frozen=True, slots=True)
class Choice:
    """A target, fixed from here on."""

    session: Session
    selection: Literal["explicit", "existing", "automatic", "created"]


class Targets:
    """Chooses in memory in one step, so two requests at the same moment never get the same session; what
    was chosen is saved before it is told."""

    def __init__(self, dispatch: Dispatch, store: Store, *, now: Callable[[], float]) -> None:
        self._dispatch, self._store, self._now = dispatch, store, now
        self._directory = dispatch.directory
        self._limits = dispatch.limits
        self._windows: dict[tuple[ConversationId, SessionId], float] = {}
        self._reserved: dict[ConversationId, object] = {}
        self._saving: dict[ConversationId, anyio.Lock] = {}
        """Conversations that save a default just now."""
        self._creating: dict[ConversationId, anyio.Event] = {}

    def known(self, conversation: ConversationId | None, explicit: SessionId | None) -> Session:
        """For requests that never choose by themselves.

        :raises NoConversation: there is neither an id nor a conversation that could have a default.
        :raises NoSession: the conversation has no default.
        """
        bound = explicit or self._directory.bound(conversation)
        if bound is not None:
            return self._directory.get(bound)
        if conversation is None:
            raise NoConversation
        raise NoSession(
            "This conversation has no session yet.", hint="Call `init` first, or pass `sessionId`."
        )

    @asynccontextmanager
    async def chosen(
        self, conversation: ConversationId | None, request: OpenSession, deadline: float, *, change: bool
    ) -> AsyncGenerator[Choice]:
        """The target.  With `change` (that is `init`) it is saved as the default after the body succeeded;
        else before it, and only when the conversation has none.

        :raises NoConversation: the caller is none, and names no session.
        :raises SessionOffline: it is known, but did not come within the grace.
        """
        if conversation is None and request.session is None and not change:
            raise NoConversation
        ticket = object()
        before = self._directory.bound(conversation)
        saves = conversation if change or before is None or conversation in self._reserved else None
        choice = await self._choose(conversation, request, deadline, ticket)
        try:
            await self._grace(choice.session, deadline)
            if saves is not None and not change:
                choice = await self._first(saves, request, choice, deadline, ticket)
            yield choice
            if saves is not None and change:
                async with self._turn(saves):
                    await self._save(saves, request.caller.principal, choice.session)
        except BaseException:
            if conversation is not None and self._reserved.get(conversation) is ticket:
                del self._reserved[conversation]
                if before is None:
                    self._directory.unbind(conversation, choice.session.info.id)
                else:
                    self._directory.bind(conversation, before)
            raise

    async def _first(
        self,
        conversation: ConversationId,
        request: OpenSession,
        choice: Choice,
        deadline: float,
        ticket: object,
    ) -> Choice:
        """Saved as the default, unless another request did so first: to its default gives way what nobody
        named, also a default that was only reserved when it was found."""
        while True:
            async with self._turn(conversation):
                if self._has_none(conversation, ticket):
                    await self._save(conversation, request.caller.principal, choice.session)
                    return choice
            named = choice.selection in ("explicit", "created")
            if named or self._directory.bound(conversation) == choice.session.info.id:
                return choice
            choice = await self._choose(conversation, request, deadline, ticket)
            await self._grace(choice.session, deadline)

    def _has_none(self, conversation: ConversationId, ticket: object) -> bool:
        """Still no default that another request has saved?"""
        return self._directory.bound(conversation) is None or self._reserved.get(conversation) is ticket

    @asynccontextmanager
    async def _turn(self, conversation: ConversationId) -> AsyncGenerator[None]:
        """One request after the other saves a default: whoever finds one being saved waits until it is
        known whether that worked."""
        lock = self._saving.setdefault(conversation, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._saving.pop(conversation, None)

    async def _save(self, conversation: ConversationId, principal: str, session: Session) -> None:
        now = self._now()
        with storing(Executed.NO):
            row = Conversation(conversation, principal, first_seen=now, last_seen=now)
            with anyio.CancelScope(shield=True):  # what is committed is also in memory
                await self._store.save_binding(row, session.info.id, now)
        self._directory.bind(conversation, session.info.id)
        self._reserved.pop(conversation, None)

    async def _choose(
        self, conversation: ConversationId | None, request: OpenSession, deadline: float, ticket: object
    ) -> Choice:
        if request.session is not None:
            return Choice(self._directory.get(request.session), "explicit")
        give_up = min(deadline, anyio.current_time() + self._limits.session_wait)
        while True:
            bound = self._directory.bound(conversation)
            if bound is not None:
                default = self._directory.get(bound)
                if self._directory.fits(default, request.agent, request.directory):
                    return Choice(default, "existing")
                if request.create and self._dispatch.residents.same(default, request.directory or ""):
                    return Choice(default, "existing")
            creating = None if conversation is None else self._creating.get(conversation)
            if creating is not None:
                with anyio.move_on_at(deadline):
                    await creating.wait()
                    continue
                raise Timeout("The same conversation is still starting an agent.", executed=Executed.NO)
            session = self._directory.free(self._now(), request.agent, request.directory)
            if session is not None:
                if conversation is not None:
                    self._reserve(conversation, session, ticket)
                return Choice(session, "automatic")
            error = self._directory.none_free()
            if request.create and request.directory is not None:
                created = await self._created(conversation, request, request.directory, deadline, ticket)
                if created is not None:
                    return created
                error = self._dispatch.residents.explained(error)
            if not isinstance(error, NoSession) or anyio.current_time() >= give_up:
                raise error
            with anyio.move_on_at(give_up):
                await self._dispatch.news()

    async def _created(
        self,
        conversation: ConversationId | None,
        request: OpenSession,
        directory: str,
        deadline: float,
        ticket: object,
    ) -> Choice | None:
        """A session that was started for this; None: there is nobody to start one.

        The same request again, while this lasts, waits and finds what this one bound.
        """
        if request.caller.source == "session":
            raise Forbidden("A session cannot start agents; a conversation or a person can.")
        who = conversation or request.caller.source
        over = anyio.Event()
        if conversation is not None:
            self._creating[conversation] = over
        try:
            session = await self._dispatch.residents.start(directory, request.agent, who, deadline)
            if session is None:
                return None
            if conversation is not None:
                self._reserve(conversation, session, ticket)
            self._directory.redeem(session.info.id)
        finally:
            if conversation is not None:
                del self._creating[conversation]
            over.set()
        return Choice(session, "created")

    def _reserve(self, conversation: ConversationId, session: Session, ticket: object) -> None:
        self._directory.hear(conversation, self._now())
        self._directory.bind(conversation, session.info.id)
        self._reserved[conversation] = ticket

    async def _grace(self, session: Session, deadline: float) -> None:
        give_up = min(deadline, anyio.current_time() + self._limits.offline_grace)
        while not session.online:
            if anyio.current_time() >= give_up:
                raise offline(session)
            with anyio.move_on_at(give_up):
                await self._dispatch.news()

    async def online(self, session: Session, deadline: float) -> Session:
        """:raises SessionOffline: it did not come within the grace."""
        await self._grace(session, deadline)
        return session

    # -- participation ---------------------------------------------------------------------------

    def join(
        self, conversation: ConversationId | None, session: Session, *, again: bool = False
    ) -> Initialization:
        """An `init`: the first opens a window, another inside it observes.  `again`: the same one, brought
        once more by a tunnel; it takes part as it did."""
        observer = False
        if conversation is not None and self._limits.cooldown > 0 and not again:
            observer = self._windows.get((conversation, session.info.id), 0.0) > anyio.current_time()
            if not observer:
                self.renew(conversation, session.info.id)
        words = instructions.OBSERVER if observer else instructions.EXECUTOR
        return Initialization(session=session.info.id, instructions=words, observer=observer)

    def tell_join(self, session: Session, left: SessionId | None, origin: Origin, *, observer: bool) -> None:
        """A line for the people at the session that was joined and at the one that was left."""
        _notice(session, f"{origin.label} {'observes' if observer else 'joined'}")
        if left is not None and left != session.info.id and left in self._directory.sessions:
            _notice(self._directory.get(left), f"{origin.label} left")

    def renew(self, conversation: ConversationId, session: SessionId) -> None:
        """A widget loaded or a resource was read: the window is open again."""
        now = anyio.current_time()
        if len(self._windows) >= MAX_WINDOWS:
            self._windows = {pair: until for pair, until in self._windows.items() if until > now}
        if len(self._windows) < MAX_WINDOWS:
            self._windows[conversation, session] = now + self._limits.cooldown


def _notice(session: Session, text: str) -> None:
    if session.link is not None and session.online:
        session.link.send(Notice(session=session.info.id, text=text))


def link_of(session: Session) -> Link:
    """:raises SessionOffline: it has none that is up."""
    if session.link is None or not session.online:
        raise offline(session)
    return session.link


def offline(session: Session) -> SessionOffline:
    info = session.info
    start = f"chappie-bridge agent --directory {info.cwd}"
    return SessionOffline(
        f"Session {info.id} on {info.device} is not connected; it was last seen {iso(session.last_seen)}.",
        hint=f"Start it there: `{start}`. Or choose another with `sessions`.",
        data={"sessionId": info.id, "lastSeen": iso(session.last_seen)},
    )
