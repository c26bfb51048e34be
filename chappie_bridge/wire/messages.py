"""OUR format: every message of the link.  Pure data.

Direction: `agent` to broker, `broker` to agent, `caller` (a shell, a stdio face, a local tool) to
broker, `reply` to a caller.  The table MESSAGES at the end says for each message who sends it, what
answers it, and what keeps its order; a test holds table, union and schema.json together.
"""

from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from .batch import Status
from .blocks import Content, Value
from .errors import Executed, Failure
from .ids import CallId, EntryId, InputId, OperationId, ReceiptId, SessionId

MAX_CALLS = 64
"""Calls in one batch."""

MAX_MESSAGE = 1024 * 1024
"""Bytes of one message as sent.  Larger content is spilled at the agent or pulled in chunks."""


# --- values -------------------------------------------------------------------------------------


class ToolCall(Value):
    """One call of a batch.  `arguments` fit the tool's own schema; the agent checks them."""

    id: CallId
    name: str
    arguments: dict[str, JsonValue]


class ToolResult(Value):
    """What one tool gave back; `is_error` is the tool's own error, never ours."""

    call: CallId
    name: str
    is_error: bool
    duration_ms: int
    content: Content


class ToolDefinition(Value):
    """A native tool.  `parameters` is its JSON Schema as the agent gives it."""

    name: str
    description: str
    parameters: dict[str, JsonValue]


class Skill(Value):
    name: str
    description: str
    path: str | None = None


Activity = Literal["ready", "executing", "asking", "requesting", "idle"]


class SessionInfo(Value):
    """What an agent says about its session.  `device` is the device's display name."""

    id: SessionId
    agent: str
    device: str
    cwd: str
    model: str | None = None
    name: str | None = None
    parent: SessionId | None = None
    activity: Activity = "ready"


class SessionRow(Value):
    """A session as the directory lists it.  `last_seen` is ISO 8601 UTC with milliseconds."""

    id: SessionId
    agent: str
    device: str
    cwd: str
    status: Literal["ready", "executing", "asking", "requesting", "idle", "adrift", "offline"]
    binding_count: int
    last_seen: str
    model: str | None = None
    name: str | None = None
    parent: SessionId | None = None


class Origin(Value):
    """Who asked for an operation; it travels with it, so a broker without memory can still deliver.
    `label` is for people; `principal` is the credential that asked, as the broker knew it."""

    kind: Literal["conversation", "session", "shell"]
    id: str
    label: str
    principal: str = "owner"


class Caller(Value):
    """Who sends a request, as the face knows it.  Never authentication: `principal` comes from that.

    `value` is the raw conversation value of `source`; only its keyed hash is stored.
    """

    principal: str
    source: Literal["openai", "header", "stdio", "session", "shell", "none"]
    value: str = ""
    label: str = ""


class Need(Value):
    """What an operation waits for: a person or a sub-agent must act."""

    kind: Literal["approval", "prompt", "subagent"]
    session: SessionId
    what: str


class Input(Value):
    """Text and images that a person typed at the agent."""

    id: InputId
    at: str
    content: Content


class ModelRequest(Value):
    """Text that the agent program wants from its model: a summary, a title."""

    id: str
    kind: str
    instructions: str
    content: Content


class Entry(Value):
    """One entry of a transcript: native id, recorded time (ISO 8601 UTC, milliseconds).

    `parent` is the entry before it on its branch.  `call` joins a tool call with its result.
    """

    id: EntryId
    at: str
    kind: Literal["user", "assistant", "call", "result", "summary", "notice"]
    content: Content = ()
    parent: EntryId | None = None
    operation: OperationId | None = None
    origin: Origin | None = None
    call: CallId | None = None
    name: str | None = None
    arguments: dict[str, JsonValue] | None = None
    is_error: bool | None = None
    duration_ms: int | None = None
    final: bool | None = None


class HistoryRange(Value):
    """Which entries.  Named entries are excluded.  `wait` in seconds; 0 never waits."""

    limit: int = Field(20, ge=1, le=200)
    before: EntryId | None = None
    after: EntryId | None = None
    wait: float = Field(0, ge=0, le=30)
    query: str | None = None
    entry: EntryId | None = None
    offset: int | None = Field(None, ge=0)
    find: str | None = None
    observer: bool = False


class EntryText(Value):
    """A stretch of one entry's text: byte offsets into its UTF-8 form; `sha256` of all of it."""

    entry: EntryId
    offset: int
    next_offset: int | None = None
    total: int
    sha256: str
    text: str
    lossy: bool = False


class Match(Value):
    """A line found in an entry: byte offset of the line's start."""

    offset: int
    line: str


class Pending(Value):
    """What waits to be read or answered in a session, as counts."""

    inputs: int = 0
    results: int = 0
    requests: int = 0
    answers: int = 0
    approvals: int = 0


