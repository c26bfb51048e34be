"""Requests of the broker to agents and their replies, matched by number.  No state of sessions here."""

import itertools
from typing import TypeVar

import anyio

from chappie_bridge.wire.errors import BridgeError, SessionOffline, Timeout, from_failure
from chappie_bridge.wire.messages import Failed, Request, Withdraw
from chappie_bridge.wire.ports import Link

SILENT = "The agent did not answer in time."

Reply = TypeVar("Reply", bound=Request)


class _Waiter:
    __slots__ = ("error", "event", "link", "reply")

    def __init__(self, link: Link, event: anyio.Event) -> None:
        self.link, self.event = link, event
        self.reply: Request | None = None
        self.error: BridgeError | None = None


class Correspondence:
    """Waiters are bounded by whoever asks; each has a deadline."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiter] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, link: Link, request: Request, reply: type[Reply], seconds: float) -> Reply:
        """Send and wait.  Cancelling, or the deadline, withdraws the request at the other end.

        :raises Timeout: no reply within `seconds`.
        :raises SessionOffline: the agent went away for good meanwhile.
        :raises BridgeError: what the agent answered instead.
        """
        found = await self.ask_unless(link, request, reply, seconds, anyio.Event())
        if found is None:
            raise Timeout(SILENT)
        return found

    async def ask_unless(
        self, link: Link, request: Request, reply: type[Reply], seconds: float, over: anyio.Event
    ) -> Reply | None:
        """As `ask`, but None when no reply comes within `seconds` or before the caller sets `over`."""
        number = next(self._numbers)
        waiter = self._waiting[number] = _Waiter(link, over)
        try:
            link.send(request.model_copy(update={"request": number}))
            with anyio.move_on_after(seconds):
                await waiter.event.wait()
        finally:
            del self._waiting[number]
            if waiter.reply is None and waiter.error is None and link.up:
                link.send(Withdraw(request=number))
        if waiter.error is not None:
            raise waiter.error
        if waiter.reply is None:
            return None
        if not isinstance(waiter.reply, reply):
            raise Timeout(f"The agent answered with {waiter.reply!r:.80}.")
        return waiter.reply

    def resolve(self, link: Link, reply: Request) -> bool:
        """A reply from `link`; late ones, and another agent's, are dropped: False."""
        waiter = self._waiting.get(reply.request)
        if waiter is None or waiter.link is not link:
            return False
        if isinstance(reply, Failed):
            waiter.error = from_failure(reply.failure)
        else:
            waiter.reply = reply
        waiter.event.set()
        return True

    def gone(self, link: Link) -> None:
        """Nobody answers any more on this link."""
        for waiter in self._waiting.values():
            if waiter.link is link:
                waiter.error = SessionOffline()
                waiter.event.set()
