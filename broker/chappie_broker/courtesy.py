"""Files give way to calls: while calls come, relays ask for bytes at a bounded rate.  Knows no link."""

from collections.abc import Awaitable, Callable

AFTER = 5.0
"""Seconds after a call in which another is expected: those of one conversation follow one another."""

PACE = 0.012
"""Seconds between two spans, of all files together: 80 MiB/s.  At full speed one file keeps two cores busy,
and a call then waits for a turn at each of the processes that it passes through."""


class Courtesy:
    """`now` in seconds, `sleep` takes seconds."""

    def __init__(self, now: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self._now, self._sleep = now, sleep
        self._until = self._next = float("-inf")

    def called(self) -> None:
        """A call begins."""
        self._until = self._now() + AFTER

    async def turn(self) -> None:
        """Until the next span may be asked for."""
        now = self._now()
        if now < self._until:
            turn = max(now, self._next)
            self._next = turn + PACE
            if turn > now:
                await self._sleep(turn - now)
