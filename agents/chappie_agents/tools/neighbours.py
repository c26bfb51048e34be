"""The local tools as native tools of the built-in agent.  Only hands calls over."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue, ValidationError

from chappie_agents.tools.tool import Arguments, Tool, ToolContext, ToolFailed
from chappie_bridge.codec.schema import explain
from chappie_bridge.local_tools.tools import LocalTool, Turn, offered
from chappie_bridge.local_tools.which import Found
from chappie_bridge.wire.blocks import Content
from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.ids import ReceiptId
from chappie_bridge.wire.ports import Switchboard
from chappie_bridge.wire.values import ToolDefinition

Reach = Callable[[], Awaitable[Switchboard]]
"""The broker, as soon as it is there.  Raises `Lost`."""


class _Given(Arguments):
    """Arguments as they came; the tool's own model has checked them."""

    values: dict[str, JsonValue]


@dataclass(frozen=True)
class _Neighbour(Tool):
    local: LocalTool[Any]

    def parse(self, arguments: Mapping[str, JsonValue]) -> Arguments:
        """:raises BadArguments:"""
        try:
            self.local.arguments.model_validate(arguments)
        except ValidationError as error:
            raise BadArguments(explain(error, self.local.arguments)) from None
        return _Given(values=dict(arguments))

    def definition(self) -> ToolDefinition:
        return ToolDefinition(
            name=self.name, description=self.description, parameters=self.local.parameters()
        )


def neighbours(reach: Reach, *, everything: bool) -> tuple[Tool, ...]:
    """All of them, or `transfer` alone."""
    return tuple(_tool(each, reach) for each in offered(everything=everything).values())


def _tool(local: LocalTool[Any], reach: Reach) -> Tool:
    async def run(arguments: Arguments, context: ToolContext) -> Content:
        receipts: list[ReceiptId] = []
        values = arguments.values if isinstance(arguments, _Given) else {}
        switchboard = await reach()
        turn = Turn(switchboard, Found(context.session), receipts.append)
        told = False
        try:
            outcome = await local.run(turn, local.arguments.model_validate(values))
            told = True
        finally:
            for receipt in receipts:
                switchboard.told(receipt, sent=told)
        content = await context.fit(outcome.content)
        if outcome.is_error:
            raise ToolFailed(content)
        return content

    return _Neighbour(local.name, local.description, _Given, local.read_only, run, local)
