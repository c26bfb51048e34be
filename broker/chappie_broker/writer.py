"""Writes that need not be awaited, in the order in which they were noted.  One at a time."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable

import anyio

from .store.port import StoreBusy, StoreFull

log = logging.getLogger("chappie.broker")

Write = Callable[[], Awaitable[object]]


PAUSE = 1.0
"""Seconds until the next attempt while the registry is full or held by somebody else."""


class Writer:
    """While the registry takes nothing for now, everything waits in its order; any other failure is logged
    and does not stop the next write.  Above `limit` the oldest is dropped."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._writes: deque[Write] = deque()
        self._some = anyio.Event()
        self._one = anyio.Lock(fast_acquire=True)
        """Who writes; at the end of the process the last attempt may still be under way."""

    def add(self, write: Write) -> None:
        if len(self._writes) >= self._limit:
            log.error("the registry is too slow: a write was dropped")
            self._writes.popleft()
        self._writes.append(write)
        self._some.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            if not await self._write_all(patient=True):
                await anyio.sleep(PAUSE)

    async def drain(self) -> None:
        """One attempt at each, for the end of the process."""
        await self._write_all(patient=False)

    async def _write_all(self, *, patient: bool) -> bool:
        """False: the registry takes nothing for now."""
        async with self._one:
            while self._writes:
                write = self._writes[0]
                try:
                    await write()
                except (StoreFull, StoreBusy) as error:
                    log.error("the registry cannot be written: %s", error)
                    if patient:
                        return False
                except Exception:
                    log.exception("a write to the registry failed")
                self._writes.popleft()  # only now: what was cancelled half-way is written on the way out
            self._some = anyio.Event()
            return True
