"""Answers what the broker asks about a session: its transcript, its tools, bytes, old outcomes.  Changes
nothing in the session."""

import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import anyio
from anyio import to_thread

from chappie_agents.callers import Callers
from chappie_agents.entry_text import opened
from chappie_agents.outbox import Outbox
from chappie_agents.spool import Spool
from chappie_agents.tail import Page
from chappie_agents.transcript import Parked, Transcript
from chappie_bridge.wire.blocks import Content
from chappie_bridge.wire.errors import (
    BadArguments,
    BridgeError,
    Internal,
    Lost,
    Overloaded,
    UnknownOperation,
)
from chappie_bridge.wire.link import CHUNK_BYTES
from chappie_bridge.wire.messages import (
    Admit,
    Describe,
    Description,
    Done,
    Failed,
    History,
    Message,
    Pull,
    Pulled,
    ReadHistory,
    Recall,
    Request,
    Withdraw,
)
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.values import SessionInfo, Skill, ToolDefinition

log = logging.getLogger("chappie.agent")

MAX_OPEN = 1_000
"""Answers that are being worked on; readers that wait for an entry are counted by the transcript."""

READ = 4 * CHUNK_BYTES
"""Bytes read from the disk at a time."""


class Surroundings(NamedTuple):
    """What lies in the directory and in the user's configuration for a model to read."""

    skills: tuple[Skill, ...] = ()
    global_agents: str | None = None


class Start(Protocol):
    """Runs something in the session's own task group."""

    def __call__(self, work: Callable[[], Awaitable[None]], /) -> None: ...


class Answers:
    """What is open belongs to one broker; `drop` forgets all of it."""

    def __init__(
        self,
        info: Callable[[], SessionInfo],
        transcript: Transcript,
        outbox: Outbox,
        spool: Spool,
        tools: Sequence[ToolDefinition],
        surroundings: Callable[[], Surroundings],
        start: Start,
        keep: Callable[[Content], None] = lambda _: None,
    ) -> None:
        """`surroundings` reads the disk and is called in a worker thread; `keep` is told of native blocks
        before they are shown."""
        self._info, self._transcript, self._outbox, self._spool = info, transcript, outbox, spool
        self._tools = tuple(tools)
        self._surroundings, self._start, self._keep = surroundings, start, keep
        self._open: dict[int, Parked | anyio.CancelScope] = {}

    @property
    def open(self) -> int:
        """Requests that are not answered yet."""
        return len(self._open)

    def drop(self) -> None:
        """Nobody waits for any answer any more."""
        for request in tuple(self._open):
            self._close(request)

    def withdraw(self, link: Link, message: Withdraw) -> None:
        self._close(message.request)

    def read(self, link: Link, message: ReadHistory) -> None:
        span = message.range
        try:
            page = self._transcript.read(span)
            if page is None:
                self._look(link, message)
            elif page.entries or not self._transcript.waits(span):
                self._send_page(link, message, page)
            else:

                def deliver(page: Page | None) -> None:
                    self._open.pop(message.request, None)
                    if page is None:
                        self._look(link, message)
                    else:
                        self._send_page(link, message, page)

                self._open[message.request] = self._transcript.park(span, deliver)
        except BridgeError as error:
            _fail(link, message, error)

    def describe(self, link: Link, message: Describe) -> None:
        async def answer() -> Message:
            around = await to_thread.run_sync(self._surroundings)
            names = message.names
            known = {tool.name for tool in self._tools}
            return Description(
                request=message.request,
                session=message.session,
                tools=tuple(tool for tool in self._tools if names is None or tool.name in names),
                skills=around.skills,
                global_agents=around.global_agents,
                unknown=tuple(name for name in names or () if name not in known),
            )

        self.work(link, message, answer)

    def admit(self, callers: Callers, link: Link, message: Admit) -> None:
        """May another session do something here?"""

        async def answer() -> Message:
            await callers.admit(message)
            return Done(request=message.request)

        self.work(link, message, answer)

    def recall(self, link: Link, message: Recall) -> None:
        async def answer() -> Message:
            if self._outbox.running(message.operation):
                raise UnknownOperation("It is still running; its outcome is told when it ends.")
            outcome = await to_thread.run_sync(self._outbox.outcome, message.operation)
            if outcome is None:
                raise UnknownOperation
            for result in outcome.results:
                link.send(result)
            link.send(outcome.finished)
            return Done(request=message.request)

        self.work(link, message, answer)

    def pull(self, link: Link, message: Pull) -> None:
        """Bytes of a spilled block."""

        async def answer() -> Message:
            path = message.source.removeprefix("spill:")
            with opened(path, self._spool) as descriptor:
                size = os.fstat(descriptor).st_size
                offset, end = message.offset, min(size, message.offset + message.length)
                if offset > size:
                    raise BadArguments(f"`offset` {offset} is beyond the end; there are {size} bytes.")
                while offset < end:
                    data = await to_thread.run_sync(os.pread, descriptor, min(READ, end - offset), offset)
                    for start in range(0, len(data), CHUNK_BYTES):
                        chunk = data[start : start + CHUNK_BYTES]
                        await link.send_chunk(message.stream, offset + start, chunk)
                    offset += len(data)
            return Pulled(request=message.request, stream=message.stream, end=end, size=size)

        self.work(link, message, answer)

    # -- inside ----------------------------------------------------------------------------------

    def _look(self, link: Link, message: ReadHistory) -> None:
        async def answer() -> Message:
            return self._page(message, await self._transcript.page(message.range))

        self.work(link, message, answer)

    def _send_page(self, link: Link, message: ReadHistory, page: Page) -> None:
        try:
            link.send(self._page(message, page))
        except BridgeError as error:
            log.warning("a page of history could not be sent: %s", error)

    def _page(self, message: ReadHistory, page: Page) -> History:
        for entry in page.entries:
            self._keep(entry.content)
        return History(
            request=message.request,
            session=message.session,
            cwd=self._info().cwd,
            entries=page.entries,
            has_more=page.has_more,
            branch_changed=page.branch_changed,
            text=page.text,
            matches=page.matches,
        )

    def work(self, link: Link, message: Request, answer: Callable[[], Awaitable[Message]]) -> None:
        """Answer from a task of the session, unless it is withdrawn; what fails is told."""
        if len(self._open) >= MAX_OPEN + self._transcript.waiting:
            _fail(link, message, Overloaded())
            return
        scope = self._open[message.request] = anyio.CancelScope()

        async def work() -> None:
            try:
                with scope:
                    link.send(await answer())
            except Lost:
                pass  # the link is down: who pulled asks again
            except BridgeError as error:
                _fail(link, message, error)
            except Exception:
                mark = secrets.token_hex(4)
                log.exception("a request could not be answered (%s)", mark)
                _fail(link, message, Internal(f"The agent failed; its log holds the details under {mark}."))
            finally:
                if self._open.get(message.request) is scope:
                    del self._open[message.request]

        self._start(work)

    def _close(self, request: int) -> None:
        opened_request = self._open.pop(request, None)
        if isinstance(opened_request, Parked):
            opened_request.drop()
        elif opened_request is not None:
            opened_request.cancel()


def _fail(link: Link, message: Request, error: BridgeError) -> None:
    try:
        link.send(Failed(request=message.request, failure=error.failure()))
    except BridgeError as trouble:
        log.warning("an answer could not be sent: %s", trouble)
