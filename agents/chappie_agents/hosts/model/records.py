"""What a session of a program writes down and tells its broker: operations and their ends, input, notices.
Decides nothing about the program."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import anyio
from anyio import to_thread

from chappie_agents.bounded import fit, fits
from chappie_agents.hosts.model.journal import Journal
from chappie_agents.outbox import MAX_INPUTS, Kind
from chappie_agents.scribe import Scribe
from chappie_agents.spool import Spool
from chappie_agents.teller import Teller, sent
from chappie_agents.transcript import Transcript
from chappie_bridge.wire.blocks import Content
from chappie_bridge.wire.errors import BridgeError, Cancelled, DiskFull, Executed
from chappie_bridge.wire.ids import InputId, Mint, OperationId
from chappie_bridge.wire.messages import CallResult, Finished, Message, PostChat, RunBatch
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.values import Input, SessionInfo, ToolResult

log = logging.getLogger("chappie.model")

SYNC_AFTER = 1.0
"""Seconds after which what was written is put on the disk: what a power cut may lose."""

TIDY_EVERY = 3600.0
SPOOL_KEEP = 24 * 3600.0
SPOOL_BYTES = 1024**3
"""Bounds of one session's files that hold spilled blocks."""

Operation = RunBatch | PostChat
Status = Literal["done", "failed", "cancelled", "interrupted"]


class Records:
    """Of one session.  Each outcome is on its way to the disk before anybody is told of it."""

    def __init__(
        self,
        info: Callable[[], SessionInfo],
        transcript: Transcript,
        journal: Journal,
        spool: Spool,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        *,
        now: Callable[[], float],
        mint: Mint,
    ) -> None:
        """`now`: seconds since the epoch."""
        self._info, self._journal, self._spool = info, journal, spool
        self._scribe = Scribe(transcript, now=now, mint=mint)
        self._teller = Teller(info().id, journal, start)
        self._transcript, self._now = transcript, now
        self._written = anyio.Event()

    async def run(self) -> None:
        """Put on the disk what was written, and tidy up once an hour; until cancelled."""
        tidied = float("-inf")
        while True:
            if self._now() - tidied >= TIDY_EVERY:
                tidied = self._now()
                for operation in self._journal.prune():
                    self._given_up(operation)
                await to_thread.run_sync(self._sweep)
            with anyio.move_on_after(TIDY_EVERY) as quiet:
                await self._written.wait()
            if not quiet.cancelled_caught:
                self._written = anyio.Event()
                await anyio.sleep(SYNC_AFTER)
                await self._sync(idle=not self._written.is_set())

    async def _sync(self, *, idle: bool) -> None:
        try:
            await self._transcript.keep(idle=idle)
            await to_thread.run_sync(self._journal.sync)
        except (OSError, BridgeError) as error:
            log.error("the session's files could not be synced: %s", error)

    def _sweep(self) -> None:
        try:
            for _ in self._spool.sweep(older_than_seconds=SPOOL_KEEP, max_bytes=SPOOL_BYTES, now=self._now()):
                pass
        except OSError as error:
            log.error("spilled blocks could not be swept: %s", error)

    async def close(self) -> None:
        """Everything on the disk, the files closed; not to be cancelled."""

        def close() -> None:
            self._transcript.close()
            self._journal.close()

        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(close)

    # -- the broker ------------------------------------------------------------------------------

    def attach(self, link: Link) -> None:
        """A broker without memory of us: it gets what nobody has confirmed."""
        self._teller.attach(link)

    def back(self) -> None:
        self._teller.tell()

    def detach(self) -> None:
        self._teller.link = None

    def state(self, subject: str, message: Message) -> None:
        """See `Teller.state`."""
        self._teller.state(subject, message)

    def tell(self, message: Message) -> bool:
        """Did a broker's link take it?"""
        return self._teller.link is not None and sent(self._teller.link, message)

    # -- operations ------------------------------------------------------------------------------

    def repeated(self, operation: OperationId) -> bool:
        """Is it here already?  A finished one is told again."""
        if not self._journal.has(operation):
            return False
        if not self._journal.running(operation):
            self._teller.tell([operation])
        return True

    def accept(self, message: Operation) -> None:
        """:raises DiskFull: it must not begin."""
        cwd = self._info().cwd
        if isinstance(message, RunBatch):
            calls = [call.id for call in message.calls]
            self._journal.accept(message.operation, message.origin, kind="batch", cwd=cwd, calls=calls)
            self._scribe.calls(message)
        else:
            self._journal.accept(message.operation, message.origin, kind="chat", cwd=cwd)
            self._scribe.chat(message)
        self._written.set()

    def results(self, operation: OperationId, results: Sequence[ToolResult]) -> None:
        """All results of an accepted batch, in request order."""
        session = self._info().id
        for index, result in enumerate(results):
            try:
                self._journal.result(operation, index, self._scribe.result(operation, result))
            except DiskFull as error:
                log.error("a result of %s is kept in memory only: %s", operation, error)
                self._journal.result(operation, index, result)
            self.tell(CallResult(operation=operation, session=session, index=index, result=result))

    def finish(
        self,
        message: Operation,
        *,
        status: Status = "done",
        executed: Executed = Executed.YES,
        count: int = 0,
        error: BridgeError | None = None,
    ) -> None:
        kind: Kind = "batch" if isinstance(message, RunBatch) else "chat"
        finished = Finished(
            operation=message.operation,
            session=self._info().id,
            origin=message.origin,
            kind=kind,
            status=status,
            executed=executed,
            cwd=self._info().cwd,
            count=count,
            error=None if error is None else error.failure(),
        )
        self._journal.finish(finished)
        self._written.set()
        if not self.tell(finished):
            self._teller.tell([message.operation])

    def refuse(self, message: Operation, error: BridgeError, status: Status | None = None) -> None:
        """It ends without results; `error` says whether it ran."""
        how = status or ("cancelled" if isinstance(error, Cancelled) else "failed")
        self.finish(message, status=how, executed=error.executed, error=error)

    # -- input and notices -----------------------------------------------------------------------

    async def offer(self, name: InputId, content: Content) -> None:
        """What the person typed: kept until it arrived at its conversation for certain."""
        if self._journal.waiting >= MAX_INPUTS:
            log.error("too much input waits for ChatGPT; a text stays in the transcript only")
            return
        at, content = self._scribe.time(), await self.fitting(content)
        try:
            self._journal.offer(name, at, self._scribe.typed(content, at))
        except DiskFull as error:
            log.error("input is not kept: %s", error)
        self._written.set()
        self._teller.offer(Input(id=name, at=at, content=content))

    async def fitting(self, content: Content) -> Content:
        """Made to fit a message; long blocks go to files."""
        if fits(content):
            return content
        return await to_thread.run_sync(fit, content, self._spool)

    def note(self, text: str, operation: OperationId | None = None) -> None:
        try:
            self._scribe.notice(text, operation)
        except DiskFull as error:
            log.warning("a notice is not kept: %s", error)
        self._written.set()

    def _given_up(self, operation: OperationId) -> None:
        self.note(f"Nobody fetched the outcome of {operation}; it is no longer offered.", operation)
