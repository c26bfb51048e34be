"""What these tests stand on: a scripted program, a broker that remembers, virtual time."""

import asyncio
import itertools
import json
import selectors
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup
from chappie_agents.attendant import AgentHost
from chappie_agents.hosts.model.endpoint import Endpoint
from chappie_agents.hosts.model.habits import Plain
from chappie_agents.hosts.model.house import House
from chappie_agents.hosts.model.knowledge import Settings

from chappie_bridge.wire.ids import Mint, OperationId, SessionId
from chappie_bridge.wire.messages import (
    InputOffered,
    PostChat,
    Register,
    Registered,
    RunBatch,
)
from chappie_bridge.wire.values import Origin, ToolCall
from tests.agents.stage import FakeLink

KEY = "k" * 43
ORIGIN = Origin(kind="conversation", id="c" * 43, label="a chat")
START = 1_700_000_000.0
Body = dict[str, Any]


class _Patient(selectors.DefaultSelector):
    """Lets the time pass when nothing else goes on, in no thread either."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        if self.loop.busy or timeout is None:
            return super().select(1.0)
        found = super().select(0)
        if not found:
            self.loop.passed += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An hour of it takes as long as what happens in it."""

    def __init__(self) -> None:
        selector = _Patient()
        selector.loop = self
        self.passed = 0.0
        self.busy = 0
        """Worker threads under way; `watched` counts them."""
        super().__init__(selector)

    def time(self) -> float:
        return self.passed


def watched(run_sync: Any) -> Any:
    """`anyio.to_thread.run_sync`, counted by the loop."""

    async def run(*args: Any, **more: Any) -> Any:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop):
            return await run_sync(*args, **more)
        loop.busy += 1
        try:
            return await run_sync(*args, **more)
        finally:
            loop.busy -= 1

    return run


class Link(FakeLink):
    """A broker that takes each session at once."""

    host: AgentHost

    def send(self, message: Any) -> None:
        super().send(message)
        if isinstance(message, Register):
            reply = Registered(request=message.request, session=message.session.id)
            asyncio.get_running_loop().call_soon(self.host.received, self, reply)

    def registered(self) -> list[SessionId]:
        return [message.session.id for message in self.all(Register)]

    def typed(self) -> list[str]:
        return [
            "".join(getattr(block, "text", "<image>") for block in message.input.content)
            for message in self.all(InputOffered)
        ]


def now_of() -> Callable[[], float]:
    """The clock of the running loop, for any thread."""
    loop = asyncio.get_running_loop()
    return lambda: START + loop.time()


@dataclass
class Stage:
    """An endpoint on the files of one directory."""

    host: AgentHost
    house: House
    endpoint: Endpoint
    link: Link
    tasks: TaskGroup

    def batch(self, session: str, *calls: tuple[str, Body], of: str | None = None) -> RunBatch:
        """ChatGPT's `call`; returns what was sent."""
        message = RunBatch(
            operation=OperationId(of or Mint().operation()),
            session=SessionId(session),
            origin=ORIGIN,
            calls=tuple(ToolCall(id=Mint().call(), name=name, arguments=given) for name, given in calls),
        )
        self.host.received(self.link, message)
        return message

    def chat(self, session: str, text: str, *, final: bool = True, reply_to: str | None = None) -> PostChat:
        message = PostChat(
            operation=Mint().operation(),
            session=SessionId(session),
            origin=ORIGIN,
            text=text,
            final=final,
            reply_to=reply_to,
        )
        self.host.received(self.link, message)
        return message


@asynccontextmanager
async def stage(directory: Path, settings: Settings | None = None, **more: Any) -> AsyncGenerator[Stage]:
    """A process of the endpoint; at its end it is gone as if killed, but for closed files."""
    host, now = AgentHost(), now_of()
    house = House(
        host,
        directory,
        device="desk",
        settings=settings or Settings(),
        habits=lambda info, program: Plain(program, None, home=directory),
        now=now,
        mint=Mint(),
        **more,
    )
    link = Link()
    link.host = host
    with house.held():
        async with anyio.create_task_group() as tasks:
            await tasks.start(host.run)
            host.link_up(link)
            await tasks.start(house.run)
            endpoint = Endpoint(house, KEY, now=now)
            yield Stage(host, house, endpoint, link, tasks)
            tasks.cancel_scope.cancel()


