"""One open request of a program, between its session and its connection.  Keeps nothing of the request."""

from collections import deque
from typing import Protocol

import anyio

from chappie_bridge.codec.turn import Answer
from chappie_bridge.wire.errors import Failure


class Holder(Protocol):
    """Who gives the answers, and hears what became of the connection."""

    def written(self, hold: "Hold") -> None:
        """The last byte of an answer that ends left us."""
        ...

    def closed(self, hold: "Hold") -> None:
        """The program closed the connection before that."""
        ...


class Hold:
    """Answers go in at one end and out to the program at the other, in order."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._answers: deque[Answer] = deque()
        self._stirred = anyio.Event()
        self._ended = anyio.Event()
        self.refusal: Failure | None = None
        """Why there will be no answer."""
        self.replaced = False
        """A newer request of the same session took its place: nobody reads this one any more."""
        self.over = False

    def give(self, *answers: Answer) -> None:
        self._answers.extend(answers)
        self._stirred.set()

    def refuse(self, failure: Failure) -> None:
        self.refusal = failure
        self._stirred.set()

    def replace(self) -> None:
        self.replaced = True
        self._stirred.set()
        self._ended.set()

    def next(self) -> Answer | None:
        return self._answers.popleft() if self._answers else None

    async def stirred(self, within: float) -> bool:
        """Is there something, now or within so many seconds?"""
        if not (self._answers or self.refusal or self.replaced):
            with anyio.move_on_after(within):
                await self._stirred.wait()
        self._stirred = anyio.Event()
        return bool(self._answers or self.refusal or self.replaced)

    # -- what became of it -----------------------------------------------------------------------

    async def ended(self) -> None:
        """Until the connection is over, or nobody reads it any more."""
        await self._ended.wait()

    def written(self) -> None:
        if not self.over:
            self.over = True
            self._ended.set()
            self._holder.written(self)

    def closed(self) -> None:
        if not self.over:
            self.over = True
            self._ended.set()
            self._holder.closed(self)
