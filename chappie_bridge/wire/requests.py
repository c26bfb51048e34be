"""What callers (a face, a shell, a local tool) ask of the broker, and its replies.  Pure data."""

from typing import Literal

from pydantic import Field, JsonValue

from .batch import Status
from .blocks import Content, Value
from .errors import Executed, Failure
from .ids import EntryId, OperationId, QuestionId, ReceiptId, SessionId
from .messages import History, Message, Request
from .question import Answer, Asked, Question
from .values import (
    MAX_FILES,
    Attachment,
    Caller,
    Companions,
    FileReport,
    HistoryRange,
    Initialization,
    Need,
    NewCall,
    Pending,
    QueuePlace,
    RemotePaths,
    SessionHead,
    SessionRow,
    Skill,
    ToolDefinition,
    ToolResult,
)


class CallerRequest(Request):
    """`caller` says who asks.  A process at the unix socket speaks for itself; the broker checks that
    its role allows the source it names."""

    caller: Caller = Caller(principal="owner", source="none")


class ListSessions(CallerRequest):
    """Substrings ignore case; `directory` matches whole path components."""

    type: Literal["list_sessions"] = "list_sessions"
    session: SessionId | None = None
    agent: str | None = None
    device: str | None = None
    directory: str | None = None
    name: str | None = None
    online: bool | None = None
    limit: int = Field(default=50, ge=1, le=200)
    after: SessionId | None = None


class SessionList(Request):
    type: Literal["session_list"] = "session_list"
    binding: SessionId | None = None
    sessions: tuple[SessionRow, ...]
    has_more: bool
    pending: Pending | None = None


class OpenSession(CallerRequest):
    """`init`.  `wait` in seconds is the request's whole patience."""

    type: Literal["open_session"] = "open_session"
    session: SessionId | None = None
    directory: str | None = None
    agent: str | None = None
    create: bool = False
    tunnel_request: str | None = None
    wait: float = Field(default=40, ge=0, le=50)


class SessionOpened(Request):
    type: Literal["session_opened"] = "session_opened"
    selection: Literal["explicit", "existing", "automatic", "created"]
    bound: bool
    initialization: Initialization
    session: SessionRow
    tools: tuple[ToolDefinition, ...]
    skills: tuple[Skill, ...] = ()
    global_agents: str | None = None
    companions: Companions


class ListTools(CallerRequest):
    type: Literal["list_tools"] = "list_tools"
    session: SessionId | None = None
    names: tuple[str, ...] | None = None
    wait: float = Field(default=40, ge=0, le=50)


class ToolList(Request):
    type: Literal["tool_list"] = "tool_list"
    session: SessionRow
    tools: tuple[ToolDefinition, ...]
    skills: tuple[Skill, ...] = ()
    global_agents: str | None = None
    unknown: tuple[str, ...] = ()
    pending: Pending


class Submit(CallerRequest):
    """`call`: exactly one of `calls` and `operation`.  `replaced` counts lone surrogates made U+FFFD."""

    type: Literal["submit"] = "submit"
    session: SessionId | None = None
    calls: tuple[NewCall, ...] | None = None
    operation: OperationId | None = None
    cancel: bool = False
    key: str | None = None
    tunnel_request: str | None = None
    wait: float = Field(default=40, ge=0, le=50)


class Chat(CallerRequest):
    type: Literal["chat"] = "chat"
    session: SessionId | None = None
    text: str
    reply_to: str | None = None
    final: bool = True
    tunnel_request: str | None = None
    wait: float = Field(default=40, ge=0, le=50)


class Upload(Value):
    """A file that the caller itself sends, with `push`."""

    name: str
    size: int = Field(ge=0)


class Transfer(CallerRequest):
    """Files to `paths` of the session: from `attachments`, `uploads` or `source`; or from `paths` of it: to
    `sink`, or as references to be read later.  All pair by position; at most one of the four is given.

    `limit`: bytes above which a file is not offered as a reference; null for the caller's own disk.
    """

    type: Literal["transfer"] = "transfer"
    session: SessionId | None = None
    paths: tuple[str, ...] = Field(max_length=MAX_FILES)
    attachments: tuple[Attachment, ...] | None = None
    uploads: tuple[Upload, ...] | None = None
    source: RemotePaths | None = None
    sink: RemotePaths | None = None
    overwrite: bool = False
    limit: int | None = Field(default=None, ge=0)
    tunnel_request: str | None = None
    wait: float = Field(default=40, ge=0, le=50)