class SessionHead(Value):
    """The target that really ran something; the first block of each result names it."""

    session: SessionId
    device: str
    cwd: str


class QueuePlace(Value):
    """`position` counts from 1; `behind` is the operation that holds the session."""

    position: int
    behind: OperationId | None = None


class Initialization(Value):
    """How a conversation takes part in a session (SPEC §2)."""

    session: SessionId
    instructions: str
    observer: bool = False


# --- messages -----------------------------------------------------------------------------------


class Message(BaseModel):
    """A member of the union; `type` tells which.  Unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Request(Message):
    """A message that is answered: the reply repeats `request`, unique to its sender's instance."""

    request: int = 0


class Register(Request):
    """An agent's session is there.  `known` are the operations whose outcome the agent still knows
    (running now, or kept in its journal); any other that we believed to run was interrupted."""

    type: Literal["register"] = "register"
    session: SessionInfo
    known: tuple[OperationId, ...] = ()


class Registered(Request):
    type: Literal["registered"] = "registered"
    session: SessionId


class SessionChanged(Message):
    """Name, model, directory or activity changed."""

    type: Literal["session_changed"] = "session_changed"
    session: SessionInfo


class SessionEnded(Message):
    type: Literal["session_ended"] = "session_ended"
    session: SessionId


class RunBatch(Message):
    """Run these calls as one native batch.  Idempotent by `operation`: a repeat never runs again."""

    type: Literal["run_batch"] = "run_batch"
    operation: OperationId
    session: SessionId
    origin: Origin
    calls: tuple[ToolCall, ...]


class PostChat(Message):
    """An assistant message.  `final` ends the agent's turn where it can tell the two apart."""

    type: Literal["post_chat"] = "post_chat"
    operation: OperationId
    session: SessionId
    origin: Origin
    text: str
    reply_to: str | None = None
    final: bool = True


class Cancel(Message):
    type: Literal["cancel"] = "cancel"
    operation: OperationId
    session: SessionId
    reason: str


class Asking(Message):
    """The operation waits for somebody; empty `needs`: it goes on."""

    type: Literal["asking"] = "asking"
    operation: OperationId
    session: SessionId
    needs: tuple[Need, ...]


class CallResult(Message):
    """One finished call of a batch, `index` counting from 0 in request order."""

    type: Literal["call_result"] = "call_result"
    operation: OperationId
    session: SessionId
    index: int
    result: ToolResult


class Finished(Message):
    """The end of an operation; its call results came before it.  `error` when the agent refused it
    whole (then nothing ran) or could not go on; `interrupted` when the agent's process died in the
    middle and its successor found the beginning in the journal.  `entry` is the chat message's entry."""

    type: Literal["finished"] = "finished"
    operation: OperationId
    session: SessionId
    origin: Origin
    kind: Literal["batch", "chat", "transfer"]
    status: Literal["done", "failed", "cancelled", "interrupted"]
    executed: Executed
    cwd: str
    count: int = 0
    error: Failure | None = None
    entry: EntryId | None = None


class Recall(Request):
    """Send an operation's outcome again from the journal: its call results, then `finished`, then
    `done`; `failed` with `unknown_operation` when the journal has it no more."""

    type: Literal["recall"] = "recall"
    session: SessionId
    operation: OperationId


class InputOffered(Message):
    """A person typed something.  The agent keeps it until it is settled."""

    type: Literal["input_offered"] = "input_offered"
    session: SessionId
    input: Input


class RequestOpened(Message):
    """The agent program wants text from its model; nothing else runs until it is answered."""

    type: Literal["request_opened"] = "request_opened"
    session: SessionId
    request: ModelRequest


class RequestEnded(Message):
    type: Literal["request_ended"] = "request_ended"
    session: SessionId
    request: str


class Settled(Message):
    """These arrived at their conversation for certain; the agent may mark them, retention deletes."""

    type: Literal["settled"] = "settled"
    session: SessionId
    operations: tuple[OperationId, ...] = ()
    inputs: tuple[InputId, ...] = ()


class Notice(Message):
    """A line for the person at the agent: who joined, left, read."""

    type: Literal["notice"] = "notice"
    session: SessionId
    text: str


class Typed(Request):
    """Somebody at a shell types input to a session, as if at the agent's own prompt."""

    type: Literal["typed"] = "typed"
    session: SessionId
    content: Content


class Describe(Request):
    """Ask for the session's native tools (all, or `names`), skills and instruction file."""

    type: Literal["describe"] = "describe"
    session: SessionId
    names: tuple[str, ...] | None = None


class Description(Request):
    """`unknown` are the asked names that the agent has not."""

    type: Literal["description"] = "description"
    session: SessionId
    tools: tuple[ToolDefinition, ...]
    skills: tuple[Skill, ...] = ()
    global_agents: str | None = None
    unknown: tuple[str, ...] = ()


