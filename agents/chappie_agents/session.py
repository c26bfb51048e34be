"""One agent session: runs what it is told to, keeps its journal, offers what a person typed.  Opens no
socket; it speaks through the link that its host attached."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup, TaskStatus

from chappie_agents.answers import Answers, Surroundings
from chappie_agents.batch import Batch, check
from chappie_agents.bounded import fit, fits
from chappie_agents.callers import CallerRule, Callers, attributed
from chappie_agents.files import Files
from chappie_agents.outbox import MAX_INPUTS, Kind, Outbox
from chappie_agents.policy import Answer, Approval, ApprovalId, Approvals, Policy, Scope
from chappie_agents.screen import Screen
from chappie_agents.scribe import Scribe
from chappie_agents.spool import Spool
from chappie_agents.teller import Teller, sent
from chappie_agents.tools.tool import Tool, ToolContext
from chappie_agents.transcript import Transcript
from chappie_agents.upkeep import Upkeep
from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.blocks import Content
from chappie_bridge.wire.errors import (
    BridgeError,
    Cancelled,
    DiskFull,
    Executed,
    Failure,
    Internal,
    Overloaded,
    RequestClosed,
    Unsupported,
)
from chappie_bridge.wire.ids import ConversationId, InputId, Mint, OperationId
from chappie_bridge.wire.messages import (
    Admit,
    ApprovalsWaiting,
    Asking,
    CallResult,
    Cancel,
    Decide,
    Decided,
    Describe,
    Done,
    Failed,
    Finished,
    Message,
    Notice,
    PostChat,
    Pull,
    ReadHistory,
    Recall,
    RunBatch,
    SessionChanged,
    Settled,
    Typed,
    Withdraw,
)
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.values import ApprovalAsked, Input, Need, Origin, SessionInfo, ToolResult

log = logging.getLogger("chappie.agent")

SHOWN = 500
"""Characters of a command or path shown with a question to the owner."""


class _Work:
    """A batch under way.  `link` is where its results go as they come; None: all of it is told at the end,
    to whichever broker is there by then."""

    __slots__ = ("batch", "link", "message", "needs", "reason")

    def __init__(self, message: RunBatch, link: Link) -> None:
        self.message = message
        self.link: Link | None = link
        self.batch: Batch
        self.reason = "The agent was stopped."
        self.needs: dict[ApprovalId, Need] = {}

    def tell(self, message: Message) -> None:
        if self.link is not None and not sent(self.link, message):
            self.link = None


_WORK: ContextVar[_Work] = ContextVar("work")
"""The batch on whose behalf a tool runs, for the approvals that it needs."""


class AgentSession:
    """Implements `attendant.Resident`.  `run` owns every task; nothing is received before it started."""

    def __init__(
        self,
        info: SessionInfo,
        *,
        directory: Path,
        transcript: Transcript,
        outbox: Outbox,
        spool: Spool,
        transfers: Path,
        tools: Sequence[Tool],
        policy: Policy,
        environment: Mapping[str, str],
        surroundings: Callable[[], Surroundings],
        screen: Screen,
        now: Callable[[], float],
        callers: Sequence[CallerRule] = (),
        mint: Mint | None = None,
    ) -> None:
        """`directory` is where tools run; `transfers` keeps what transfers need; `callers` say which other
        sessions may do something here.  What a policy asks waits until it is answered, at `screen` or by the
        broker's owner.  `surroundings` is called in a worker thread.  `now`: seconds since the epoch.

        The session closes `transcript` and `outbox` when its `run` ends."""
        mint = mint or Mint()
        self.info = info
        self.approvals = Approvals(self._asked, self._tell_approvals)
        self._transcript, self._outbox, self._spool = transcript, outbox, spool
        self._screen, self._mint = screen, mint
        self._tools = {tool.name: tool for tool in tools}
        self._context = ToolContext(
            cwd=directory,
            spool=spool,
            policy=replace(policy, approve=self._approve),
            session=info.id,
            environment=environment,
        )
        self._working: dict[OperationId, _Work] = {}
        self._tasks: TaskGroup
        self._scribe = Scribe(transcript, now=now, mint=mint)
        self._teller = Teller(info.id, outbox, self._start)
        self._answers = Answers(
            lambda: self.info,
            transcript,
            outbox,
            spool,
            [tool.definition() for tool in tools],
            surroundings,
            self._start,
            self._keep,
        )
        admitted = Callers(tuple(callers), self._ask_about)
        self._files = Files(
            info.id,
            transfers,
            directory=directory,
            permit=self._permit,
            work=self._answers.work,
            start=self._start,
            now=now,
        )
        self._upkeep = Upkeep(transcript, outbox, spool, files=self._files, given_up=self._given_up, now=now)
        self._takes: dict[type[Message], Callable[..., None]] = {
            RunBatch: self._run_batch,
            PostChat: self._post_chat,
            Cancel: self._cancel,
            Settled: self._settled,
            Notice: self._noticed,
            Typed: self._typed,
            ReadHistory: self._answers.read,
            Withdraw: self._answers.withdraw,
            Admit: partial(self._answers.admit, admitted),
            Describe: self._answers.describe,
            Recall: self._answers.recall,
            Decide: self._decide,
            Pull: self._pull,
            **self._files.takes,
        }

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled.  Then running tools are stopped, their results kept, and the files closed."""
        try:
            async with anyio.create_task_group() as self._tasks:
                for finished in self._outbox.interrupted:
                    self._note(f"The agent was restarted while {finished.operation} ran.", finished.operation)
                task_status.started()
                await self._upkeep.run()
        finally:
            await self._upkeep.close()

    # -- what the host calls ---------------------------------------------------------------------

    def known(self) -> tuple[OperationId, ...]:
        """Operations whose outcome this session still knows."""
        return self._outbox.known()

    def attached(self, link: Link) -> None:
        """A broker without memory of us took the session: it gets what nobody has confirmed."""
        self._teller.attach(link)
        if self.approvals.pending:
            self._tell_approvals()

    def back(self, link: Link) -> None:
        """The same broker again; the link replays by itself."""
        self._teller.tell()

    def detached(self) -> None:
        """That broker is gone for good; what runs goes on, and is told to its successor."""
        self._teller.link = None
        for work in self._working.values():
            work.link = None
        self._answers.drop()

    def refused(self, failure: Failure) -> None:
        """The broker does not take this session."""
        said = [f"Not registered: {failure.message}", failure.hint]
        self._screen.notice(" ".join(text for text in said if text))

    def received(self, link: Link, message: Message) -> None:
        """:raises Unsupported: for a message that no session takes."""
        take = self._takes.get(type(message))
        if take is None:
            raise Unsupported
        take(link, message)

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> bool:
        """False: nothing here waits for this stream."""
        return self._files.received_chunk(link, stream, offset, data)

    # -- what a person at the agent does ---------------------------------------------------------

    async def type(self, content: Content) -> InputId:
        """Input for whoever drives this session: kept until it arrived there for certain.

        :raises Overloaded: `MAX_INPUTS` wait already.  DiskFull: it is not kept."""
        if self._outbox.waiting >= MAX_INPUTS:
            raise Overloaded("Too much input waits for ChatGPT already.")
        if not fits(content):
            try:
                content = await to_thread.run_sync(partial(fit, content, self._spool))
            except OSError as error:
                raise DiskFull(f"The input could not be kept: {error.strerror}.") from error
        identifier, at = self._mint.input(), self._scribe.time()
        self._outbox.offer(identifier, at, self._scribe.typed(content, at))
        self._upkeep.stir()
        self._teller.offer(Input(id=identifier, at=at, content=content))
        return identifier

    def stop(self, reason: str) -> int:
        """Cancel what runs, as the person here; the number of batches."""
        for work in self._working.values():
            work.reason = reason
            work.batch.cancel()
        return len(self._working)

    # -- operations ------------------------------------------------------------------------------

    def _run_batch(self, link: Link, message: RunBatch) -> None:
        operation, origin = message.operation, message.origin
        if self._repeated(operation):
            return
        try:
            checked = check(message.calls, self._tools)
            calls = [call.id for call in message.calls]
            self._outbox.accept(operation, origin, kind="batch", cwd=self.info.cwd, calls=calls)
            self._scribe.calls(message)
        except BridgeError as error:
            self._refuse(link, message, "batch", error)
            return
        context = replace(self._context, conversation=origin.conversation)
        work = self._working[operation] = _Work(message, link)
        work.batch = Batch(message.calls, checked, context, partial(self._call_ended, work))
        self._screen.batch(origin, message.calls)
        self._tasks.start_soon(self._work, work)

    async def _work(self, work: _Work) -> None:
        _WORK.set(work)
        error: BridgeError | None = None
        batch, message = work.batch, work.message
        try:
            await batch.run()
        except Exception:
            log.exception("the batch %s failed", message.operation)
            error = Internal()
        finally:
            if error is None and batch.stopped:
                error = Cancelled(work.reason)
            finished = Finished(
                operation=message.operation,
                session=self.info.id,
                origin=message.origin,
                kind="batch",
                status="cancelled" if batch.stopped else "failed" if error else "done",
                executed=Executed.YES if batch.begun else Executed.NO,
                cwd=self.info.cwd,
                count=len(message.calls),
                error=None if error is None else error.failure(),
            )
            del self._working[message.operation]
            self._finish(work.link, finished)

    def _call_ended(self, work: _Work, index: int, result: ToolResult) -> None:
        operation = work.message.operation
        self._files.keep(result.content)
        try:
            self._outbox.result(operation, index, self._scribe.result(operation, result))
        except DiskFull as error:
            log.error("a result of %s is kept in memory only: %s", operation, error)
            self._outbox.result(operation, index, result)
        work.tell(CallResult(operation=operation, session=self.info.id, index=index, result=result))
        self._screen.result(result)

    def _post_chat(self, link: Link, message: PostChat) -> None:
        if self._repeated(message.operation):
            return
        try:
            if message.reply_to is not None:
                raise RequestClosed("This session asks for no text; send the message without `replyTo`.")
            message = attributed(message)
            entry = self._scribe.chat(message)
        except BridgeError as error:
            self._refuse(link, message, "chat", error)
            return
        self._screen.chat(message.origin, message.text, final=message.final)
        finished = Finished(
            operation=message.operation,
            session=self.info.id,
            origin=message.origin,
            kind="chat",
            status="done",
            executed=Executed.YES,
            cwd=self.info.cwd,
            entry=entry,
        )
        self._finish(link, finished)

    def _refuse(self, link: Link, message: RunBatch | PostChat, kind: Kind, error: BridgeError) -> None:
        """Nothing of it ran."""
        finished = Finished(
            operation=message.operation,
            session=self.info.id,
            origin=message.origin,
            kind=kind,
            status="failed",
            executed=Executed.NO,
            cwd=self.info.cwd,
            error=error.failure(),
        )
        self._finish(link, finished)

    def _finish(self, link: Link | None, finished: Finished) -> None:
        self._outbox.finish(finished)
        self._upkeep.stir()
        self._screen.ended(finished)
        if link is None or not sent(link, finished):
            self._teller.tell([finished.operation])

    def _repeated(self, operation: OperationId) -> bool:
        """Never begun twice: a finished one is told again, a running one goes on."""
        if not self._outbox.has(operation):
            return False
        if not self._outbox.running(operation):
            self._teller.tell([operation])
        return True

    def _cancel(self, link: Link, message: Cancel) -> None:
        work = self._working.get(message.operation)
        if work is not None:
            work.reason = message.reason
            work.batch.cancel()

    def _settled(self, link: Link, message: Settled) -> None:
        self._outbox.settle(message.operations, message.inputs)

    # -- approvals -------------------------------------------------------------------------------

    async def _approve(self, approval: Approval) -> bool:
        try:
            return await self.approvals.ask(approval)
        finally:
            work = _WORK.get(None)
            if work is not None and work.needs.pop(approval.id, None) is not None:
                self._tell_asking(work)

    async def _ask_about(self, message: Admit) -> bool:
        approval = Approval(
            tool="another session",
            path=self._context.cwd,
            writing=True,
            what=f"{message.origin.label} wants to {message.what}",
            directory=self._context.cwd,
            session=self.info.id,
            conversation=ConversationId(message.origin.id),
        )
        return await self.approvals.ask(approval)

    def _asked(self, approval: Approval) -> None:
        work = _WORK.get(None)
        if work is not None:
            what = display(f"{approval.tool}: {approval.what}", SHOWN)
            work.needs[approval.id] = Need(kind="approval", session=self.info.id, what=what)
            self._tell_asking(work)
        self._screen.asked(approval)

    def _tell_approvals(self) -> None:
        asked = tuple(map(_asked, self.approvals.pending))
        self._teller.state("approvals", ApprovalsWaiting(session=self.info.id, approvals=asked))

    def _decide(self, link: Link, message: Decide) -> None:
        given = Answer(message.allowed, Scope(message.scope), message.by)
        counts = self.approvals.answer(ApprovalId(message.approval), given)
        if counts is given:
            self._screen.notice(f"{'Allowed' if given.allowed else 'Not allowed'} on the {message.by}.")
        decided = Decided(
            request=message.request, allowed=counts.allowed, scope=counts.scope.value, by=counts.by
        )
        sent(link, decided)

    def _tell_asking(self, work: _Work) -> None:
        needs = tuple(work.needs.values())
        work.tell(Asking(operation=work.message.operation, session=self.info.id, needs=needs))
        asking = any(each.needs for each in self._working.values())
        activity: Literal["asking", "ready"] = "asking" if asking else "ready"
        if activity != self.info.activity:
            self.info = self.info.model_copy(update={"activity": activity})
            self._teller.state("session", SessionChanged(session=self.info))

    def _keep(self, content: Content) -> None:
        self._files.keep(content)

    async def _permit(self, path: str, *, writing: bool, origin: Origin | None) -> Path:
        context = replace(self._context, conversation=None if origin is None else origin.conversation)
        return await context.permit("transfer", path, writing=writing)

    # -- other messages --------------------------------------------------------------------------

    def _pull(self, link: Link, message: Pull) -> None:
        if message.source.startswith("spill:"):
            self._answers.pull(link, message)
        else:
            self._files.pull(link, message)

    def _noticed(self, link: Link, message: Notice) -> None:
        self._note(message.text)

    def _given_up(self, operation: OperationId) -> None:
        self._note(f"Nobody fetched the outcome of {operation}; it is no longer offered.", operation)

    def _note(self, text: str, operation: OperationId | None = None) -> None:
        self._screen.notice(text)
        try:
            self._scribe.notice(text, operation)
        except DiskFull as error:
            log.warning("a notice is not kept: %s", error)
        self._upkeep.stir()

    def _typed(self, link: Link, message: Typed) -> None:
        async def take() -> None:
            try:
                await self.type(message.content)
            except BridgeError as error:
                sent(link, Failed(request=message.request, failure=error.failure()))
            else:
                self._screen.typed(message.content)
                sent(link, Done(request=message.request))

        self._start(take)

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        """A task of this session's own; no fault of it ends the others."""

        async def run() -> None:
            try:
                await work()
            except Exception:
                log.exception("a task of the session %s failed", self.info.id)

        self._tasks.start_soon(run)


def _asked(approval: Approval) -> ApprovalAsked:
    return ApprovalAsked(
        id=approval.id,
        tool=approval.tool,
        path=str(approval.path),
        writing=approval.writing,
        what=display(approval.what, SHOWN),
        directory=str(approval.directory),
        conversational=approval.conversation is not None,
    )
