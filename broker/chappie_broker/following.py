"""Callers that wait for the same entries of a session share one request to its agent.  Reads no entry."""

import asyncio
from contextlib import ExitStack

import anyio

from chappie_bridge.wire.errors import Timeout
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.messages import History, ReadHistory
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.values import HistoryRange

from .directory import Session
from .rpc import SILENT, Correspondence, Waiter

Place = tuple[SessionId, Link, HistoryRange]


class _Watch:
    """One request at the agent, and how many wait for its reply."""

    __slots__ = ("ends", "held", "readers", "silent", "waiter")

    def __init__(
        self, rpc: Correspondence, session: Session, link: Link, span: HistoryRange, ask_seconds: float
    ) -> None:
        self.readers = 0
        self.ends = anyio.current_time() + span.wait
        """When the agent answers with an empty page."""
        self.silent = False
        """It did not."""
        with ExitStack() as held:
            over = held.enter_context(session.attention())
            message = ReadHistory(session=session.info.id, range=span)
            self.waiter: Waiter = held.enter_context(rpc.asking(link, message, over))
            # One timer for all of them: their own scopes would take half of the time of waking them.
            timer = asyncio.get_running_loop().call_later(span.wait + ask_seconds, self._give_up)
            held.callback(timer.cancel)
            self.held = held.pop_all()

    def _give_up(self) -> None:
        self.silent = True
        self.waiter.event.set()


class Following:
    def __init__(self, rpc: Correspondence, ask_seconds: float) -> None:
        """An agent may take `ask_seconds` longer than a reader waits."""
        self._rpc, self._ask_seconds = rpc, ask_seconds
        self._watches: dict[Place, _Watch] = {}

    def __len__(self) -> int:
        return len(self._watches)

    async def page(self, session: Session, link: Link, span: HistoryRange) -> History | None:
        """The page after `span.after`; None when something else than an entry needs the reader, empty after
        `span.wait` seconds.  Who waited longer than the others asks again for the rest of its time.

        :raises BridgeError: what the agent answered instead.  :raises Timeout: it is silent."""
        ends = anyio.current_time() + span.wait
        while True:
            watch, reply = await self._one(session, link, span)
            left = ends - anyio.current_time()
            if reply is None or reply.entries or watch.ends >= ends or left <= 0:
                return reply
            span = span.model_copy(update={"wait": left})

    async def _one(self, session: Session, link: Link, span: HistoryRange) -> tuple[_Watch, History | None]:
        place = session.info.id, link, span.model_copy(update={"wait": 0.0, "observer": False})
        watch = self._watches.get(place)
        if watch is None:
            watch = self._watches[place] = _Watch(self._rpc, session, link, span, self._ask_seconds)
        watch.readers += 1
        over = watch.waiter.event
        try:
            await over.wait()
        finally:
            watch.readers -= 1
            if self._watches.get(place) is watch and (over.is_set() or not watch.readers):
                del self._watches[place]  # what is over answers nobody who comes later
            if not watch.readers:
                watch.held.close()
        if watch.silent:
            raise Timeout(SILENT)
        return watch, watch.waiter.answer(History)
