"""Runs one native batch: consecutive parallel calls together, any other alone, in order.  Knows no link and
writes nothing; each result goes to the one who started the batch as soon as it is there."""

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import anyio
from anyio import to_thread

from chappie_agents.bounded import RESULT_MAX, cut, fit, fits
from chappie_agents.tools.tool import Arguments, Tool, ToolContext, ToolFailed
from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.blocks import Block, Content, Text
from chappie_bridge.wire.errors import BadArguments, BridgeError
from chappie_bridge.wire.values import MAX_CALLS, ToolCall, ToolResult

log = logging.getLogger("chappie.agent")

NOT_RUN = "Not run: the batch was cancelled before this call began."
STOPPED = "Cancelled while it ran; what it had done until then stays done."

Checked = tuple[tuple[Tool, Arguments], ...]


def check(calls: Sequence[ToolCall], tools: Mapping[str, Tool]) -> Checked:
    """The whole batch, before anything runs.  :raises BadArguments: names the first wrong call's place."""
    if not 0 < len(calls) <= MAX_CALLS:
        raise BadArguments(f"A batch has 1 to {MAX_CALLS} calls; this one has {len(calls)}.")
    if len({call.id for call in calls}) != len(calls):
        raise BadArguments("Two calls of the batch have the same id.")
    checked: list[tuple[Tool, Arguments]] = []
    for index, call in enumerate(calls):
        tool = tools.get(call.name)
        if tool is None:
            known = ", ".join(f"`{name}`" for name in tools)
            raise BadArguments(
                f"calls[{index}].name: this session has no tool `{display(call.name, 64)}`. Nothing ran.",
                hint=f"Its tools: {known}."[:2000],
            )
        try:
            checked.append((tool, tool.parse(call.arguments)))
        except BadArguments as error:
            raise BadArguments(f"calls[{index}].arguments of `{tool.name}`: {error} Nothing ran.") from error
    return tuple(checked)


class Batch:
    """`calls` at work.  `done(index, result)` is called once per call, in the order they end."""

    def __init__(
        self,
        calls: Sequence[ToolCall],
        checked: Checked,
        context: ToolContext,
        done: Callable[[int, ToolResult], None],
    ) -> None:
        self._calls, self._checked, self._context, self._done = calls, checked, context, done
        self._scope = anyio.CancelScope()
        self._ended: set[int] = set()
        self.begun = False
        """Did a call begin?"""
        self.stopped = False
        """Did a cancellation keep a call from ending by itself?"""

    def cancel(self) -> None:
        """Stops what runs, each tool in its own way, and begins nothing more."""
        self._scope.cancel()

    async def run(self) -> None:
        """Until every call has a result, also when this is cancelled from outside; no tool's error is
        raised."""
        try:
            with self._scope:
                for stretch in self._stretches():
                    if self._scope.cancel_called:
                        break
                    if len(stretch) == 1:
                        await self._run(stretch[0])
                        continue
                    async with anyio.create_task_group() as group:
                        for index in stretch:
                            group.start_soon(self._run, index)
        finally:
            for index in range(len(self._calls)):
                if index not in self._ended:
                    self.stopped = True
                    self._end(index, _text(NOT_RUN), is_error=True, started=None)

    def _stretches(self) -> Iterator[range]:
        start = 0
        while start < len(self._checked):
            end = start + 1
            if self._checked[start][0].parallel:
                while end < len(self._checked) and self._checked[end][0].parallel:
                    end += 1
            yield range(start, end)
            start = end

    async def _run(self, index: int) -> None:
        if self._scope.cancel_called:
            return  # cancelled between two steps of the loop
        tool, arguments = self._checked[index]
        self.begun = True
        started = time.perf_counter()
        is_error = True
        left: list[Block] = []
        try:
            content = await tool.run(arguments, replace(self._context, leave=left.extend))
            is_error = False
        except ToolFailed as error:
            content = error.content
        except BridgeError as error:
            content = _text(f"{error.code}: {error}" + (f" {error.hint}" if error.hint else ""))
        except anyio.get_cancelled_exc_class():
            self.stopped = True
            self._end(index, (*left, *_text(STOPPED)), is_error=True, started=started)
            raise
        except Exception:
            mark = secrets.token_hex(4)
            log.exception("the tool %s failed inside (%s)", tool.name, mark)
            content = _text(f"The tool failed inside. The agent's log holds the details under {mark}.")
        if not fits(content):
            content = await self._fit(content)
        self._end(index, content, is_error=is_error, started=started)

    async def _fit(self, content: Content) -> Content:
        # The tool ran: from here on no cancellation may lose its result.
        with anyio.CancelScope(shield=True):
            try:
                content = await to_thread.run_sync(partial(fit, content, self._context.spool))
            except OSError as error:
                log.error("a result could not be kept whole: %s", error)
                content = cut(content, RESULT_MAX)
        return content

    def _end(self, index: int, content: Content, *, is_error: bool, started: float | None) -> None:
        self._ended.add(index)
        call = self._calls[index]
        result = ToolResult(
            call=call.id,
            name=call.name,
            is_error=is_error,
            duration_ms=0 if started is None else round((time.perf_counter() - started) * 1000),
            content=content,
        )
        self._done(index, result)


def _text(text: str) -> Content:
    return (Text(text=text),)
