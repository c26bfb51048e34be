"""A batch that the program has: from its calls and the program's results to results of ours."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from chappie_bridge.codec.turn import Outcome
from chappie_bridge.wire.blocks import Content, Text
from chappie_bridge.wire.ids import CallId
from chappie_bridge.wire.messages import RunBatch
from chappie_bridge.wire.values import Need, ToolCall, ToolResult

_NONE: Content = (Text(text="The program gave no result for this call."),)
_STOPPED: Content = (Text(text="The person stopped this call."),)


class Work:
    """`began`: loop time at which the program was given it.  `needs`: what it waits for, as far as we see."""

    def __init__(self, message: RunBatch, began: float) -> None:
        self.message, self.began = message, began
        self.needs: dict[str, Need] = {}

    @property
    def ids(self) -> tuple[CallId, ...]:
        return tuple(call.id for call in self.message.calls)

    async def results(
        self,
        outcomes: Sequence[Outcome | None],
        ended: float,
        fitting: Callable[[Content], Awaitable[Content]],
    ) -> list[ToolResult]:
        """In request order.  The program tells no times: each call's is that of the whole batch."""
        spent = max(0, int((ended - self.began) * 1000))
        found: list[ToolResult] = []
        for call, outcome in zip(self.message.calls, outcomes, strict=True):
            content = _NONE if outcome is None else await fitting(outcome.content)
            failed = outcome is None or outcome.is_error
            found.append(_result(call, content, failed=failed, spent=spent))
        return found

    def stopped(self, results: Mapping[CallId, ToolResult]) -> list[ToolResult]:
        """Finished siblings keep their results."""
        return [
            results.get(call.id) or _result(call, _STOPPED, failed=True, spent=0)
            for call in self.message.calls
        ]


def _result(call: ToolCall, content: Content, *, failed: bool, spent: int) -> ToolResult:
    return ToolResult(call=call.id, name=call.name, is_error=failed, duration_ms=spent, content=content)
