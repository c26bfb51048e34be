"""What the tests of a session stand on: a link that remembers, tools that wait for a sign, real files."""

import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import anyio
from chappie_agents.answers import Surroundings
from chappie_agents.attendant import AgentHost
from chappie_agents.callers import CallerRule
from chappie_agents.outbox import Outbox
from chappie_agents.policy import Approval, Policy
from chappie_agents.session import AgentSession
from chappie_agents.spool import Spool
from chappie_agents.tools import Arguments, Tool, ToolContext
from chappie_agents.tools.tool import tool
from chappie_agents.transcript import Transcript

from chappie_bridge.wire.blocks import Content, Text
from chappie_bridge.wire.errors import BridgeError, Overloaded
from chappie_bridge.wire.ids import DeviceId, EntryId, InstanceId, OperationId, SessionId
from chappie_bridge.wire.messages import (
    CallResult,
    Finished,
    History,
    Message,
    PostChat,
    ReadHistory,
    Registered,
    Request,
    RunBatch,
)
from chappie_bridge.wire.ports import Peer
from chappie_bridge.wire.values import Entry, HistoryRange, Origin, SessionInfo, ToolCall, ToolResult

SESSION = SessionId("s_stage")
ORIGIN = Origin(kind="conversation", id="c" * 43, label="a chat")
START = 1_700_000_000.0

_M = TypeVar("_M", bound=Message)
_numbers = itertools.count(1000)


def entry(name: str, text: str = "", *, at: str = "2026-01-01T00:00:00.000Z") -> Entry:
    return Entry(id=EntryId(name), at=at, kind="user", content=(Text(text=text or f"text of {name}"),))


def texts(content: Content) -> str:
    return "".join(block.text for block in content if isinstance(block, Text))


def operation() -> OperationId:
    return OperationId(f"op_{next(_numbers)}")


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall.model_validate({"id": f"call_chp_{next(_numbers)}", "name": name, "arguments": arguments})


def batch(*calls: ToolCall, of: OperationId | None = None) -> RunBatch:
    return RunBatch(operation=of or operation(), session=SESSION, origin=ORIGIN, calls=calls)


@dataclass
class Clock:
    """Seconds since the epoch, moved by the test."""

    time: float = START

    def __call__(self) -> float:
        return self.time


class FakeLink:
    """Remembers what was sent; refuses everything while `full`, and what is more than `room`."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.chunks: list[tuple[int, int, bytes]] = []
        self.full: BridgeError | None = None
        self.room: int | None = None
        """How many more it takes until there is room again."""
        self.up = True
        self._more = anyio.Event()

    @property
    def peer(self) -> Peer:
        return Peer("broker", DeviceId("d"), InstanceId("i"), "broker")

    def send(self, message: Message) -> None:
        if self.full is not None:
            raise self.full
        if self.room is not None:
            if self.room == 0:
                raise Overloaded
            self.room -= 1
        self.sent.append(message)
        self._more.set()

    async def send_chunk(self, stream: int, offset: int, data: bytes) -> None:
        self.chunks.append((stream, offset, data))

    def all(self, kind: type[_M]) -> list[_M]:
        return [message for message in self.sent if isinstance(message, kind)]

    async def until(self, condition: Callable[[], object]) -> None:
        """Until what was sent makes it true."""
        with anyio.fail_after(10):
            while not condition():
                self._more = anyio.Event()
                await self._more.wait()

    async def one(self, kind: type[_M], where: Callable[[_M], bool] = lambda _: True) -> _M:
        """The first such message, now or later."""
        found: list[_M] = []

        def look() -> bool:
            found[:] = [message for message in self.all(kind) if where(message)]
            return bool(found)

        await self.until(look)
        return found[0]

    async def reply(self, kind: type[_M], request: int) -> _M:
        def answers(message: Message) -> bool:
            return isinstance(message, Request) and message.request == request

        return await self.one(kind, answers)

    async def finished(self, of: OperationId) -> Finished:
        return await self.one(Finished, lambda message: message.operation == of)


class Nothing(Arguments):
    pass


class Words(Arguments):
    text: str


@dataclass
class Gate:
    """A tool that waits until the test opens it, and one that needs `width` of its own kind at a time."""

    width: int = 1
    entered: int = 0
    cancelled: int = 0
    opened: anyio.Event = field(default_factory=anyio.Event)
    together: anyio.Event = field(default_factory=anyio.Event)
    inside: anyio.Event = field(default_factory=anyio.Event)
    ran: list[str] = field(default_factory=list)

    async def wait(self, arguments: Nothing, context: ToolContext) -> Content:
        self.entered += 1
        self.inside.set()
        try:
            await self.opened.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        return (Text(text="opened"),)

    async def meet(self, arguments: Nothing, context: ToolContext) -> Content:
        self.entered += 1
        if self.entered == self.width:
            self.together.set()
        await self.together.wait()
        return (Text(text="met"),)

    async def say(self, arguments: Words, context: ToolContext) -> Content:
        self.ran.append(arguments.text)
        return (Text(text=arguments.text),)

    def tools(self) -> tuple[Tool, ...]:
        return (
            tool("wait", "Waits for the test.", Nothing, self.wait, parallel=True),
            tool("meet", "Waits for its like.", Nothing, self.meet, parallel=True),
            tool("say", "Says it.", Words, self.say, parallel=False),
        )


class Watched:
    """A screen that remembers."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.chats: list[str] = []
        self.approvals: list[Approval] = []
        self.ends: list[Finished] = []
        self.more = anyio.Event()

    def batch(self, origin: Origin, calls: Sequence[ToolCall]) -> None: ...
    def result(self, result: ToolResult) -> None: ...
    def typed(self, content: Content) -> None: ...

    def ended(self, finished: Finished) -> None:
        self.ends.append(finished)

    def chat(self, origin: Origin, text: str, *, final: bool) -> None:
        self.chats.append(text)

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def asked(self, approval: Approval) -> None:
        self.approvals.append(approval)
        self.more.set()