class Push(CallerRequest):
    """The next bytes of an upload, Base64.  `sha256` of the whole comes with the last; answered when there
    is room for more."""

    type: Literal["push"] = "push"
    operation: OperationId
    index: int = Field(ge=0)
    offset: int = Field(ge=0)
    data: str = Field(default="", max_length=768 * 1024)
    sha256: str | None = None


class Pushed(Request):
    """Bytes are wanted from `offset` (other than the end of what was sent after a link was lost);
    null: no more, see the operation."""

    type: Literal["pushed"] = "pushed"
    offset: int | None = None


class OperationView(Request):
    """An operation as its caller sees it now.  `results` are all there once `status` is final."""

    type: Literal["operation_view"] = "operation_view"
    operation: OperationId
    kind: Literal["batch", "chat", "transfer"]
    status: Status
    executed: Executed
    target: SessionHead
    seq: int
    results: tuple[ToolResult, ...] = ()
    files: tuple[FileReport, ...] = ()
    error: Failure | None = None
    needs: tuple[Need, ...] = ()
    queue: QueuePlace | None = None
    joined: bool = False
    again: bool = False
    initialization: Initialization | None = None
    entry: EntryId | None = None
    companions: Companions


class ViewPart(Request):
    """One tool result of a reply to a caller that would not fit one message: `deferred` counts from 0
    among the companions, or is null for the view's own results."""

    type: Literal["view_part"] = "view_part"
    deferred: int | None = None
    result: ToolResult


class Ask(CallerRequest):
    """A question to the person, saved before it is answered.  The same `tunnel_request` asks once."""

    type: Literal["ask"] = "ask"
    session: SessionId | None = None
    asked: Asked
    tunnel_request: str | None = None
    wait: float = Field(default=40, ge=0, le=50)


class AssertAsked(CallerRequest):
    """Wait up to `wait` seconds for the word that the question is shown; then it counts as skipped."""

    type: Literal["assert_asked"] = "assert_asked"
    question: QuestionId
    wait: float = Field(default=10, ge=0, le=50)


class Respond(CallerRequest):
    """What a question's page reports: that it is `loaded`, an `answer`, or nothing (to see how it stands).

    `revision` is the one that the person saw: when somebody else answered since, nothing is changed
    (`request_closed`).  Null: whatever was there."""

    type: Literal["respond"] = "respond"
    question: QuestionId
    loaded: bool = False
    answer: Answer | None = None
    revision: int | None = Field(default=None, ge=0)


class QuestionView(Request):
    """A question as its caller sees it now."""

    type: Literal["question_view"] = "question_view"
    question: Question
    companions: Companions = Companions()


class FetchHistory(CallerRequest):
    type: Literal["fetch_history"] = "fetch_history"
    session: SessionId | None = None
    range: HistoryRange


class HistoryView(Request):
    type: Literal["history_view"] = "history_view"
    target: SessionHead
    pending: Pending
    page: History
    capability: str | None = None


class FetchBytes(CallerRequest):
    """Bytes of a spilled block, at most 1 MiB of Base64 a reply; with `capability`, of an offered file or an
    image (`file:<uuid>`, `image:<sha256>`).  A person at a shell needs none."""

    type: Literal["fetch_bytes"] = "fetch_bytes"
    session: SessionId
    source: str
    offset: int = Field(ge=0)
    length: int = Field(gt=0, le=512 * 1024)
    capability: str | None = None


class Bytes(Request):
    """`data` is Base64; `size` of the whole source."""

    type: Literal["bytes"] = "bytes"
    data: str
    size: int


class TypeInput(CallerRequest):
    """`say`: input for a session, typed at a shell."""

    type: Literal["type_input"] = "type_input"
    session: SessionId
    content: Content


class Unbind(CallerRequest):
    """Forget which conversations have this session as their default."""

    type: Literal["unbind"] = "unbind"
    session: SessionId


class Unbound(Request):
    type: Literal["unbound"] = "unbound"
    count: int


class Receipt(Message):
    """The gate's word on a response: did its last byte leave towards a client that was there?"""

    type: Literal["receipt"] = "receipt"
    receipt: ReceiptId
    sent: bool


class BrokerStatus(CallerRequest):
    """`check`: read all of the registry and say in `facts` what is wrong with it."""

    type: Literal["broker_status"] = "broker_status"
    check: bool = False


class StatusReport(Request):
    """The broker about itself, for `doctor`."""

    type: Literal["status_report"] = "status_report"
    version: str
    started: str
    sessions_online: int
    sessions_known: int
    bindings: int
    operations_open: int
    facts: dict[str, JsonValue] = Field(default_factory=dict)
