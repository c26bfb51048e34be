"""What messages are made of: calls, results, sessions, entries, what accompanies results.  Pure data."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from .batch import Status
from .blocks import Content, ResourceLink, Value
from .errors import Executed, Failure
from .ids import CallId, ConversationId, EntryId, InputId, OperationId, ReceiptId, SessionId
from .question import Question
from .transfer import Move

MAX_CALLS = 64
"""Calls in one batch."""

MAX_APPROVALS = 64
"""Questions of one session that may wait for its owner at once."""

MAX_FILES = 64
"""Files in one transfer."""

MAX_CHAIN = 8
"""Sessions through which one request may come."""


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
"""What an agent says of its session."""

Standing = Literal["ready", "executing", "asking", "requesting", "idle", "adrift", "offline"]
"""The same as the broker tells it, who knows also when nobody is there."""


class SessionInfo(Value):
    """What an agent says about its session.  `device` is the device's display name; `pid` the process whose
    children work for it, on that device."""

    id: SessionId
    agent: str
    device: str
    cwd: str
    model: str | None = None
    name: str | None = None
    parent: SessionId | None = None
    activity: Activity = "ready"
    pid: int | None = None


class Moving(Value):
    """A transfer under way in a session: bytes so far of all its files; `size` null while not known."""

    operation: OperationId
    files: int
    moved: int
    size: int | None = None


class FileReport(Value):
    """One file of a transfer.  `path` as it was asked for; `written` where it lies now, `followed` where a
    link led; `restarted`: the source changed and it began again from zero."""

    path: str
    status: Move
    moved: int = 0
    size: int | None = None
    sha256: str | None = None
    written: str | None = None
    followed: str | None = None
    restarted: bool = False
    link: ResourceLink | None = None
    error: Failure | None = None


class RemotePaths(Value):
    """Files of another session, paired by position."""

    session: SessionId
    paths: tuple[str, ...]


class Attachment(Value):
    """A file that a client holds: its download address is good for a short while only."""

    download_url: str
    file_id: str
    mime_type: str | None = None
    file_name: str | None = None


class SessionRow(Value):
    """A session as the directory lists it.  `last_seen` is ISO 8601 UTC with milliseconds."""

    id: SessionId
    agent: str
    device: str
    cwd: str
    status: Standing
    binding_count: int
    last_seen: str
    model: str | None = None
    name: str | None = None
    parent: SessionId | None = None
    pid: int | None = None
    running: OperationId | None = None
    transfers: tuple[Moving, ...] = ()


class Origin(Value):
    """Who asked for an operation; it travels with it, so a broker without memory can still deliver.
    `label` is for people, of a session it comes from the directory; `principal` is the credential that asked,
    as the broker knew it.  `chain`: the sessions through which it came, the asking one last."""

    kind: Literal["conversation", "session", "shell"]
    id: str
    label: str
    principal: str = "owner"
    chain: tuple[SessionId, ...] = Field(default=(), max_length=MAX_CHAIN)

    @property
    def conversation(self) -> ConversationId | None:
        """None: no conversation asked."""
        return ConversationId(self.id) if self.kind == "conversation" else None


class Caller(Value):
    """Who sends a request, as the face knows it.  Never authentication: `principal` comes from that.

    `value` is the raw conversation value of `source`; only its keyed hash is stored.
    """

    principal: str
    source: Literal["openai", "header", "stdio", "session", "shell", "none"]
    value: str = ""
    label: str = ""
    credential: str = ""
    """Of several that one principal has, the one that was sent; empty: it has one only."""
    subject: str = ""
    """The person, as ChatGPT names them; only a keyed hash is stored."""


class Need(Value):
    """What an operation waits for: a person or a sub-agent must act."""

    kind: Literal["approval", "prompt", "subagent"]
    session: SessionId
    what: str


ApprovalScope = Literal["once", "conversation", "directory"]
"""How far an answer to an approval reaches."""


class ApprovalAsked(Value):
    """May `tool` do `what` at `path`?  `conversational`: an answer can hold for the whole conversation."""

    id: str
    tool: str
    path: str
    writing: bool
    what: str
    directory: str
    conversational: bool


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

    limit: int = Field(default=20, ge=1, le=200)
    before: EntryId | None = None
    after: EntryId | None = None
    wait: float = Field(default=0, ge=0, le=30)
    query: str | None = None
    entry: EntryId | None = None
    offset: int | None = Field(default=None, ge=0)
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


class NewCall(Value):
    """A call as a client sends it; the bridge adds the id."""

    name: str
    arguments: dict[str, JsonValue]


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
    files: tuple[FileReport, ...] = ()
    error: Failure | None = None
    again: bool = False


class RequestItem(Value):
    kind: Literal["request"] = "request"
    session: SessionId
    request: ModelRequest
    again: bool = False


class AnswerItem(Value):
    """A person's answer, its revision, or a skip; `question` as it stood then."""

    kind: Literal["answer"] = "answer"
    question: Question
    again: bool = False


Companion = Annotated[InputItem | DeferredItem | AnswerItem | RequestItem, Field(discriminator="kind")]


class Companions(Value):
    """At most 8, oldest first; `more` are still waiting.  `receipt` names this offer to the gate.

    `capability` is part of the address under which files and images, of the reply that these accompany and
    their own, can be read for 24 h; null when there are none."""

    receipt: ReceiptId | None = None
    capability: str | None = None
    items: tuple[Companion, ...] = ()
    more: int = 0