class ReadHistory(Request):
    type: Literal["read_history"] = "read_history"
    session: SessionId
    range: HistoryRange
    reader: str = ""


class History(Request):
    """Entries in transcript order, or one entry's `text`, or its `matches`."""

    type: Literal["history"] = "history"
    session: SessionId
    cwd: str
    entries: tuple[Entry, ...] = ()
    has_more: bool = False
    branch_changed: bool = False
    text: EntryText | None = None
    matches: tuple[Match, ...] | None = None


class Withdraw(Message):
    """The reply to `request` is wanted no more."""

    type: Literal["withdraw"] = "withdraw"
    request: int


class Pull(Request):
    """Send `length` bytes from `offset` of a source as chunks on `stream`; asking is the credit.

    `source`: `spill:<path>` for a spilled block of this session; transfers add their own.
    """

    type: Literal["pull"] = "pull"
    session: SessionId
    stream: int
    source: str
    offset: int = Field(ge=0)
    length: int = Field(gt=0)


class Pulled(Request):
    """All chunks of a pull are sent.  `size` of the whole source; `end` is the next offset."""

    type: Literal["pulled"] = "pulled"
    stream: int
    end: int
    size: int


class Failed(Request):
    """The reply to any request that could not be fulfilled."""

    type: Literal["failed"] = "failed"
    failure: Failure


class Done(Request):
    """The reply to a request that has nothing to say."""

    type: Literal["done"] = "done"


# --- what callers ask ---------------------------------------------------------------------------


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
    limit: int = Field(50, ge=1, le=200)
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
    wait: float = Field(40, ge=0, le=50)


class SessionOpened(Request):
    type: Literal["session_opened"] = "session_opened"
    selection: Literal["explicit", "existing", "automatic", "created"]
    bound: bool
    initialization: Initialization
    session: SessionRow
    tools: tuple[ToolDefinition, ...]
    skills: tuple[Skill, ...] = ()
    global_agents: str | None = None
    companions: "Companions"


class ListTools(CallerRequest):
    type: Literal["list_tools"] = "list_tools"
    session: SessionId | None = None
    names: tuple[str, ...] | None = None
    wait: float = Field(40, ge=0, le=50)


class ToolList(Request):
    type: Literal["tool_list"] = "tool_list"
    session: SessionRow
    tools: tuple[ToolDefinition, ...]
    skills: tuple[Skill, ...] = ()
    global_agents: str | None = None
    unknown: tuple[str, ...] = ()
    pending: Pending


class NewCall(Value):
    """A call as a client sends it; the bridge adds the id."""

    name: str
    arguments: dict[str, JsonValue]


class Submit(CallerRequest):
    """`call`: exactly one of `calls` and `operation`.  `replaced` counts lone surrogates made U+FFFD."""

    type: Literal["submit"] = "submit"
    session: SessionId | None = None
    calls: tuple[NewCall, ...] | None = None
    operation: OperationId | None = None
    cancel: bool = False
    key: str | None = None
    tunnel_request: str | None = None
    wait: float = Field(40, ge=0, le=50)


class Chat(CallerRequest):
    type: Literal["chat"] = "chat"
    session: SessionId | None = None
    text: str
    reply_to: str | None = None
    final: bool = True
    wait: float = Field(40, ge=0, le=50)


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
    error: Failure | None = None
    needs: tuple[Need, ...] = ()
    queue: QueuePlace | None = None
    joined: bool = False
    again: bool = False
    initialization: Initialization | None = None
    entry: EntryId | None = None
    companions: "Companions"


class ViewPart(Request):
    """One tool result of a reply to a caller that would not fit one message: `deferred` counts from 0
    among the companions, or is null for the view's own results."""

    type: Literal["view_part"] = "view_part"
    deferred: int | None = None
    result: ToolResult


class FetchHistory(CallerRequest):
    type: Literal["fetch_history"] = "fetch_history"
    session: SessionId | None = None
    range: HistoryRange


class HistoryView(Request):
    type: Literal["history_view"] = "history_view"
    target: SessionHead
    pending: Pending
    page: History


class FetchBytes(CallerRequest):
    """Bytes of a spilled block, at most 1 MiB of Base64 a reply."""

    type: Literal["fetch_bytes"] = "fetch_bytes"
    session: SessionId
    source: str
    offset: int = Field(ge=0)
    length: int = Field(gt=0, le=512 * 1024)


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
    type: Literal["broker_status"] = "broker_status"


class StatusReport(Request):
    """The broker about itself, for `doctor`."""

    type: Literal["status_report"] = "status_report"
    version: str
    started: str
    sessions_online: int
    sessions_known: int
    bindings: int
    operations_open: int
    facts: dict[str, JsonValue] = {}


