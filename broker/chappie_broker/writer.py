"""Writes that need not be awaited, in the order in which they were noted.  One at a time."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable

import anyio

log = logging.getLogger("chappie.broker")

Write = Callable[[], Awaitable[object]]


class Writer:
    """A failure of one write is logged and does not stop the next; above `limit` the oldest is dropped."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._writes: deque[Write] = deque()
        self._some = anyio.Event()

    def add(self, write: Write) -> None:
        if len(self._writes) >= self._limit:
            log.error("the registry is too slow: a write was dropped")
            self._writes.popleft()
        self._writes.append(write)
        self._some.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            await self.drain()

    async def drain(self) -> None:
        while self._writes:
            write = self._writes[0]
            try:
                await write()
            except Exception:
                log.exception("a write to the registry failed")
            self._writes.popleft()  # only now: what was cancelled half-way is written on the way out
        self._some = anyio.Event()
