"""Stands behind an agent process's link and hands each message to its session.  Runs nothing itself."""

import logging
import secrets
from typing import Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from chappie_bridge.wire.errors import BridgeError, Failure, Internal, UnknownSession
from chappie_bridge.wire.ids import OperationId, SessionId
from chappie_bridge.wire.messages import (
    Failed,
    Finished,
    Message,
    PostChat,
    Register,
    Registered,
    Request,
    Residence,
    RunBatch,
    SessionEnded,
    SessionStarted,
    StartSession,
    Withdraw,
)
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.values import SessionInfo

log = logging.getLogger("chappie.agent")


AGAIN = 5.0
"""Seconds until a session is registered again that the broker could not take for now."""

_PASSING = frozenset({"disk_full", "overloaded"})
"""Codes of refusals that end without anybody doing anything here."""


class Resident(Protocol):
    """A session as its host sees it.  Only `run` may wait."""

    @property
    def info(self) -> SessionInfo: ...

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; nothing is received before it reported that it started."""
        ...

    def known(self) -> tuple[OperationId, ...]:
        """Operations whose outcome it still knows."""
        ...

    def attached(self, link: Link) -> None:
        """A broker without memory of this agent registered the session."""
        ...

    def back(self, link: Link) -> None:
        """The same broker again, after a while without a socket."""
        ...

    def detached(self) -> None:
        """That broker is gone for good, and with it what it waited for."""
        ...

    def refused(self, failure: Failure) -> None:
        """The broker does not take the session."""
        ...

    def received(self, link: Link, message: Message) -> None:
        """:raises Unsupported: for a message that it does not take."""
        ...

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> bool:
        """False: it waits for no such stream."""
        ...


class Starter(Protocol):
    """Opens sessions when a broker asks for one."""

    @property
    def residence(self) -> Residence: ...

    async def start(self, directory: str) -> Resident:
        """:raises BridgeError: it does not."""
        ...


class AgentHost:
    """Implements `wire.ports.Attendant` for one link that carries several sessions."""

    def __init__(self, starter: Starter | None = None) -> None:
        self._starter = starter
        self.refused: dict[SessionId, Failure] = {}
        """Sessions that the broker does not take, and why."""
        self._residents: dict[SessionId, Resident] = {}
        self._scopes: dict[SessionId, anyio.CancelScope] = {}
        self._registering: dict[int, SessionId] = {}
        self._request = 0
        self._link: Link | None = None
        self._tasks: TaskGroup
        self._over = False
        """Nothing that the link still brings starts anything here."""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Owns the sessions' tasks; until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            task_status.started()
            try:
                await anyio.sleep_forever()
            finally:
                self._over = True

    @property
    def sessions(self) -> tuple[SessionId, ...]:
        """Those that it runs now."""
        return tuple(self._residents)

    async def add(self, resident: Resident) -> None:
        """Run a session and register it, now or when a broker is there."""
        await self._tasks.start(self._keep, resident)
        self._enter(resident)

    def end(self, session: SessionId) -> None:
        """The session is over: what it runs is stopped and the broker is told."""
        resident = self._residents.pop(session)
        self._scopes[session].cancel()
        resident.detached()
        if self._link is not None:
            _send(self._link, SessionEnded(session=session))

    # -- wire.ports.Attendant --------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        self._link = link
        if self._starter is not None:
            _send(link, self._starter.residence)
        self.refused.clear()
        for resident in self._residents.values():
            self._register(link, resident)

    def link_back(self, link: Link) -> None:
        for resident in () if self._over else self._residents.values():
            resident.back(link)

    def link_down(self, link: Link) -> None:
        """Nothing: it may come back, and what runs goes on."""

    def link_gone(self, link: Link) -> None:
        self._link = None
        self._registering.clear()
        for resident in self._residents.values():
            resident.detached()

    def received(self, link: Link, message: Message) -> None:
        if self._over:
            return
        if isinstance(message, Registered | Failed):
            self._answered(link, message)
        elif isinstance(message, StartSession) and self._starter is not None:
            self._tasks.start_soon(self._start, self._starter, link, message)
        elif isinstance(message, Withdraw):
            # It names no session: whoever has that request open drops it.
            for each in self._residents.values():
                _hand(each, link, message)
        elif (resident := self._residents.get(getattr(message, "session", SessionId("")))) is not None:
            _hand(resident, link, message)
        else:
            _refuse(link, message, UnknownSession())

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> None:
        for resident in self._residents.values():
            if resident.received_chunk(link, stream, offset, data):
                return
        log.debug("a chunk of stream %d came, which nobody here waits for any more", stream)

    # -- inside ----------------------------------------------------------------------------------

    def _enter(self, resident: Resident) -> None:
        self._residents[resident.info.id] = resident
        if self._link is not None:
            self._register(self._link, resident)

    async def _start(self, starter: Starter, link: Link, message: StartSession) -> None:
        try:
            resident = await starter.start(message.directory)
            await self._tasks.start(self._keep, resident)
        except BridgeError as error:
            _refuse(link, message, error)
        except Exception:
            _refuse(link, message, _fault("a session could not be started"))
        else:
            # Before it registers: the broker then knows for whom it is.
            _send(link, SessionStarted(request=message.request, session=resident.info.id))
            self._enter(resident)

    def _register(self, link: Link, resident: Resident) -> None:
        self._request += 1
        self._registering[self._request] = resident.info.id
        _send(link, Register(request=self._request, session=resident.info, known=resident.known()))

    def _answered(self, link: Link, message: Registered | Failed) -> None:
        session = self._registering.pop(message.request, None)
        resident = None if session is None else self._residents.get(session)
        if session is None or resident is None:
            return  # it ended meanwhile, or another broker's answer
        if isinstance(message, Registered):
            resident.attached(link)
            return
        log.error("the broker does not take session %s: %s", session, message.failure.message)
        self.refused[session] = message.failure
        resident.refused(message.failure)
        if message.failure.retryable or message.failure.code in _PASSING:
            self._tasks.start_soon(self._register_later, link, resident)

    async def _register_later(self, link: Link, resident: Resident) -> None:
        await anyio.sleep(AGAIN)
        session = resident.info.id
        if self._link is link and self._residents.get(session) is resident and session in self.refused:
            del self.refused[session]
            self._register(link, resident)

    async def _keep(self, resident: Resident, *, task_status: TaskStatus[None]) -> None:
        with anyio.CancelScope() as scope:
            self._scopes[resident.info.id] = scope
            try:
                await resident.run(task_status=task_status)
            finally:
                if self._scopes.get(resident.info.id) is scope:
                    del self._scopes[resident.info.id]


def _hand(resident: Resident, link: Link, message: Message) -> None:
    try:
        resident.received(link, message)
    except BridgeError as error:
        _refuse(link, message, error)
    except Exception:
        _refuse(link, message, _fault(f"a message {type(message).__name__} failed"))


def _fault(what: str) -> Internal:
    mark = secrets.token_hex(4)
    log.exception("%s (%s)", what, mark)
    return Internal(f"The agent failed; its log holds the details under {mark}.")


def _refuse(link: Link, message: Message, error: BridgeError) -> None:
    """Say so in the way in which this message is answered."""
    failure = error.failure()
    if isinstance(message, Request):
        _send(link, Failed(request=message.request, failure=failure))
    elif isinstance(message, RunBatch | PostChat):
        finished = Finished(
            operation=message.operation,
            session=message.session,
            origin=message.origin,
            kind="batch" if isinstance(message, RunBatch) else "chat",
            status="failed",
            executed=failure.executed,
            cwd="",
            error=failure,
        )
        _send(link, finished)
    else:
        log.warning("%s is refused: %s", type(message).__name__, error)


def _send(link: Link, message: Message) -> None:
    try:
        link.send(message)
    except BridgeError as error:
        log.warning("%s could not be sent: %s", type(message).__name__, error)
