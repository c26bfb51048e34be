"""Tells the broker again what it has not confirmed: outcomes and typed input, read from the disk; and how the
session stands, where its link took no more.  Decides nothing about what is confirmed."""

import logging
from collections.abc import Awaitable, Callable, Iterable

import anyio
from anyio import to_thread

from chappie_agents.outbox import Outbox
from chappie_bridge.wire.errors import BridgeError, Overloaded
from chappie_bridge.wire.ids import InputId, OperationId, SessionId
from chappie_bridge.wire.messages import InputOffered, Message
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.values import Input

log = logging.getLogger("chappie.agent")

RETRY = 1.0
"""Seconds until the next attempt when the link takes no more."""


class Teller:
    """One task at most, and only while there is something to tell and somebody to tell it to."""

    def __init__(
        self, session: SessionId, outbox: Outbox, start: Callable[[Callable[[], Awaitable[None]]], None]
    ) -> None:
        self.link: Link | None = None
        """The link of a broker that took the session."""
        self._session, self._outbox, self._start = session, outbox, start
        self._untold: dict[OperationId, None] = {}
        self._inputs: dict[InputId, None] = {}
        self._states: dict[str, Message] = {}
        self._telling = False

    def attach(self, link: Link) -> None:
        """A broker without memory of us: it gets everything that is not settled."""
        self.link = link
        self._states.clear()  # whoever attaches tells how it stands now
        self._inputs = dict.fromkeys(self._outbox.inputs())
        self.tell(self._outbox.unsettled())

    def offer(self, offered: Input) -> None:
        """Tell what was typed just now: at once, unless earlier input is still untold.  Without a link it
        waits for the next broker."""
        if self.link is None:
            return
        if self._inputs or not sent(self.link, InputOffered(session=self._session, input=offered)):
            self._inputs[offered.id] = None
            self.tell()

    def state(self, subject: str, message: Message) -> None:
        """Tell how `subject` stands now: at once, or when the link takes it, and then only the last word.
        Without a link nobody is told."""
        if self.link is None:
            return
        if self._states or not sent(self.link, message):
            self._states.pop(subject, None)
            self._states[subject] = message
            self.tell()

    def tell(self, operations: Iterable[OperationId] = ()) -> None:
        """Tell the outcomes of these finished operations, and whatever else is still untold."""
        self._untold.update(dict.fromkeys(operations))
        if not self._telling and self.link is not None and self._left:
            self._telling = True
            self._start(self._run)

    @property
    def _left(self) -> bool:
        return bool(self._states or self._untold or self._inputs)

    async def _run(self) -> None:
        try:
            while (link := self.link) is not None and self._left:
                try:
                    if self._states:
                        self._tell_state(link, next(iter(self._states)))
                    elif self._inputs:
                        await self._tell_input(link, next(iter(self._inputs)))
                    else:
                        await self._tell_outcome(link, next(iter(self._untold)))
                except Overloaded:
                    await anyio.sleep(RETRY)
        finally:
            self._telling = False

    def _tell_state(self, link: Link, subject: str) -> None:
        try:
            link.send(self._states[subject])
        except Overloaded:
            raise
        except BridgeError as error:
            log.error("%s cannot be told: %s", type(self._states[subject]).__name__, error)
        del self._states[subject]

    async def _tell_input(self, link: Link, identifier: InputId) -> None:
        try:
            offered = await to_thread.run_sync(self._outbox.input, identifier)
            if self.link is not link:
                return
            if offered is not None:
                link.send(InputOffered(session=self._session, input=offered))
        except Overloaded:
            raise
        except (BridgeError, OSError) as error:
            log.error("the input %s could not be offered again: %s", identifier, error)
        self._inputs.pop(identifier, None)

    async def _tell_outcome(self, link: Link, operation: OperationId) -> None:
        try:
            outcome = await to_thread.run_sync(self._outbox.outcome, operation)
            if self.link is not link:
                return
            for message in (*outcome.results, outcome.finished) if outcome is not None else ():
                link.send(message)
        except Overloaded:
            raise
        except (BridgeError, OSError, ValueError) as error:
            log.error("the outcome of %s could not be told: %s", operation, error)
        self._untold.pop(operation, None)


def sent(link: Link, message: Message) -> bool:
    """Did the link take it?  It always does unless its buffer is full."""
    try:
        link.send(message)
    except BridgeError as error:
        log.warning("%s could not be sent: %s", type(message).__name__, error)
        return False
    return True
