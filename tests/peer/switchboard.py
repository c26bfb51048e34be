"""A Switchboard and Office whose answers a test gives."""

from collections.abc import Awaitable, Callable
from typing import Any

from chappie_bridge.wire.errors import Unsupported
from chappie_bridge.wire.ids import ReceiptId
from chappie_bridge.wire.messages import Decided, Done
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
)


class ScriptedSwitchboard:
    """`answer` is asked for every request; `asked` and `receipts` are what came."""

    def __init__(self, answer: Callable[[CallerRequest], Awaitable[Any]] | None = None) -> None:
        self.asked: list[CallerRequest] = []
        self.receipts: list[tuple[ReceiptId, bool]] = []
        self._given = answer

    async def _answer(self, request: CallerRequest) -> Any:
        self.asked.append(request)
        if self._given is None:
            raise Unsupported
        return await self._given(request)

    async def sessions(self, request: ListSessions) -> SessionList:
        return await self._answer(request)

    async def init(self, request: OpenSession) -> SessionOpened:
        return await self._answer(request)

    async def tools(self, request: ListTools) -> ToolList:
        return await self._answer(request)

    async def call(self, request: Submit) -> OperationView:
        return await self._answer(request)

    async def chat(self, request: Chat) -> OperationView:
        return await self._answer(request)

    async def transfer(self, request: Transfer) -> OperationView:
        return await self._answer(request)

    async def push(self, request: Push) -> Pushed:
        return await self._answer(request)

    async def ask(self, request: Ask) -> QuestionView:
        return await self._answer(request)

    async def ask_assert(self, request: AssertAsked) -> QuestionView:
        return await self._answer(request)

    async def answer(self, request: Respond) -> QuestionView:
        return await self._answer(request)

    async def history(self, request: FetchHistory) -> HistoryView:
        return await self._answer(request)

    async def fetch(self, request: FetchBytes) -> Bytes:
        return await self._answer(request)

    async def say(self, request: TypeInput) -> Done:
        return await self._answer(request)

    async def unbind(self, request: Unbind) -> Unbound:
        return await self._answer(request)

    async def status(self, request: BrokerStatus) -> StatusReport:
        return await self._answer(request)

    async def make_code(self, request: MakeCode) -> CodeMade:
        return await self._answer(request)

    async def list_apps(self, request: ListApps) -> AppList:
        return await self._answer(request)

    async def revoke_app(self, request: RevokeApp) -> Done:
        return await self._answer(request)

    async def list_subjects(self, request: ListSubjects) -> SubjectList:
        return await self._answer(request)

    async def rule_subject(self, request: RuleSubject) -> Done:
        return await self._answer(request)

    async def redeem_code(self, request: RedeemCode) -> Done:
        return await self._answer(request)

    async def audit(self, request: ReadAudit) -> AuditPage:
        return await self._answer(request)

    async def measures(self, request: TakeMeasures) -> Measures:
        return await self._answer(request)

    async def operations(self, request: ListOperations) -> OperationList:
        return await self._answer(request)

    async def cancel(self, request: CancelOperation) -> Done:
        return await self._answer(request)

    async def approvals(self, request: ListApprovals) -> ApprovalList:
        return await self._answer(request)

    async def answer_approval(self, request: AnswerApproval) -> Decided:
        return await self._answer(request)

    async def questions(self, request: ListQuestions) -> QuestionList:
        return await self._answer(request)

    async def answer_question(self, request: AnswerQuestion) -> QuestionView:
        return await self._answer(request)

    async def change(self, request: AwaitChange) -> Changed:
        return await self._answer(request)

    async def pair(self, request: PairDevice) -> PairingMade:
        return await self._answer(request)

    async def devices(self, request: ListDevices) -> DeviceList:
        return await self._answer(request)

    async def revoke(self, request: RevokeDevice) -> Done:
        return await self._answer(request)

    def told(self, receipt: ReceiptId, *, sent: bool) -> None:
        self.receipts.append((receipt, sent))
