"""The local tools: one table for listing and for running.  Talks to nobody but the Switchboard."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, SkipValidation, WithJsonSchema
from pydantic.alias_generators import to_camel

from chappie_bridge.codec.base64_batch import MAX_NAME, check_calls
from chappie_bridge.codec.schema import flat_schema
from chappie_bridge.wire.batch import OPEN
from chappie_bridge.wire.blocks import Content
from chappie_bridge.wire.errors import BadArguments, NoSession
from chappie_bridge.wire.ids import MAX_ID, EntryId, OperationId, ReceiptId, SessionId
from chappie_bridge.wire.ports import Switchboard
from chappie_bridge.wire.requests import (
    Chat,
    FetchHistory,
    ListSessions,
    ListTools,
    OperationView,
    Submit,
    Transfer,
)
from chappie_bridge.wire.values import MAX_CALLS, MAX_FILES, Caller, HistoryRange, NewCall, RemotePaths

from . import replies
from .replies import Reply
from .which import Found
from .whole import whole

PATIENCE = 40.0
"""Seconds that a tool waits for an outcome unless it is told otherwise."""

MAX_WAIT = 3600.0

ROUND = 45.0
"""Seconds of one request to the broker; a longer wait joins the operation again."""

HISTORY_WAIT = 30.0


class Arguments(BaseModel):
    """What a tool takes.  Nothing is converted, nothing unknown is let through."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel)


Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
Short = Annotated[str, Field(min_length=1, max_length=1024)]
Target = Annotated[str, Field(min_length=1, max_length=MAX_ID, description="An id from `sessions`.")]
Paths = Annotated[list[str], Field(min_length=1, max_length=MAX_FILES)]
Wait = Annotated[float, Field(ge=0, le=MAX_WAIT, description="Seconds to wait for the outcome.")]
Calls = Annotated[
    JsonValue,
    SkipValidation,  # `check_calls` does it, with the path of the first fault
    WithJsonSchema(
        {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_CALLS,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME},
                    "arguments": {"type": "object", "additionalProperties": True},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            },
        }
    ),
]


class SessionsArguments(Arguments):
    session_id: Id | None = None
    agent: Short | None = None
    device: Short | None = None
    directory: Short | None = Field(None, description="Whole path components, such as `src/app`.")
    name: Short | None = None
    offline: bool = Field(False, description="Those that are not online, too.")
    limit: int = Field(50, ge=1, le=200)
    after: Id | None = Field(None, description="The last id of the page before.")


class RemoteToolsArguments(Arguments):
    session_id: Target
    names: list[Short] | None = Field(None, min_length=1, max_length=200)


class RemoteCallArguments(Arguments):
    session_id: Target
    calls: Calls = None
    operation: Id | None = Field(None, description="Join this operation instead and get its outcome.")
    cancel: bool = Field(False, description="Stop `operation`.")
    wait: Wait = PATIENCE


class RemoteChatArguments(Arguments):
    session_id: Target
    text: str = Field(min_length=1)
    reply_to: Id | None = Field(None, description="The `request` to answer.")
    final: bool = Field(True, description="false: progress only, that agent's turn goes on.")
    wait: Wait = PATIENCE


class HistoryArguments(Arguments):
    session_id: Id | None = Field(None, description="Default: your own transcript.")
    limit: int = Field(20, ge=1, le=200)
    before: Id | None = None
    after: Id | None = None
    wait: bool = Field(False, description="With `after`: wait up to 30 s for new entries.")
    entry: Id | None = Field(None, description="Read this one entry, or the result of this toolCallId.")
    offset: int | None = Field(None, ge=0, description="Byte of the entry's text to read from.")
    find: Short | None = Field(None, description="List the lines of `entry` that hold this text.")
    query: Short | None = Field(None, description="Search the transcript.")


class Remote(Arguments):
    session_id: Target
    paths: Paths


class TransferArguments(Arguments):
    paths: Paths = Field(description="Your own files: relative to your directory, absolute, or `~/`.")
    source: Remote | None = Field(None, alias="from", description="Fetch these files to `paths`.")
    sink: Remote | None = Field(None, alias="to", description="Send `paths` to these.")
    overwrite: bool = False
    wait: Wait = PATIENCE


