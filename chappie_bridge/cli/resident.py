"""What stands behind an agent process's link, and how its sessions live and end.  Imports no face."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup
from chappie_agents.attendant import AgentHost
from chappie_agents.hosts.builtin import Opened
from chappie_agents.residency import Residency

from chappie_bridge.wire.errors import from_failure
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.messages import Message, Registered
from chappie_bridge.wire.ports import Link

from .stopping import hurry

_LAST_WORDS = 1.5
"""Seconds in which what was stopped may still tell its outcome."""


class Resident:
    """Implements `wire.ports.Attendant` for a session, if there is one, and for those `residency` starts."""

    def __init__(self, opened: Opened | None, residency: Residency | None = None) -> None:
        self._session = None if opened is None else opened.session
        self._residency = residency
        self._host = AgentHost(residency)
        self._settled = anyio.Event()

    @property
    def settled(self) -> bool:
        """Has a broker said whether it takes the session?  Without one: is a broker there?"""
        return self._settled.is_set()

    @property
    def waits(self) -> str | None:
        """Why a broker that is there does not take the session yet."""
        refused = None if self._session is None else self._host.refused.get(self._session.info.id)
        return None if refused is None else refused.message

    @property
    def sessions(self) -> tuple[SessionId, ...]:
        return self._host.sessions

    async def registered(self) -> None:
        """Wait until a broker took the session.  :raises BridgeError: it does not."""
        await self._settled.wait()
        refused = None if self._session is None else self._host.refused.get(self._session.info.id)
        if refused is not None:
            raise from_failure(refused)

    @asynccontextmanager
    async def living(self) -> AsyncGenerator[TaskGroup]:
        """The sessions run.  At the end their tools are stopped, and told so while the link is there."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._host.run)
            if self._session is not None:
                await self._host.add(self._session)
            if self._residency is not None:
                for session in await to_thread.run_sync(self._residency.resume):
                    await self._host.add(session)
            try:
                yield tasks
            finally:
                hurry()
                with anyio.move_on_after(_LAST_WORDS, shield=True):
                    while self._stop():  # noqa: ASYNC110 - a session does not tell when its batches ended
                        await anyio.sleep(0.02)
                for identifier in self._host.sessions:
                    self._host.end(identifier)
                tasks.cancel_scope.cancel()

    def _stop(self) -> int:
        started = () if self._residency is None else self._residency.sessions
        own = () if self._session is None else (self._session,)
        return sum(session.stop("The agent was stopped.") for session in (*own, *started))

    # -- wire.ports.Attendant --------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        self._host.link_up(link)
        if self._session is None:
            self._settled.set()

    def link_back(self, link: Link) -> None:
        self._host.link_back(link)

    def link_down(self, link: Link) -> None:
        self._host.link_down(link)

    def link_gone(self, link: Link) -> None:
        self._host.link_gone(link)

    def received(self, link: Link, message: Message) -> None:
        self._host.received(link, message)
        if self._session is None:
            return
        own = self._session.info.id
        refused = self._host.refused.get(own)
        for_good = refused is not None and not refused.retryable
        if for_good or (isinstance(message, Registered) and message.session == own):
            self._settled.set()

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> None:
        self._host.received_chunk(link, stream, offset, data)
