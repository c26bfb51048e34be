"""The table of the union: who sends each message, what answers it, what keeps its order.

Direction: `agent` to broker, `broker` to agent, `caller` to broker, `reply` to a caller.  A test holds
table, union and schema.json together.
"""

from typing import Literal, NamedTuple

from .messages import (
    Asking,
    CallResult,
    Cancel,
    Describe,
    Description,
    Done,
    Failed,
    Finished,
    History,
    InputOffered,
    Message,
    Notice,
    PostChat,
    Pull,
    Pulled,
    ReadHistory,
    Recall,
    Register,
    Registered,
    RequestEnded,
    RequestOpened,
    RunBatch,
    SessionChanged,
    SessionEnded,
    Settled,
    Typed,
    Withdraw,
)
from .requests import (
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
    Receipt,
    SessionList,
    SessionOpened,
    StatusReport,
    Submit,
    ToolList,
    TypeInput,
    Unbind,
    Unbound,
    ViewPart,
)


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