_numbers = itertools.count(1)


@dataclass
class Reply:
    """What the program has received of one answer, and what it makes of it."""

    status: int = 0
    body: bytes = b""
    ended: bool = False
    parts: list[bytes] = field(default_factory=list)
    _leave: anyio.Event = field(default_factory=anyio.Event)
    _more: anyio.Event = field(default_factory=anyio.Event)
    deaf: bool = False
    """It reads no more: what we write fails."""

    def leave(self) -> None:
        """Close the connection."""
        self._leave.set()

    async def receive(self) -> Body:
        await self._leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: Any) -> None:
        if self.deaf or self._leave.is_set():
            raise OSError("closed")
        if event["type"] == "http.response.start":
            self.status = event["status"]
        else:
            self.parts.append(event["body"])
            self.body += event["body"]
            self.ended = not event.get("more_body", False)
        self._more.set()

    async def until_end(self, within: float = 5.0) -> "Reply":
        with anyio.fail_after(within):
            while not self.ended:
                self._more = anyio.Event()
                await self._more.wait()
        return self

    async def begun(self) -> "Reply":
        with anyio.fail_after(15):
            while not self.body and not self.ended:
                self._more = anyio.Event()
                await self._more.wait()
        return self

    def message(self) -> Body:
        """The assistant's message of a streamed chat completion."""
        text, calls = "", {}
        for line in self.body.decode().splitlines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
                    for call in choice["delta"].get("tool_calls", []):
                        calls[call["index"]] = {key: call[key] for key in ("id", "type", "function")}
        message: Body = {"role": "assistant", "content": text}
        return {**message, "tool_calls": list(calls.values())} if calls else message

    @property
    def call_ids(self) -> list[str]:
        return [call["id"] for call in self.message().get("tool_calls", [])]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"does {name}",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string"}},
                "required": ["text"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("say", "run")
]


class Program:
    """Pi as the endpoint sees it: sends its whole history each time."""

    def __init__(self, on: Stage, session: str | None = None, **headers: str) -> None:
        self.stage = on
        self.session = session
        self.headers: Mapping[str, str] = {
            "host": "127.0.0.1:24275",
            "authorization": f"Bearer {KEY}",
            "user-agent": "pi/1.6.0 (linux)" if session else "QwenCode/0.24.4",
            **({"session_id": session} if session else {}),
            **headers,
        }
        self.history: list[Body] = []
        self.tools: list[Body] = TOOLS
        self.stream = True

    def says(self, text: str) -> "Program":
        self.history.append({"role": "user", "content": text})
        return self

    def asks(self, **more: Any) -> Reply:
        """Send the history as it is; the answer comes while others go on."""
        body = {"model": "chappie", "messages": self.history, "tools": self.tools, "stream": self.stream}
        return self.posts("/v1/chat/completions", {**body, **more})

    def posts(self, path: str, body: Any, method: str = "POST", **headers: str) -> Reply:
        reply = Reply()
        self.stage.tasks.start_soon(
            post, self.stage.endpoint, path, body, {**self.headers, **headers}, reply, method
        )
        return reply

    def ran(self, reply: Reply, *results: str, then: str | None = None) -> None:
        """Take the calls of an answer into the history, with results by their order."""
        self.history.append(reply.message())
        for call, result in zip(reply.call_ids, results, strict=True):
            self.history.append({"role": "tool", "tool_call_id": call, "content": result})
        if then is not None:
            self.says(then)


async def post(
    endpoint: Endpoint, path: str, body: Any, headers: Mapping[str, str], reply: Reply, method: str = "POST"
) -> None:
    parts = [body if isinstance(body, bytes) else json.dumps(body).encode()]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }

    async def receive() -> Body:
        if not parts:
            return await reply.receive()
        return {"type": "http.request", "body": parts.pop(), "more_body": False}

    await endpoint(scope, receive, reply.send)
    reply.ended = True
    reply._more.set()