# --- what accompanies results (SPEC §3) ---------------------------------------------------------


class InputItem(Value):
    kind: Literal["input"] = "input"
    session: SessionId
    input: Input
    again: bool = False


class DeferredItem(Value):
    """The outcome of an operation that outlasted or lost its request."""

    kind: Literal["deferred"] = "deferred"
    operation: OperationId
    what: Literal["batch", "chat", "transfer"]
    target: SessionHead
    status: Status
    executed: Executed
    results: tuple[ToolResult, ...] = ()
    error: Failure | None = None
    again: bool = False


class RequestItem(Value):
    kind: Literal["request"] = "request"
    session: SessionId
    request: ModelRequest
    again: bool = False


Companion = Annotated[InputItem | DeferredItem | RequestItem, Field(discriminator="kind")]


class Companions(Value):
    """At most 8, oldest first; `more` are still waiting.  `receipt` names this offer to the gate."""

    receipt: ReceiptId | None = None
    items: tuple[Companion, ...] = ()
    more: int = 0


SessionOpened.model_rebuild()
OperationView.model_rebuild()


# --- the table ----------------------------------------------------------------------------------


class Row(NamedTuple):
    """One line of the table.  `reply` is the type that answers it (or `failed`); `order` the field that
    keeps messages of one value in their order; `since` the protocol version."""

    model: type[Message]
    sender: Literal["agent", "broker", "caller", "reply", "both"]
    reply: str | None
    order: str | None
    since: int


MESSAGES: dict[str, Row] = {
    "register": Row(Register, "agent", "registered", "session", 1),
    "registered": Row(Registered, "broker", None, None, 1),
    "session_changed": Row(SessionChanged, "agent", None, "session", 1),
    "session_ended": Row(SessionEnded, "agent", None, "session", 1),
    "run_batch": Row(RunBatch, "broker", "finished", "session", 1),
    "post_chat": Row(PostChat, "broker", "finished", "session", 1),
    "cancel": Row(Cancel, "broker", None, None, 1),
    "asking": Row(Asking, "agent", None, "operation", 1),
    "call_result": Row(CallResult, "agent", None, "operation", 1),
    "finished": Row(Finished, "agent", None, "operation", 1),
    "recall": Row(Recall, "broker", "done", None, 1),
    "input_offered": Row(InputOffered, "agent", None, "session", 1),
    "request_opened": Row(RequestOpened, "agent", None, "session", 1),
    "request_ended": Row(RequestEnded, "agent", None, "session", 1),
    "settled": Row(Settled, "broker", None, "session", 1),
    "notice": Row(Notice, "broker", None, "session", 1),
    "typed": Row(Typed, "broker", "done", "session", 1),
    "describe": Row(Describe, "broker", "description", None, 1),
    "description": Row(Description, "agent", None, None, 1),
    "read_history": Row(ReadHistory, "broker", "history", None, 1),
    "history": Row(History, "agent", None, None, 1),
    "withdraw": Row(Withdraw, "both", None, None, 1),
    "pull": Row(Pull, "broker", "pulled", None, 1),
    "pulled": Row(Pulled, "agent", None, None, 1),
    "failed": Row(Failed, "both", None, None, 1),
    "done": Row(Done, "both", None, None, 1),
    "list_sessions": Row(ListSessions, "caller", "session_list", None, 1),
    "session_list": Row(SessionList, "reply", None, None, 1),
    "open_session": Row(OpenSession, "caller", "session_opened", None, 1),
    "session_opened": Row(SessionOpened, "reply", None, None, 1),
    "list_tools": Row(ListTools, "caller", "tool_list", None, 1),
    "tool_list": Row(ToolList, "reply", None, None, 1),
    "submit": Row(Submit, "caller", "operation_view", "caller", 1),
    "chat": Row(Chat, "caller", "operation_view", "caller", 1),
    "operation_view": Row(OperationView, "reply", None, None, 1),
    "view_part": Row(ViewPart, "reply", None, "request", 1),
    "fetch_history": Row(FetchHistory, "caller", "history_view", None, 1),
    "history_view": Row(HistoryView, "reply", None, None, 1),
    "fetch_bytes": Row(FetchBytes, "caller", "bytes", None, 1),
    "bytes": Row(Bytes, "reply", None, None, 1),
    "type_input": Row(TypeInput, "caller", "done", "session", 1),
    "unbind": Row(Unbind, "caller", "unbound", None, 1),
    "unbound": Row(Unbound, "reply", None, None, 1),
    "receipt": Row(Receipt, "caller", None, None, 1),
    "broker_status": Row(BrokerStatus, "caller", "status_report", None, 1),
    "status_report": Row(StatusReport, "reply", None, None, 1),
}