class Turn(NamedTuple):
    """What one call has at hand.  `carry` is told of each receipt whose reply is about to be given."""

    switchboard: Switchboard
    me: Found
    carry: Callable[[ReceiptId], None]

    def caller(self) -> Caller:
        """:raises NoSession: nobody knows who asks; it could neither be shown there nor be answered later."""
        if self.me.session is None:
            raise NoSession(
                f"It is not known which session you are. {self.me.why}",
                hint="Select the model `chappie` in your program; `sessions` lists what is there.",
            )
        return Caller(principal="owner", source="session", value=self.me.session)


class Outcome(NamedTuple):
    """`content` is whole."""

    content: Content
    is_error: bool


A = TypeVar("A", bound=Arguments)


@dataclass(frozen=True)
class LocalTool(Generic[A]):
    """`description` says when to use it, for a model.  The hints are true."""

    name: str
    title: str
    description: str
    read_only: bool
    destructive: bool
    arguments: type[A]
    answer: Callable[[Turn, A], Awaitable[Reply]]

    async def run(self, turn: Turn, given: A) -> Outcome:
        """:raises BridgeError:"""
        reply = await self.answer(turn, given)
        caller = turn.caller() if turn.me.session is not None else Caller(principal="owner", source="none")
        return Outcome(await whole(reply.parts, turn.switchboard, caller), reply.is_error)

    def parameters(self) -> dict[str, JsonValue]:
        return flat_schema(self.arguments)


async def _sessions(turn: Turn, given: SessionsArguments) -> Reply:
    known = turn.me.session is not None
    request = ListSessions(
        caller=turn.caller() if known else Caller(principal="owner", source="none"),
        session=_session(given.session_id),
        agent=given.agent,
        device=given.device,
        directory=given.directory,
        name=given.name,
        online=None if given.offline else True,
        limit=given.limit,
        after=_session(given.after),
    )
    return replies.sessions(await turn.switchboard.sessions(request), turn.me)


async def _tools(turn: Turn, given: RemoteToolsArguments) -> Reply:
    names = None if given.names is None else tuple(given.names)
    request = ListTools(caller=turn.caller(), session=SessionId(given.session_id), names=names)
    return replies.tools(await turn.switchboard.tools(request))


async def _call(turn: Turn, given: RemoteCallArguments) -> Reply:
    if (given.calls is None) == (given.operation is None):
        raise BadArguments("Give exactly one of `calls` and `operation`.")
    if given.cancel and given.operation is None:
        raise BadArguments("`cancel` needs `operation`: which one to stop.")
    calls: tuple[NewCall, ...] | None = None if given.calls is None else check_calls(given.calls)
    request = Submit(
        caller=turn.caller(),
        session=SessionId(given.session_id),
        calls=calls,
        operation=None if given.operation is None else OperationId(given.operation),
        cancel=given.cancel,
        wait=min(given.wait, ROUND),
    )
    return await _followed(turn, await turn.switchboard.call(request), given.wait)


async def _chat(turn: Turn, given: RemoteChatArguments) -> Reply:
    request = Chat(
        caller=turn.caller(),
        session=SessionId(given.session_id),
        text=given.text,
        reply_to=given.reply_to,
        final=given.final,
        wait=min(given.wait, ROUND),
    )
    return await _followed(turn, await turn.switchboard.chat(request), given.wait)


async def _history(turn: Turn, given: HistoryArguments) -> Reply:
    if given.entry is None and (given.offset is not None or given.find is not None):
        raise BadArguments("`offset` and `find` need `entry`: which one to read.")
    waits = given.wait and given.after is not None and given.before is None
    wanted = HistoryRange(
        limit=given.limit,
        before=_entry(given.before),
        after=_entry(given.after),
        wait=HISTORY_WAIT if waits else 0,
        query=given.query,
        entry=_entry(given.entry),
        offset=given.offset,
        find=given.find,
    )
    caller = turn.caller()
    session = SessionId(given.session_id or caller.value)
    view = await turn.switchboard.history(FetchHistory(caller=caller, session=session, range=wanted))
    return replies.history(view)


