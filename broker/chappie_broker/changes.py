"""That something changed, for whoever looks on.  Keeps no account of what."""

import anyio


class Changes:
    """`number` grows with each `tell`; any number of waiters, none of which is told twice."""

    def __init__(self) -> None:
        self.number = 1
        self._next = anyio.Event()

    def tell(self) -> None:
        self.number += 1
        self._next.set()
        self._next = anyio.Event()

    async def after(self, since: int, wait: float) -> int:
        """The number now: at once unless it is `since`, else after a change or `wait` seconds."""
        if self.number == since:
            with anyio.move_on_after(wait):
                await self._next.wait()
        return self.number
