"""Requests of the broker to agents and their replies, matched by number.  No state of sessions here."""

import itertools
from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

import anyio

from chappie_bridge.wire.errors import BridgeError, SessionOffline, Timeout, from_failure
from chappie_bridge.wire.messages import Failed, Request, Withdraw
from chappie_bridge.wire.ports import Link

SILENT = "The agent did not answer in time."

Reply = TypeVar("Reply", bound=Request)


class Waiter:
    """A request that was sent; `event` is set with its reply, or by whoever gave it."""

    __slots__ = ("error", "event", "link", "reply")

    def __init__(self, link: Link, event: anyio.Event) -> None:
        self.link, self.event = link, event
        self.reply: Request | None = None
        self.error: BridgeError | None = None

    def answer(self, reply: type[Reply]) -> Reply | None:
        """None: there is none yet.  :raises BridgeError: what came instead."""
        if self.error is not None:
            raise self.error
        if self.reply is not None and not isinstance(self.reply, reply):
            raise Timeout(f"The agent answered with {self.reply!r:.80}.")
        return self.reply


class Correspondence:
    """Waiters are bounded by whoever asks; each has a deadline."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Waiter] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, link: Link, request: Request, reply: type[Reply], seconds: float) -> Reply:
        """Send and wait.  Cancelling, or the deadline, withdraws the request at the other end.

        :raises Timeout: no reply within `seconds`.
        :raises SessionOffline: the agent went away for good meanwhile.
        :raises BridgeError: what the agent answered instead.
        """
        with self.asking(link, request, anyio.Event()) as waiter:
            with anyio.move_on_after(seconds):
                await waiter.event.wait()
            found = waiter.answer(reply)
        if found is None:
            raise Timeout(SILENT)
        return found

    @contextmanager
    def asking(self, link: Link, request: Request, event: anyio.Event) -> Generator[Waiter]:
        """The request is sent on entry; left without a reply, it is withdrawn at the other end."""
        number = next(self._numbers)
        waiter = self._waiting[number] = Waiter(link, event)
        try:
            link.send(request.model_copy(update={"request": number}))
            yield waiter
        finally:
            del self._waiting[number]
            if waiter.reply is None and waiter.error is None and link.up:
                link.send(Withdraw(request=number))

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
