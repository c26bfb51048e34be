"""OUR format: what brokers and agents say to one another.  Pure data; `table.py` lists every message."""

from typing import Literal

from pydantic import Field

from .blocks import Content, Value
from .errors import Executed, Failure
from .ids import EntryId, InputId, OperationId, SessionId
from .values import (
    MAX_APPROVALS,
    ApprovalAsked,
    ApprovalScope,
    Entry,
    EntryText,
    HistoryRange,
    Input,
    Match,
    ModelRequest,
    Need,
    Origin,
    SessionInfo,
    Skill,
    ToolCall,
    ToolDefinition,
    ToolResult,
)

MAX_MESSAGE = 1024 * 1024
"""Bytes of one message as sent.  Larger content is spilled at the agent or pulled in chunks."""


class Message(Value):
    """A member of the union; `type` tells which.  Unknown keys are ignored."""


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


class Residence(Message):
    """This agent process starts sessions of `agent` in directories inside `roots`, which its owner allowed.
    `home` is what `~/` means there."""

    type: Literal["residence"] = "residence"
    agent: str
    roots: tuple[str, ...]
    home: str


class StartSession(Request):
    """Open a new session in `directory`; `failed` when it is outside the roots or not there.  It is
    never made."""

    type: Literal["start_session"] = "start_session"
    directory: str


class SessionStarted(Request):
    """Told before the session registers."""

    type: Literal["session_started"] = "session_started"
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


class ApprovalsWaiting(Message):
    """All that waits for the owner of the device at this session, oldest first; again with each change."""

    type: Literal["approvals_waiting"] = "approvals_waiting"
    session: SessionId
    approvals: tuple[ApprovalAsked, ...] = Field(max_length=MAX_APPROVALS)


class Decide(Request):
    """The owner's answer to an approval, given elsewhere: `by` says where."""

    type: Literal["decide"] = "decide"
    session: SessionId
    approval: str
    allowed: bool
    scope: ApprovalScope
    by: str


class Decided(Request):
    """The answer that counts: the first one, and where it was given."""

    type: Literal["decided"] = "decided"
    allowed: bool
    scope: ApprovalScope
    by: str


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


class Admit(Request):
    """May this session do that here?  `done`, once the device's owner allows it, or `failed`; `what` is for a
    person.  Asked before anything of another session's reaches this one."""

    type: Literal["admit"] = "admit"
    session: SessionId
    origin: Origin
    what: str


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
    """The reply to `request` is wanted no more; with `stop`, neither is what it started."""

    type: Literal["withdraw"] = "withdraw"
    request: int
    stop: bool = False


class Pull(Request):
    """Send `length` bytes from `offset` of a source as chunks on `stream`; asking is the credit.

    `source`: `spill:<path>` for a spilled block of this session, `image:<sha256>` for an image of its
    results, `file:<uuid>` for an offered file, or what `source_opened` named.
    """

    type: Literal["pull"] = "pull"
    session: SessionId
    stream: int
    source: str
    offset: int = Field(ge=0)
    length: int = Field(gt=0)


class Pulled(Request):
    """All chunks of a pull are sent.  `size` of the whole source; `end` is the next offset; `sha256` of
    the whole comes with its last byte, when a transfer's source was pulled in order."""

    type: Literal["pulled"] = "pulled"
    stream: int
    end: int
    size: int
    sha256: str | None = None


class Failed(Request):
    """The reply to any request that could not be fulfilled."""

    type: Literal["failed"] = "failed"
    failure: Failure


class Done(Request):
    """The reply to a request that has nothing to say."""

    type: Literal["done"] = "done"
