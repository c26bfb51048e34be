"""A broker on a real registry, and scripted agents on links without sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import time
from typing import Any

import anyio
import anyio.lowlevel
from chappie_broker.broker import Broker
from chappie_broker.codes import OneTimeCodes
from chappie_broker.devices import Devices
from chappie_broker.directory import within
from chappie_broker.limits import Limits
from chappie_broker.office import OwnersOffice
from chappie_broker.store.rows import Device
from chappie_broker.store.sqlite import InlineSqliteStore

from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.errors import BridgeError, Cancelled, Denied, Executed, Overloaded, PathMissing
from chappie_bridge.wire.ids import DeviceId, InstanceId, Mint, OperationId, SessionId
from chappie_bridge.wire.messages import (
    Admit,
    Asking,
    CallResult,
    Cancel,
    Describe,
    Description,
    Done,
    Failed,
    Finished,
    History,
    InputOffered,
    Message,
    PostChat,
    ReadHistory,
    Register,
    Registered,
    Residence,
    RunBatch,
    SessionStarted,
    Settled,
    StartSession,
    Typed,
)
from chappie_bridge.wire.ports import Attendant, Peer
from chappie_bridge.wire.values import Caller, Input, SessionInfo, ToolDefinition, ToolResult

NOOP = ToolDefinition(name="noop", description="Does nothing.", parameters={"type": "object"})


class ScriptedAgent:
    """One agent process with sessions; answers batches at once unless `hold` says otherwise.

    Everything it is sent lands in `got`; nothing it does needs a socket."""

    def __init__(self, board: Attendant, device: str = "laptop", instance: str = "i1") -> None:
        self.board = board
        self._peer = Peer("agent", DeviceId(device), InstanceId(instance), device)
        self.up = True
        self.got: list[Message] = []
        self.hold = False
        self.on_batch: Callable[[RunBatch], None] | None = None
        self.deaf = False
        self.full = False
        """The link's buffer takes nothing more."""
        self.roots: tuple[str, ...] = ()
        self.started: list[str] = []
        self.half = False
        """Does it say that it started a session, and never register it?"""
        self._number = 0

    @property
    def peer(self) -> Peer:
        return self._peer

    # The broker's side of the link.

    def send(self, message: Message) -> None:
        if self.full:
            raise Overloaded
        self.got.append(message)
        asyncio.get_running_loop().call_soon(self._act, message)

    async def send_chunk(self, stream: int, offset: int, data: bytes) -> None:
        raise NotImplementedError

    def _act(self, message: Message) -> None:
        if self.deaf or not self.up:
            return
        if isinstance(message, RunBatch):
            if self.on_batch is not None:
                self.on_batch(message)
            elif not self.hold:
                self.finish(message)
        elif isinstance(message, PostChat):
            self.finish_chat(message)
        elif isinstance(message, Describe):
            self.say(Description(request=message.request, session=message.session, tools=(NOOP,)))
        elif isinstance(message, (Typed, Admit)):
            self.say(Done(request=message.request))
        elif isinstance(message, StartSession):
            self.start(message)
        elif isinstance(message, ReadHistory) and not message.range.wait:
            self.say(History(request=message.request, session=message.session, cwd="/work"))

    # What the agent does.

    def say(self, message: Message) -> None:
        self.board.received(self, message)

    def register(
        self,
        session: str,
        *,
        cwd: str = "/work",
        parent: str | None = None,
        known: tuple[str, ...] = (),
        name: str | None = None,
    ) -> None:
        self._number += 1
        info = SessionInfo(
            id=SessionId(session),
            agent="builtin",
            device=self._peer.device,
            cwd=cwd,
            parent=SessionId(parent) if parent else None,
            name=name,
        )
        self.say(Register(request=self._number, session=info, known=tuple(OperationId(k) for k in known)))

    async def comes(self, session: str, **more: Any) -> None:
        """Register, and see that it is told: for a test whose next request is short of time."""
        self.register(session, **more)
        with anyio.fail_after(10):
            while session not in self.registered():
                await anyio.lowlevel.checkpoint()

    def reside(self, *roots: str) -> None:
        """Tell that it starts sessions in `roots`; a directory named `missing` is not there."""
        self.roots = roots
        self.say(Residence(agent="builtin", roots=roots, home="/home/me"))

    def start(self, message: StartSession) -> None:
        directory = message.directory.replace("~", "/home/me")
        error: BridgeError | None = None
        if not any(within(directory, root) for root in self.roots):
            error = Denied()
        elif directory.endswith("/missing"):
            error = PathMissing()
        if error is not None:
            self.say(Failed(request=message.request, failure=error.failure()))
            return
        session = f"started-{self._peer.device}-{len(self.started)}"
        self.started.append(session)
        self.say(SessionStarted(request=message.request, session=SessionId(session)))
        if not self.half:
            self.register(session, cwd=directory)

    def finish(
        self, batch: RunBatch, *, status: str = "done", text: str = "ok", upto: int | None = None
    ) -> None:
        calls = batch.calls if upto is None else batch.calls[:upto]
        error = Cancelled().failure() if status == "cancelled" else None
        for index, call in enumerate(calls):
            result = ToolResult(
                call=call.id, name=call.name, is_error=False, duration_ms=1, content=(Text(text=text),)
            )
            self.say(CallResult(operation=batch.operation, session=batch.session, index=index, result=result))
        self.say(
            Finished(
                operation=batch.operation,
                session=batch.session,
                origin=batch.origin,
                kind="batch",
                status=status,
                executed=Executed.YES,
                cwd="/work",
                count=len(batch.calls),
                error=error,
            )
        )

    def finish_chat(self, chat: PostChat) -> None:
        self.say(
            Finished(
                operation=chat.operation,
                session=chat.session,
                origin=chat.origin,
                kind="chat",
                status="done",
                executed=Executed.YES,
                cwd="/work",
            )
        )

    def type(self, session: str, identifier: str, text: str) -> None:
        item = Input(id=identifier, at="2026-01-01T00:00:00.000Z", content=(Text(text=text),))
        self.say(InputOffered(session=SessionId(session), input=item))

    def ask(self, batch: RunBatch, needs: tuple[object, ...]) -> None:
        self.say(Asking(operation=batch.operation, session=batch.session, needs=needs))

    def batches(self) -> list[RunBatch]:
        return [message for message in self.got if isinstance(message, RunBatch)]

    def cancels(self) -> list[Cancel]:
        return [message for message in self.got if isinstance(message, Cancel)]

    def settled(self) -> list[Settled]:
        return [message for message in self.got if isinstance(message, Settled)]

    def refusals(self) -> list[str]:
        return [message.failure.code for message in self.got if message.type == "failed"]

    def registered(self) -> list[str]:
        return [message.session for message in self.got if isinstance(message, Registered)]


