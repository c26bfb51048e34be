"""Sessions that register are written down, many at once in one commit.  Knows no link, decides nothing."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from chappie_bridge.wire.errors import BridgeError, Executed, SessionConflict

from .store.port import Store
from .store.rows import Session
from .storing import storing

log = logging.getLogger("chappie.broker")

AT_ONCE = 32
"""Sessions in one commit at most: what follows it, for all of them, is one step of the loop."""

Written = Callable[[BridgeError | None], None]


class Arrivals:
    """After a restart of the broker all agents come at once, and each commit of its own would be a trip to
    the store's thread and back.  `later` runs what it is given one at a time, in its order."""

    def __init__(self, store: Store, later: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        self._store, self._later = store, later
        self._batch: list[tuple[Session, Written]] = []
        """Those that more may join."""

    def add(self, row: Session, written: Written) -> None:
        """`written` hears when it is, or why it is not."""
        if not self._batch or len(self._batch) >= AT_ONCE:
            self._batch = []
            self._later(partial(self._commit, self._batch))
        self._batch.append((row, written))

    def seal(self) -> None:
        """What is added from now on is written after what was noted for later meanwhile."""
        self._batch = []

    async def _commit(self, batch: list[tuple[Session, Written]]) -> None:
        if self._batch is batch:
            self.seal()
        failed: BridgeError | None = None
        others: frozenset[str] = frozenset()
        try:
            with storing(Executed.NO):
                others = await self._store.upsert_sessions([row for row, _ in batch])
        except BridgeError as error:
            failed = error
        for row, written in batch:
            try:
                written(SessionConflict() if row.id in others else failed)
            except Exception:  # one link's trouble is not the next one's
                log.exception("a session could not be told that it is registered")
