"""The broker as a Switchboard and an Office over a link of role `caller`: asks, waits, joins replies."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import anyio

from chappie_bridge.wire.errors import (
    BridgeError,
    Executed,
    Internal,
    Lost,
    Overloaded,
    Timeout,
    from_failure,
)
from chappie_bridge.wire.ids import ReceiptId
from chappie_bridge.wire.messages import Decided, Done, Failed, Message, Request, Withdraw
from chappie_bridge.wire.overview import (
    AnswerApproval,
    AnswerQuestion,
    ApprovalList,
    AwaitChange,
    CancelOperation,
    Changed,
    ListApprovals,
    ListOperations,
    ListQuestions,
    OperationList,
    QuestionList,
)
from chappie_bridge.wire.owner import (
    AppList,
    AuditPage,
    CodeMade,
    DeviceList,
    ListApps,
    ListDevices,
    ListSubjects,
    MakeCode,
    Measures,
    PairDevice,
    PairingMade,
    ReadAudit,
    RedeemCode,
    RevokeApp,
    RevokeDevice,
    RuleSubject,
    SubjectList,
    TakeMeasures,
)
from chappie_bridge.wire.ports import Link, stops
from chappie_bridge.wire.requests import (
    Ask,
    AssertAsked,
    BrokerStatus,
    Bytes,
    CallerRequest,
    Chat,
    FetchBytes,
    FetchHistory,
    HistoryView,
    ListSessions,
    ListTools,
    OpenSession,
    OperationView,
    Push,
    Pushed,
    QuestionView,
    Receipt,
    Respond,
    SessionList,
    SessionOpened,
    StatusReport,
    Submit,
    ToolList,
    Transfer,
    TypeInput,
    Unbind,
    Unbound,
    ViewPart,
)
from chappie_bridge.wire.values import MAX_CALLS, DeferredItem, ToolResult

MAX_OUTSTANDING = 1000
"""Requests that may wait for their reply at once."""

MAX_PARTS = MAX_CALLS * 9
"""Parts of one reply: its own results and those of eight companions."""

PATIENCE = 15.0
"""Seconds that a reply may take beyond the `wait` of its request."""

R = TypeVar("R", bound=Request)


@dataclass
class _Question:
    """A request that waits for its reply."""

    request: CallerRequest
    reply: "asyncio.Future[Request | BridgeError]"
    parts: list[ViewPart] = field(default_factory=list)
    touched: bool = False
    """May the broker have it?  False only while no socket was there since it was asked."""
    again: bool = False
    """Did the broker forget it once?  It is asked a second time, not a third."""

    def settle(self, reply: Request | BridgeError) -> None:
        if not self.reply.done():
            self.reply.set_result(reply)


class RemoteSwitchboard:
    """Implements `ports.Switchboard`, `ports.Office`, and `ports.Attendant` for the one link it asks over.

    Give it to a `Dial` of role `caller` as attendant.  A request made before the link is up, or while
    it is down, waits for it within its own patience.  Each method raises what the broker's own would,
    and Lost (it never left), Timeout (no reply came; `executed` says what may have happened),
    Overloaded (more than MAX_OUTSTANDING are waiting).
    """

    def __init__(self) -> None:
        self._link: Link | None = None
        self._there = asyncio.Event()
        self._numbers: Iterator[int] = itertools.count(1)
        self._waiting: dict[int, _Question] = {}

    # --- Switchboard ---

    async def sessions(self, request: ListSessions) -> SessionList:
        return await self._ask(request, SessionList)

    async def init(self, request: OpenSession) -> SessionOpened:
        return await self._ask(request, SessionOpened, request.wait)

    async def tools(self, request: ListTools) -> ToolList:
        return await self._ask(request, ToolList, request.wait)

    async def call(self, request: Submit) -> OperationView:
        return await self._ask(request, OperationView, request.wait)

    async def chat(self, request: Chat) -> OperationView:
        return await self._ask(request, OperationView, request.wait)

    async def transfer(self, request: Transfer) -> OperationView:
        return await self._ask(request, OperationView, request.wait)

    async def push(self, request: Push) -> Pushed:
        return await self._ask(request, Pushed)

    async def ask(self, request: Ask) -> QuestionView:
        return await self._ask(request, QuestionView, request.wait)

    async def ask_assert(self, request: AssertAsked) -> QuestionView:
        return await self._ask(request, QuestionView, request.wait)

    async def answer(self, request: Respond) -> QuestionView:
        return await self._ask(request, QuestionView)

    async def history(self, request: FetchHistory) -> HistoryView:
        return await self._ask(request, HistoryView, request.range.wait)

    async def fetch(self, request: FetchBytes) -> Bytes:
        return await self._ask(request, Bytes)

    async def say(self, request: TypeInput) -> Done:
        return await self._ask(request, Done)

    async def unbind(self, request: Unbind) -> Unbound:
        return await self._ask(request, Unbound)

    async def status(self, request: BrokerStatus) -> StatusReport:
        return await self._ask(request, StatusReport)

    def told(self, receipt: ReceiptId, *, sent: bool) -> None:
        if self._link is not None:  # else the broker has forgotten the offer, and makes it again
            with suppress(Overloaded):
                self._link.send(Receipt(receipt=receipt, sent=sent))

    # --- Office ---

    async def make_code(self, request: MakeCode) -> CodeMade:
        return await self._ask(request, CodeMade)

    async def redeem_code(self, request: RedeemCode) -> Done:
        return await self._ask(request, Done)

    async def list_apps(self, request: ListApps) -> AppList:
        return await self._ask(request, AppList)

    async def revoke_app(self, request: RevokeApp) -> Done:
        return await self._ask(request, Done)

    async def list_subjects(self, request: ListSubjects) -> SubjectList:
        return await self._ask(request, SubjectList)

    async def rule_subject(self, request: RuleSubject) -> Done:
        return await self._ask(request, Done)

    async def audit(self, request: ReadAudit) -> AuditPage:
        return await self._ask(request, AuditPage)

    async def measures(self, request: TakeMeasures) -> Measures:
        return await self._ask(request, Measures)

    async def operations(self, request: ListOperations) -> OperationList:
        return await self._ask(request, OperationList)

    async def cancel(self, request: CancelOperation) -> Done:
        return await self._ask(request, Done)

    async def approvals(self, request: ListApprovals) -> ApprovalList:
        return await self._ask(request, ApprovalList)

    async def answer_approval(self, request: AnswerApproval) -> Decided:
        return await self._ask(request, Decided)

    async def questions(self, request: ListQuestions) -> QuestionList:
        return await self._ask(request, QuestionList)

    async def answer_question(self, request: AnswerQuestion) -> QuestionView:
        return await self._ask(request, QuestionView)

    async def change(self, request: AwaitChange) -> Changed:
        return await self._ask(request, Changed, request.wait)

    async def pair(self, request: PairDevice) -> PairingMade:
        return await self._ask(request, PairingMade)

    async def devices(self, request: ListDevices) -> DeviceList:
        return await self._ask(request, DeviceList)

    async def revoke(self, request: RevokeDevice) -> Done:
        return await self._ask(request, Done)

    # --- Attendant ---

    def link_up(self, link: Link) -> None:
        self._link = link
        self._there.set()
        for number, question in list(self._waiting.items()):
            if not question.reply.done():
                try:
                    self._send(link, number, question)
                except BridgeError as error:
                    question.settle(error)

    def link_back(self, link: Link) -> None:
        for question in self._waiting.values():
            question.touched = True  # what waited in the window is replayed now

    def link_down(self, link: Link) -> None:
        pass  # a reply may still come over the next socket

    def link_gone(self, link: Link) -> None:
        self._link = None
        self._there.clear()
        for question in self._waiting.values():
            if question.touched and (question.again or not _is_safe(question.request)):
                question.settle(_unanswered(question))
            question.again = question.again or question.touched

    def received(self, link: Link, message: Message) -> None:
        question = self._waiting.get(message.request) if isinstance(message, Request) else None
        if question is None or not isinstance(message, Request):
            return  # withdrawn, or given up: it crossed with the reply
        if isinstance(message, Failed):
            question.settle(from_failure(message.failure))
        elif not isinstance(message, ViewPart):
            question.settle(_whole(message, question.parts))
        elif len(question.parts) < MAX_PARTS:
            question.parts.append(message)
        else:
            question.settle(Internal("The broker's reply has too many parts."))

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> None:
        pass  # a caller gets bytes in replies

    # --- the rest ---

    async def reach(self, within: float) -> None:
        """Wait until the broker is there.  :raises Lost: after `within` seconds."""
        with anyio.move_on_after(within):
            await self._there.wait()
        if not self._there.is_set():
            raise Lost("The broker cannot be reached.", hint="Start it with `chappie-bridge up`.")

    async def _ask(self, request: CallerRequest, expected: type[R], wait: float = 0) -> R:
        if len(self._waiting) >= MAX_OUTSTANDING:
            raise Overloaded("Too many requests to the broker wait for their replies.")
        number = next(self._numbers)
        question = _Question(request, asyncio.get_running_loop().create_future())
        self._waiting[number] = question
        reply: Request | BridgeError = Internal()
        try:
            if self._link is not None:
                self._send(self._link, number, question)
            with anyio.move_on_after(wait + PATIENCE) as patience:
                reply = await question.reply
            if patience.cancelled_caught:
                raise _unanswered(question)
        finally:
            del self._waiting[number]
            if question.reply.cancelled():
                self._withdraw(number)
        if isinstance(reply, BridgeError):
            raise reply
        if not isinstance(reply, expected):
            raise Internal(f"The broker answered {type(request).__name__} with {type(reply).__name__}.")
        return reply

    def _send(self, link: Link, number: int, question: _Question) -> None:
        """:raises Overloaded: :raises TooLarge:"""
        link.send(question.request.model_copy(update={"request": number}))
        question.parts.clear()
        question.touched = question.touched or link.up

    def _withdraw(self, number: int) -> None:
        if self._link is not None:  # else the broker forgets the request with the link
            with suppress(Overloaded):
                self._link.send(Withdraw(request=number, stop=stops()))


def _is_safe(request: CallerRequest) -> bool:
    """May it be asked again although it may have been carried out?"""
    if isinstance(request, Submit):
        return request.operation is not None and not request.cancel
    repeatable = (
        ListSessions,
        ListTools,
        FetchHistory,
        FetchBytes,
        BrokerStatus,
        AssertAsked,
        Respond,
        ListDevices,
    )
    return isinstance(request, repeatable)


def _unanswered(question: _Question) -> BridgeError:
    if not question.touched:
        return Lost("The broker was not reached, so nothing ran. Send it again.")
    executed = Executed.NO if _is_safe(question.request) else Executed.UNKNOWN
    return Timeout("The broker did not answer in time.", executed=executed)


def _whole(reply: Request, parts: list[ViewPart]) -> Request:
    """The reply with the results that were sent ahead of it put back into their places."""
    if not parts or not isinstance(reply, (OperationView, SessionOpened, QuestionView)):
        return reply
    results: dict[int | None, list[ToolResult]] = {}
    for part in parts:
        results.setdefault(part.deferred, []).append(part.result)
    items = tuple(
        item.model_copy(update={"results": tuple(results[place])})
        if isinstance(item, DeferredItem) and place in results
        else item
        for place, item in enumerate(reply.companions.items)
    )
    changes: dict[str, object] = {"companions": reply.companions.model_copy(update={"items": items})}
    if None in results:
        changes["results"] = tuple(results[None])
    return reply.model_copy(update=changes)
