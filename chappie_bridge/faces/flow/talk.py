"""A conversation that is really held: the pure turn on one side, transport and tools on the other."""

from collections import deque
from collections.abc import Callable
from functools import partial

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from chappie_bridge.faces.flow.hearing import LocalCall, Said
from chappie_bridge.faces.flow.tools import LocalTools, Result
from chappie_bridge.faces.flow.transport import Cut, Refused, Transport
from chappie_bridge.faces.flow.turn import (
    RESTING,
    Challenge,
    Conversation,
    Converse,
    Ended,
    Prepare,
    Read,
    Run,
    State,
    Step,
)
from chappie_bridge.wire.errors import BridgeError

DEBOUNCE = 0.4
"""Seconds without a keystroke after which what is typed is prepared."""

_WAITING = 64
"""Pieces of a stream that may wait to be shown."""

News = Callable[[], list[Step]]
Show = Callable[[Said | LocalCall | Result], None]
"""Hears text as it grows, a call before it runs, and its result."""


class Talk:
    """Holds `conversation`.  One turn at a time."""

    def __init__(
        self, conversation: Conversation, transport: Transport, tools: LocalTools, show: Show
    ) -> None:
        self.conversation = conversation
        self._transport = transport
        self._tools = tools
        self._show = show
        self._results: dict[str, Result] = {}

    async def open(self) -> None:
        """Prepare in the background; call it as a task."""
        await self._prepare(self.conversation.opened())

    async def typing(self, look: Callable[[], str]) -> None:
        """Prepare what is being typed, each time that it stands still.  Ends when it is cancelled."""
        before = prepared = ""
        while True:
            await anyio.sleep(DEBOUNCE)
            text = look()
            if text and text == before and text != prepared:
                prepared = text
                await self._prepare(self.conversation.typed(text))
            before = text

    async def say(self, text: str) -> Ended:
        """One turn, to its end.  Cancelled, it stops; what runs on a device goes on."""
        ended = Ended(State.STOPPED)
        send, receive = anyio.create_memory_object_stream[News](_WAITING)
        try:
            with send, receive:
                async with anyio.create_task_group() as tasks:
                    steps = deque(self.conversation.send(text))
                    while self.conversation.state not in RESTING or steps:
                        while steps:
                            step = steps.popleft()
                            if isinstance(step, Ended):
                                ended = step
                            elif isinstance(step, Said):
                                self._show(step)
                            else:
                                tasks.start_soon(self._take, step, send)
                        if self.conversation.state not in RESTING:
                            steps += (await receive.receive())()
                    tasks.cancel_scope.cancel()
        finally:
            self.conversation.stopped()
            for result in self._results.values():
                self._tools.settle(result, sent=False)
            self._results.clear()
        return ended

    async def _prepare(self, steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, Prepare):
                self.conversation.prepared(await self._transport.prepare(step.body))

    async def _take(self, step: Step, news: MemoryObjectSendStream[News]) -> None:
        conversation = self.conversation
        try:
            match step:
                case Prepare(body=body):
                    await news.send(partial(conversation.prepared, await self._transport.prepare(body)))
                case Challenge():
                    await news.send(partial(conversation.challenged, await self._transport.challenge()))
                case Converse():
                    await self._converse(step, news)
                case Run(call=call):
                    await self._run(call, news)
                case Read(conversation=name, after=after):
                    await anyio.sleep(after)
                    await news.send(partial(conversation.read, await self._transport.read(name)))
                case _:
                    pass
        except Refused as refused:
            await news.send(partial(conversation.refused, str(refused)))
        except Cut:
            await news.send(partial(conversation.refused, "The connection ended before an answer came."))
        except BridgeError as error:
            hint = f" {error.hint}" if error.hint else ""
            await news.send(partial(conversation.refused, f"{error}{hint}"))

    async def _converse(self, step: Converse, news: MemoryObjectSendStream[News]) -> None:
        async with self._transport.converse(step.body, step.conduit) as pieces:
            if step.call is not None and (result := self._results.pop(step.call, None)) is not None:
                self._tools.settle(result, sent=True)
            try:
                async for piece in pieces:
                    await news.send(partial(self.conversation.heard, piece))
            except Cut:
                pass  # what came is what there is; the turn decides
            await news.send(self.conversation.closed)

    async def _run(self, call: LocalCall, news: MemoryObjectSendStream[News]) -> None:
        self._show(call)
        result = await self._tools.run(call, self.conversation.id or "")
        self._results[call.id] = result
        self._show(result)
        await news.send(partial(self.conversation.ran, call.id, result.body))