async def _transfer(turn: Turn, given: TransferArguments) -> Reply:
    if (given.source is None) == (given.sink is None):
        raise BadArguments("Give exactly one of `from` and `to`.")
    caller = turn.caller()
    request = Transfer(
        caller=caller,
        session=SessionId(caller.value),
        paths=tuple(given.paths),
        source=_remote(given.source),
        sink=_remote(given.sink),
        overwrite=given.overwrite,
        wait=min(given.wait, ROUND),
    )
    return await _followed(turn, await turn.switchboard.transfer(request), given.wait)


async def _followed(turn: Turn, view: OperationView, wait: float) -> Reply:
    """The operation at its end, at somebody's turn, or after `wait` seconds, in as many requests."""
    end = monotonic() + wait - min(wait, ROUND)
    while view.status in OPEN and not view.needs and (left := end - monotonic()) > 0:
        if (receipt := view.companions.receipt) is not None:
            turn.switchboard.told(receipt, sent=False)  # this view is not shown; what rode along comes again
        request = Submit(caller=turn.caller(), operation=view.operation, wait=min(left, ROUND))
        view = await turn.switchboard.call(request)
    if view.companions.receipt is not None:
        turn.carry(view.companions.receipt)
    return replies.operation(view)


def _session(value: str | None) -> SessionId | None:
    return None if value is None else SessionId(value)


def _entry(value: str | None) -> EntryId | None:
    return None if value is None else EntryId(value)


def _remote(given: Remote | None) -> RemotePaths | None:
    if given is None:
        return None
    return RemotePaths(session=SessionId(given.session_id), paths=tuple(given.paths))


_TABLE: tuple[LocalTool[Any], ...] = (
    LocalTool(
        name="sessions",
        title="Sessions",
        description=(
            "Find other agent sessions, on this machine or another, by agent, device, directory or name."
            " `self` is your own. Names are what their owners chose; go by the ids."
        ),
        read_only=True,
        destructive=False,
        arguments=SessionsArguments,
        answer=_sessions,
    ),
    LocalTool(
        name="remote_tools",
        title="Tools of another session",
        description=(
            "Read the native tool definitions and skills of another session before `remote_call`. When it"
            " returns `globalAgents.path`, read that file there for the target's instructions."
        ),
        read_only=True,
        destructive=False,
        arguments=RemoteToolsArguments,
        answer=_tools,
    ),
    LocalTool(
        name="remote_call",
        title="Run tools in another session",
        description=(
            "Run one batch of native tools in another session: `calls` with the names and arguments that"
            " `remote_tools` gives. Results come whole, in request order. `status` `running`: it goes on;"
            " pass `operation` to wait for it, or get the outcome with a later result."
        ),
        read_only=False,
        destructive=True,
        arguments=RemoteCallArguments,
        answer=_call,
    ),
    LocalTool(
        name="remote_chat",
        title="Message to another session",
        description=(
            "Send an assistant message to another session, where it is shown as yours, or with `replyTo`"
            " answer a model `request` that a result showed."
        ),
        read_only=False,
        destructive=False,
        arguments=RemoteChatArguments,
        answer=_chat,
    ),
    LocalTool(
        name="history",
        title="Transcript",
        description=(
            "Read your own transcript, or with `sessionId` another session's: the latest entries, `before` or"
            " `after` an entry id, one `entry`, or by search. With `after` and `wait:true` it follows work."
        ),
        read_only=True,
        destructive=False,
        arguments=HistoryArguments,
        answer=_history,
    ),
    LocalTool(
        name="transfer",
        title="Move files",
        description=(
            "Copy files between your device and another session's: `paths` are yours, paired by position with"
            " those of `from` (fetch) or `to` (send). Parents are created; `overwrite:true` replaces."
        ),
        read_only=False,
        destructive=True,
        arguments=TransferArguments,
        answer=_transfer,
    ),
)


def offered(*, everything: bool) -> dict[str, LocalTool[Any]]:
    """The tools by name: all of them, or `transfer` alone."""
    return {tool.name: tool for tool in _TABLE if everything or tool.name == "transfer"}