@dataclass
class Stage:
    """A session that runs on the files of one directory."""

    directory: Path
    host: AgentHost
    session: AgentSession
    transcript: Transcript
    outbox: Outbox
    screen: Watched
    clock: Clock

    async def link(self) -> FakeLink:
        """A new broker that takes the session."""
        link = FakeLink()
        self.host.link_up(link)
        register = link.sent[-1]
        assert isinstance(register, Request)
        self.host.received(link, Registered(request=register.request, session=SESSION))
        return link


@asynccontextmanager
async def stage(
    directory: Path,
    tools: Sequence[Tool],
    *,
    policy: Policy | None = None,
    clock: Clock | None = None,
    surroundings: Callable[[], Surroundings] = Surroundings,
    environment: Mapping[str, str] | None = None,
    callers: Sequence[CallerRule] = (),
) -> AsyncIterator[Stage]:
    clock = clock or Clock()
    spool = Spool(directory / "spool")
    transcript = Transcript(directory, spool)
    outbox = Outbox(directory / "journal", transcript, SESSION, now=clock)
    screen = Watched()
    session = AgentSession(
        SessionInfo(id=SESSION, agent="builtin", device="desk", cwd=str(directory)),
        directory=directory,
        transcript=transcript,
        outbox=outbox,
        spool=spool,
        transfers=directory / "transfers",
        tools=tools,
        policy=policy or Policy(),
        environment=environment or {},
        surroundings=surroundings,
        screen=screen,
        now=clock,
        callers=callers,
    )
    host = AgentHost()
    async with anyio.create_task_group() as group:
        await group.start(host.run)
        await host.add(session)
        yield Stage(directory, host, session, transcript, outbox, screen, clock)
        group.cancel_scope.cancel()


def ids(entries: Sequence[Entry]) -> list[str]:
    return [each.id for each in entries]


def chat(text: str, **more: object) -> PostChat:
    asked = {"operation": operation(), "session": SESSION, "origin": ORIGIN, "text": text, **more}
    return PostChat.model_validate(asked)


def results(link: FakeLink, of: OperationId) -> list[CallResult]:
    return [message for message in link.all(CallResult) if message.operation == of]


def history(**asked: object) -> ReadHistory:
    wanted = HistoryRange.model_validate(asked)
    return ReadHistory(request=next(_numbers), session=SESSION, range=wanted)


async def read(on: Stage, link: FakeLink, **asked: object) -> History:
    message = history(**asked)
    on.host.received(link, message)
    return await link.reply(History, message.request)
