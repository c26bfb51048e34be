"""Puts a session's files on the disk and tidies them up, in the background."""

import logging
from collections.abc import Callable

import anyio
from anyio import to_thread

from chappie_agents.files import Files
from chappie_agents.outbox import Outbox
from chappie_agents.spool import Spool
from chappie_agents.transcript import Transcript
from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.ids import OperationId

log = logging.getLogger("chappie.agent")

SYNC_AFTER = 1.0
"""Seconds after which what was written is put on the disk: what a power cut may lose."""

TIDY_EVERY = 3600.0
SPOOL_KEEP = 24 * 3600.0
SPOOL_BYTES = 4 * 1024**3
"""Bounds of the files that hold spilled blocks."""


class Upkeep:
    """Does nothing while nothing is written, but for tidying once an hour."""

    def __init__(
        self,
        transcript: Transcript,
        outbox: Outbox,
        spool: Spool,
        *,
        files: Files | None = None,
        given_up: Callable[[OperationId], None],
        now: Callable[[], float],
    ) -> None:
        """`given_up` is told of each outcome that is no longer offered."""
        self._transcript, self._outbox, self._spool, self._files = transcript, outbox, spool, files
        self._given_up, self._now = given_up, now
        self._stirred = anyio.Event()

    def stir(self) -> None:
        """Something was written."""
        self._stirred.set()

    async def run(self) -> None:
        """Until cancelled."""
        tidied = float("-inf")
        while True:
            if self._now() - tidied >= TIDY_EVERY:
                tidied = self._now()
                await self._tidy()
            with anyio.move_on_after(TIDY_EVERY) as quiet:
                await self._stirred.wait()
            if not quiet.cancelled_caught:
                self._stirred = anyio.Event()
                await anyio.sleep(SYNC_AFTER)
                await self._sync(idle=not self._stirred.is_set())

    async def close(self) -> None:
        """Everything on the disk, the files closed; not to be cancelled."""
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._close)

    async def _sync(self, *, idle: bool) -> None:
        try:
            await self._transcript.keep(idle=idle)
            await to_thread.run_sync(self._outbox.sync)
        except (OSError, BridgeError) as error:
            log.error("the session's files could not be synced: %s", error)

    async def _tidy(self) -> None:
        for operation in self._outbox.prune():
            self._given_up(operation)
        try:
            await to_thread.run_sync(self._sweep)
        except OSError as error:
            log.error("spilled blocks could not be swept: %s", error)
        if self._files is not None:
            await self._files.tidy(self._now())

    def _sweep(self) -> None:
        for _ in self._spool.sweep(older_than_seconds=SPOOL_KEEP, max_bytes=SPOOL_BYTES, now=self._now()):
            pass

    def _close(self) -> None:
        self._transcript.close()
        self._outbox.close()
        if self._files is not None:
            self._files.shut()