def agent(session: str, principal: str = "owner") -> Caller:
    """A session that asks."""
    return Caller(principal=principal, source="session", value=session)


def chat(name: str, principal: str = "owner") -> Caller:
    """A ChatGPT conversation."""
    return Caller(principal=principal, source="openai", value=name)


@asynccontextmanager
async def broker(
    state: Path, *, devices: tuple[str, ...] = ("laptop",), now: Callable[[], float] = time, **limits: float
) -> AsyncIterator[Broker]:
    store = await InlineSqliteStore.open(state / "broker.db")
    for name in devices:
        await store.save_device(Device(DeviceId(name), name, f"hash of {name}", now(), now()))
    try:
        async with Broker.open(
            store, key=b"k" * 32, version="0", limits=Limits(**limits), now=now, mint=Mint()
        ) as running:
            yield running
    finally:
        await store.close()


def an_office(board: Broker) -> OwnersOffice:
    return OwnersOffice(
        board._store,
        board.dispatch,
        board.questions,
        board.changes,
        board.measures,
        board.apps,
        board.subjects,
        codes=(codes := OneTimeCodes(lambda: 0.0)),
        devices=Devices(board._store, codes, (), local=DeviceId("local"), now=lambda: 0.0, mint=Mint()),
        now=lambda: 0.0,
    )


async def settle_down() -> None:
    """Let everything that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)
