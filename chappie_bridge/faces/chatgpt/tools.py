"""The tools that a client sees: one table for listing and dispatch.  Talks to nobody but the Switchboard."""

from typing import Annotated, Any

from pydantic import Field, JsonValue, SkipValidation, WithJsonSchema

from chappie_bridge.codec.base64_batch import MAX_CALLS, MAX_NAME, check_calls, decode
from chappie_bridge.faces.chatgpt.exchange import tunnel_request
from chappie_bridge.faces.chatgpt.present import Presented
from chappie_bridge.faces.chatgpt.question import QUESTION_TOOLS
from chappie_bridge.faces.chatgpt.tool import Arguments, Id, Short, Target, Tool, Turn, Wait, session_id
from chappie_bridge.faces.chatgpt.transfer import TRANSFER
from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.ids import EntryId, OperationId
from chappie_bridge.wire.requests import Chat, FetchHistory, ListSessions, ListTools, OpenSession, Submit
from chappie_bridge.wire.values import HistoryRange, NewCall

HISTORY_WAIT = 30.0
"""Seconds that `history {wait:true}` waits for news."""

MAX_KEY = 256
"""Characters of a `key`."""


Calls = Annotated[
    JsonValue,
    SkipValidation,  # `check_calls` does it, with the path of the first fault
    WithJsonSchema(
        {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_CALLS,
            "description": "Native calls, run as one batch in this order of results.",
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
    online: bool | None = None
    limit: int = Field(50, ge=1, le=200)
    after: Id | None = Field(None, description="The last id of the page before.")


class InitArguments(Arguments):
    session_id: Id | None = Field(None, description="Resume the task of this session.")
    directory: Short | None = None
    agent: Short | None = None
    create: bool = Field(False, description="Start an agent in `directory` if its owner allows that.")


class ToolsArguments(Arguments):
    names: list[Short] | None = Field(None, min_length=1, max_length=200)
    session_id: Target | None = None


class CallArguments(Arguments):
    calls: Calls = None
    base64: str | None = Field(
        None,
        min_length=1,
        description="The `calls` array as UTF-8 JSON in Base64, for exact quotes and Unicode.",
    )
    operation: Id | None = Field(None, description="Join this operation and get its result.")
    cancel: bool = Field(False, description="Stop `operation`.")
    wait: Wait | None = None
    key: Annotated[str, Field(min_length=1, max_length=MAX_KEY)] | None = Field(
        None, description="Makes a repeat safe: the same key and calls never run twice in 24 hours."
    )
    session_id: Target | None = None


class ChatArguments(Arguments):
    text: str = Field(min_length=1)
    reply_to: Id | None = Field(None, description="The `request` to answer.")
    final: bool = Field(True, description="false: progress only, the agent's turn goes on.")
    wait: Wait | None = None
    session_id: Target | None = None


class HistoryArguments(Arguments):
    limit: int = Field(20, ge=1, le=200)
    before: Id | None = None
    after: Id | None = None
    wait: bool = Field(False, description="With `after`: wait up to 30 s for new entries.")
    observer: bool = False
    entry: Id | None = Field(None, description="Read this one entry, or the result of this toolCallId.")
    offset: int | None = Field(None, ge=0, description="Byte of the entry's text to read from.")
    find: Short | None = Field(None, description="List the lines of `entry` that hold this text.")
    query: Short | None = Field(None, description="Search the transcript.")
    session_id: Target | None = None


async def _sessions(turn: Turn, given: SessionsArguments) -> Presented:
    request = ListSessions(
        caller=turn.caller,
        session=session_id(given.session_id),
        agent=given.agent,
        device=given.device,
        directory=given.directory,
        name=given.name,
        online=given.online,
        limit=given.limit,
        after=session_id(given.after),
    )
    return await turn.present.sessions(await turn.switchboard.sessions(request), turn.exchange)


async def _init(turn: Turn, given: InitArguments) -> Presented:
    if given.create and given.directory is None:
        raise BadArguments("`create` needs `directory`: where the new agent is to work.")
    opened = await turn.switchboard.init(
        OpenSession(
            caller=turn.caller,
            session=session_id(given.session_id),
            directory=given.directory,
            agent=given.agent,
            create=given.create,
            tunnel_request=tunnel_request(turn.meta),
            wait=turn.exchange.left(turn.patience),
        )
    )
    turn.exchange.carry(opened.companions.receipt)
    return await turn.present.opened(opened, turn.exchange)


async def _tools(turn: Turn, given: ToolsArguments) -> Presented:
    request = ListTools(
        caller=turn.caller,
        session=session_id(given.session_id),
        names=None if given.names is None else tuple(given.names),
        wait=turn.exchange.left(turn.patience),
    )
    return await turn.present.tools(await turn.switchboard.tools(request), turn.exchange)


async def _call(turn: Turn, given: CallArguments) -> Presented:
    ways = [given.calls is not None, given.base64 is not None, given.operation is not None]
    if sum(ways) != 1:
        raise BadArguments("Give exactly one of `calls`, `base64` and `operation`.")
    if given.cancel and given.operation is None:
        raise BadArguments("`cancel` needs `operation`: which one to stop.")
    if given.key is not None and given.operation is not None:
        raise BadArguments("`key` belongs to new calls; `operation` names old ones already.")
    calls: tuple[NewCall, ...] | None = None
    if given.base64 is not None:
        decoded = decode(given.base64)
        calls = decoded.calls
        turn.exchange.replaced += decoded.replaced
    elif given.calls is not None:
        calls = check_calls(given.calls)
    view = await turn.switchboard.call(
        Submit(
            caller=turn.caller,
            session=session_id(given.session_id),
            calls=calls,
            operation=None if given.operation is None else OperationId(given.operation),
            cancel=given.cancel,
            key=given.key,
            tunnel_request=tunnel_request(turn.meta),
            wait=turn.exchange.left(turn.patience if given.wait is None else given.wait),
        )
    )
    turn.exchange.carry(view.companions.receipt)
    return await turn.present.operation(view, turn.exchange)


async def _chat(turn: Turn, given: ChatArguments) -> Presented:
    view = await turn.switchboard.chat(
        Chat(
            caller=turn.caller,
            session=session_id(given.session_id),
            text=given.text,
            reply_to=given.reply_to,
            final=given.final,
            tunnel_request=tunnel_request(turn.meta),
            wait=turn.exchange.left(turn.patience if given.wait is None else given.wait),
        )
    )
    turn.exchange.carry(view.companions.receipt)
    return await turn.present.operation(view, turn.exchange)


async def _history(turn: Turn, given: HistoryArguments) -> Presented:
    if given.entry is None and (given.offset is not None or given.find is not None):
        raise BadArguments("`offset` and `find` need `entry`: which one to read.")
    waits = given.wait and given.after is not None and given.before is None
    wanted = HistoryRange(
        limit=given.limit,
        before=_entry(given.before),
        after=_entry(given.after),
        wait=turn.exchange.left(HISTORY_WAIT) if waits else 0,
        query=given.query,
        entry=_entry(given.entry),
        offset=given.offset,
        find=given.find,
        observer=given.observer,
    )
    request = FetchHistory(caller=turn.caller, session=session_id(given.session_id), range=wanted)
    return await turn.present.history(await turn.switchboard.history(request), wanted, turn.exchange)


def _entry(value: str | None) -> EntryId | None:
    return None if value is None else EntryId(value)


_TABLE: tuple[Tool[Any], ...] = (
    Tool(
        name="sessions",
        title="Sessions",
        description=(
            "Use this to find agent sessions by agent, device, directory or name, and to see which one this"
            " conversation uses. Filters are case-insensitive substrings. It never selects one."
        ),
        read_only=True,
        destructive=False,
        idempotent=True,
        open_world=False,
        arguments=SessionsArguments,
        run=_sessions,
    ),
    Tool(
        name="init",
        title="Connect to a session",
        description=(
            "Call this first in each conversation. It selects the conversation's default session and returns"
            " its environment, a short list of its native tools, its skills and its instruction file. Pass"
            " `sessionId` to resume a task from another conversation or branch, or to change the default;"
            " then read recent `history`. Without it the saved default, else a free session, is taken."
        ),
        read_only=False,
        destructive=False,
        idempotent=True,
        open_world=False,
        arguments=InitArguments,
        run=_init,
    ),
    Tool(
        name="tools",
        title="Native tools",
        description=(
            "Use this to read the full definitions (description, JSON Schema of the arguments) of the"
            " session's native tools before you `call` them, all or by `names`."
        ),
        read_only=True,
        destructive=False,
        idempotent=True,
        open_world=False,
        arguments=ToolsArguments,
        run=_tools,
    ),
    Tool(
        name="call",
        title="Run native tools",
        description=(
            "Use this to run native tools of the session: `calls` is one batch of up to 64 calls with the"
            " names and arguments that `tools` gives. Give exactly one of `calls`, `base64`, `operation`."
            " Results come in request order. When `status` is `running`, the batch goes on: its result"
            " comes with a later response or by `operation`. Put independent calls into one batch."
        ),
        read_only=False,
        destructive=True,
        idempotent=False,
        open_world=True,
        arguments=CallArguments,
        run=_call,
    ),
    Tool(
        name="chat",
        title="Reply in the session",
        description=(
            "Use this to put an assistant message into the session's transcript: progress with"
            " `final:false`, the outcome of the work, or with `replyTo` the answer to a model `request` that"
            " a result showed."
        ),
        read_only=False,
        destructive=False,
        idempotent=False,
        open_world=False,
        arguments=ChatArguments,
        run=_chat,
    ),
    Tool(
        name="history",
        title="Session history",
        description=(
            "Use this to read the session's transcript: the latest entries, `before` or `after` an entry id"
            " (excluded), one long `entry` by `offset`, or by search. With `after` and `wait:true` it follows"
            " work in progress; with `observer:true` it leaves no notice in the session."
        ),
        read_only=True,
        destructive=False,
        idempotent=True,
        open_world=False,
        arguments=HistoryArguments,
        run=_history,
    ),
    TRANSFER,
    *QUESTION_TOOLS,
)

TOOLS: dict[str, Tool[Any]] = {tool.name: tool for tool in _TABLE}
