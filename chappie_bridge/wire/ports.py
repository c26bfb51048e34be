"""Where the strangers meet: faces call a Switchboard, broker and agents hold Links."""

from contextvars import ContextVar
from typing import Literal, NamedTuple, Protocol

from .access import App, Held, Tokens
from .ids import AppId, DeviceId, GrantId, InstanceId, ReceiptId
from .messages import Decided, Done, Message
from .overview import (
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
from .owner import (
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
from .requests import (
    Ask,
    AssertAsked,
    BrokerStatus,
    Bytes,
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


class Withdrawal:
    """How an asker leaves a request: said before it cancels the task, for a cancellation says nothing."""

    stop = False
    """Also what the request started is to end, as with `cancel`; else the asker may just be gone."""


WITHDRAWAL: ContextVar[Withdrawal | None] = ContextVar("withdrawal", default=None)
"""Set in the task of a request whose asker can say it."""


def stops() -> bool:
    """Does whoever cancels this task want an end of what it started?"""
    withdrawal = WITHDRAWAL.get()
    return withdrawal is not None and withdrawal.stop


class Switchboard(Protocol):
    """The broker as its callers see it, in process or over the link.  Every method raises BridgeError.

    A call that the caller cancels is withdrawn: queued work is `lost`, running work goes on, unless its
    `Withdrawal` says that it is to stop.
    """

    async def sessions(self, request: ListSessions) -> SessionList: ...
    async def init(self, request: OpenSession) -> SessionOpened: ...
    async def tools(self, request: ListTools) -> ToolList: ...
    async def call(self, request: Submit) -> OperationView: ...
    async def chat(self, request: Chat) -> OperationView: ...
    async def transfer(self, request: Transfer) -> OperationView: ...
    async def push(self, request: Push) -> Pushed: ...
    async def ask(self, request: Ask) -> QuestionView: ...
    async def ask_assert(self, request: AssertAsked) -> QuestionView: ...
    async def answer(self, request: Respond) -> QuestionView: ...
    async def history(self, request: FetchHistory) -> HistoryView: ...
    async def fetch(self, request: FetchBytes) -> Bytes: ...
    async def say(self, request: TypeInput) -> Done: ...
    async def unbind(self, request: Unbind) -> Unbound: ...
    async def status(self, request: BrokerStatus) -> StatusReport: ...

    def told(self, receipt: ReceiptId, *, sent: bool) -> None:
        """The gate's word on the response that carried `receipt`.  Repeats are ignored."""
        ...


class Office(Protocol):
    """What the owner alone may ask; whoever calls it answers for that.  Every method raises BridgeError."""

    async def make_code(self, request: MakeCode) -> CodeMade: ...
    async def redeem_code(self, request: RedeemCode) -> Done: ...
    async def operations(self, request: ListOperations) -> OperationList: ...
    async def cancel(self, request: CancelOperation) -> Done: ...
    async def approvals(self, request: ListApprovals) -> ApprovalList: ...
    async def answer_approval(self, request: AnswerApproval) -> Decided: ...
    async def questions(self, request: ListQuestions) -> QuestionList: ...
    async def answer_question(self, request: AnswerQuestion) -> QuestionView: ...
    async def change(self, request: AwaitChange) -> Changed: ...
    async def list_apps(self, request: ListApps) -> AppList: ...
    async def revoke_app(self, request: RevokeApp) -> Done: ...
    async def list_subjects(self, request: ListSubjects) -> SubjectList: ...
    async def rule_subject(self, request: RuleSubject) -> Done: ...
    async def audit(self, request: ReadAudit) -> AuditPage: ...
    async def measures(self, request: TakeMeasures) -> Measures: ...
    async def pair(self, request: PairDevice) -> PairingMade: ...
    async def devices(self, request: ListDevices) -> DeviceList: ...
    async def revoke(self, request: RevokeDevice) -> Done: ...


class Consents(Protocol):
    """Apps that the owner lets in, for a face in the broker's process.  Coroutines raise BridgeError."""

    def app(self, app: AppId) -> App | None: ...
    async def register(self, app: App) -> None:
        """Add an app, or change it.  :raises Overloaded: too many."""
        ...

    async def document(self, url: str) -> bytes:
        """The small document at an https address of the open internet.  :raises DownloadFailed: TooLarge"""
        ...

    async def consented(self, app: App, resource: str) -> Tokens:
        """The owner let `app` in, for `resource` only."""
        ...

    def bearer(self, token: str, resource: str) -> Held | None:
        """Who sends this access token, when it is good for `resource` now."""
        ...

    def stands(self, grant: GrantId) -> bool:
        """Has this consent not ended?"""
        ...

    async def refreshable(self, token: str) -> Held | None:
        """What a refresh token is good for.  One that was used up ends its consent."""
        ...

    async def rotated(self, token: str) -> Tokens:
        """New tokens for a refresh token, which is used up.  :raises Forbidden: it is not good."""
        ...

    async def revoke(self, token: str, app: AppId) -> None:
        """The app gives a token back; the consent goes with it.  Other tokens change nothing."""
        ...

    async def withdraw(self, grant: GrantId, why: str) -> None:
        """End a consent; a repeat says nothing."""
        ...


class Peer(NamedTuple):
    """Who is at the other end of a link, as the link's own authentication found out."""

    role: Literal["agent", "caller", "broker"]
    device: DeviceId
    instance: InstanceId
    name: str


class Link(Protocol):
    """One end of a connection to one instance of a peer.  Messages arrive in order, once each, over
    every reconnection; a peer that lost its memory is a new Link."""

    @property
    def peer(self) -> Peer: ...

    @property
    def up(self) -> bool:
        """Is there a socket now?"""
        ...

    def send(self, message: Message) -> None:
        """Hand over; returns at once, also while the socket is down (it is replayed).

        :raises Overloaded: when the peer has not acknowledged for too long and the buffer is full.
        :raises TooLarge: when the message does not fit the link."""
        ...

    async def send_chunk(self, stream: int, offset: int, data: bytes) -> None:
        """Send at most 64 KiB of a stream; returns when the socket took it.

        :raises Lost: when the link is down; chunks are not replayed, the puller asks again."""
        ...


class Attendant(Protocol):
    """What stands behind one end of links.  No method may block or raise; `received` is called once per
    message, in order."""

    def link_up(self, link: Link) -> None:
        """A peer without memory of us is there: a new Link."""
        ...

    def link_back(self, link: Link) -> None:
        """The same Link has a socket again; what was missed is being replayed."""
        ...

    def link_down(self, link: Link) -> None:
        """Its socket closed or two pings were missed.  It may come back."""
        ...

    def link_gone(self, link: Link) -> None:
        """It will not come back: replaced by a new instance, or away longer than the lease."""
        ...

    def received(self, link: Link, message: Message) -> None: ...

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> None: ...
