"""The tools that the flow declares, and what a call of one gives back: text.  Asks the Switchboard alone."""

import base64
import binascii
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from pydantic import JsonValue, ValidationError

from chappie_bridge.codec.conversation import Json, Signature
from chappie_bridge.codec.loose import compact
from chappie_bridge.codec.schema import explain
from chappie_bridge.codec.signature import HANDOFF, declare, read
from chappie_bridge.faces.chatgpt.exchange import Exchange
from chappie_bridge.faces.chatgpt.present import Presented, Presenter
from chappie_bridge.faces.chatgpt.sheet import failure_line
from chappie_bridge.faces.chatgpt.tool import Tool, Turn
from chappie_bridge.faces.chatgpt.tools import TOOLS
from chappie_bridge.faces.flow.hearing import LocalCall
from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.errors import BadArguments, BridgeError, Internal
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.ports import Switchboard
from chappie_bridge.wire.requests import OpenSession, TypeInput
from chappie_bridge.wire.values import Caller, ToolDefinition

log = logging.getLogger("chappie.flow")

OFFERED = ("sessions", "tools", "call", "history", "chat", "transfer")
"""Of the tools that MCP clients see.  `init` is done here; questions need a widget."""

_NOT_HERE = {"transfer": frozenset({"files"})}
"""Parameters without a meaning in this flow."""

_SAID = {
    "transfer": (
        "Use this to copy files between sessions, on any devices: with `from` to `paths`, with `to` from"
        " `paths`; they pair by position. Each file has its own outcome. Directories: make an archive first."
    )
}
"""Descriptions that are others without them."""

PRINCIPAL = "owner"

_HANDOFF = ToolDefinition(
    name=HANDOFF.name,
    description=HANDOFF.description,
    parameters={
        "type": "object",
        "properties": {param.name: {"type": "string"} for param in HANDOFF.params},
        "required": [param.name for param in HANDOFF.params],
    },
)

Approve = Callable[[str, str], Awaitable[bool]]
"""Asks the person whether a task (its prompt, the reason) is opened in a session."""


class Result(NamedTuple):
    """`body` always has `message`.  `exchange` is settled once it is known whether the return arrived."""

    body: Json
    exchange: Exchange


class LocalTools:
    """One conversation's tools.  `session`: the target, instead of the saved default or the automatic choice;
    `native`: a session's own tools, declared beside ours; `wait` in seconds."""

    def __init__(
        self,
        switchboard: Switchboard,
        present: Presenter,
        *,
        clock: Callable[[], float],
        approve: Approve,
        session: SessionId | None = None,
        native: Sequence[ToolDefinition] = (),
        wait: float = 40,
    ) -> None:
        self._switchboard = switchboard
        self._present = present
        self._clock = clock
        self._approve = approve
        self._session = session
        self._wait = wait
        self._bound: tuple[str, SessionId] | None = None
        self._ours = declare([_definition(TOOLS[name]) for name in OFFERED if name in TOOLS], {HANDOFF.name})
        self._native = declare(native, {HANDOFF.name, *self._ours.tools})

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """As they are declared, `handoff` first."""
        return (HANDOFF, *self._ours.signatures, *self._native.signatures)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(each.name for each in self.signatures)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Native tools for which there was no room."""
        return self._native.left_out

    async def run(self, call: LocalCall, conversation: str) -> Result:
        """Carry out a call of `conversation`.  What fails is a result too: it raises nothing."""
        exchange = Exchange(PRINCIPAL, self._clock, conversation=f"flow:{conversation}", client="flow")
        try:
            if call.tool == HANDOFF.name:
                body = await self._handoff(call, exchange, conversation)
            else:
                body = _body(await self._tool(call, exchange, conversation))
        except BridgeError as error:
            body = _failed(error)
        except Exception:
            name = f"err_{secrets.token_hex(6)}"
            log.exception("%s: an unexpected error in a local tool", name)
            body = _failed(Internal(f"The bridge failed; its log has the details under {name}."))
        return Result(body, exchange)

    def settle(self, result: Result, *, sent: bool) -> None:
        """The last word on whether the other side has `result`."""
        result.exchange.settle(self._switchboard, sent=sent)

    async def _tool(self, call: LocalCall, exchange: Exchange, conversation: str) -> Presented:
        caller = exchange.caller(None)
        if call.tool != "sessions":
            await self._bind(conversation, caller, exchange)
        if native := self._native.tools.get(call.tool):
            arguments: dict[str, JsonValue] = {
                "calls": [{"name": native.name, "arguments": read(native, call.text)}]
            }
            tool = TOOLS["call"]
        else:
            arguments, tool = read(self._ours.tools[call.tool], call.text), TOOLS[call.tool]
        try:
            given = tool.arguments.model_validate(arguments)
        except ValidationError as error:
            raise BadArguments(explain(error, tool.arguments)) from None
        return await tool.run(
            Turn(self._switchboard, self._present, exchange, caller, None, self._wait), given
        )

    async def _bind(self, conversation: str, caller: Caller, exchange: Exchange) -> SessionId:
        """The conversation's session; saved when it is first needed, so that it stays the same."""
        if self._bound is None or self._bound[0] != conversation:
            request = OpenSession(caller=caller, session=self._session, wait=exchange.left(self._wait))
            opened = await self._switchboard.init(request)
            if (receipt := opened.companions.receipt) is not None:
                self._switchboard.told(receipt, sent=False)  # the call's own result will carry it
            self._bound = conversation, opened.session.id
        return self._bound[1]

    async def _handoff(self, call: LocalCall, exchange: Exchange, conversation: str) -> Json:
        """Open the task in the session, if the person agrees."""
        arguments = read(_HANDOFF, call.text)
        prompt, reason = str(arguments["prompt"]), str(arguments["reason"])
        if not await self._approve(prompt, reason):
            return {"accepted": False, "message": "The user stays in this chat."}
        caller = exchange.caller(None)
        session = await self._bind(conversation, caller, exchange)
        typed = TypeInput(caller=caller, session=session, content=(Text(text=prompt),))
        await self._switchboard.say(typed)
        return {
            "accepted": True,
            "thread_id": session,
            "message": f"The task was opened in session {session}.",
        }


def _definition(tool: Tool[Any]) -> ToolDefinition:
    schema = tool.definition()["inputSchema"]
    parameters: dict[str, JsonValue] = {**schema} if isinstance(schema, dict) else {}
    if (properties := parameters.get("properties")) and isinstance(properties, dict):
        hidden = _NOT_HERE.get(tool.name, frozenset())
        parameters["properties"] = {key: value for key, value in properties.items() if key not in hidden}
    description = _SAID.get(tool.name, tool.description)
    return ToolDefinition(name=tool.name, description=description, parameters=parameters)


def _body(shown: Presented) -> Json:
    body: Json = {"message": "\n".join(_line(block) for block in shown.content)}
    if shown.is_error:
        body["isError"] = True
    return body


def _line(block: dict[str, Any]) -> str:
    """A block as text.  The flow's returns are text, so an image becomes a reference; where its bytes can be
    read stands in the line before it (`images`)."""
    if block["type"] == "text":
        return str(block["text"])
    if block["type"] != "image":
        return compact(block)
    facts: dict[str, JsonValue] = {"image": "on the device; not sent here", "mimeType": block["mimeType"]}
    try:
        data = base64.b64decode(block["data"], validate=True)
    except binascii.Error:
        return compact(facts)
    return compact({**facts, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})


def _failed(error: BridgeError) -> Json:
    return {"message": compact(failure_line(error.failure())), "isError": True}
