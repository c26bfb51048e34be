"""A Switchboard that answers as it is told, and real servers around the face, for the tests."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, cast

import anyio
import anyio.lowlevel
import httpx2
import uvicorn
import uvicorn.server
from starlette.types import ASGIApp

from chappie_bridge.faces.chatgpt.admission import Credential
from chappie_bridge.faces.chatgpt.server import FaceSettings
from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.blocks import Content, Text
from chappie_bridge.wire.errors import Executed, UnknownSession
from chappie_bridge.wire.ids import CallId, EntryId, OperationId, QuestionId, ReceiptId, SessionId
from chappie_bridge.wire.messages import Done, History, Message
from chappie_bridge.wire.question import Asked, Option, Question, Stage
from chappie_bridge.wire.requests import (
    Ask,
    AssertAsked,
    BrokerStatus,
    Bytes,
    Chat,
    FetchBytes,
    FetchHistory,
    HistoryView,
    ListSessions,
    ListTools,
    OpenSession,
    OperationView,
    Push,
    Pushed,
    QuestionView,
    Respond,
    SessionList,
    SessionOpened,
    StatusReport,
    Submit,
    ToolList,
    Transfer,
    TypeInput,
    Unbind,
    Unbound,
)
from chappie_bridge.wire.values import (
    Companions,
    Initialization,
    Pending,
    SessionHead,
    SessionRow,
    ToolDefinition,
    ToolResult,
)

SECRET = "a-secret-of-the-tests"
SESSION = SessionId("s_one")
HEAD = SessionHead(session=SESSION, device="laptop", cwd="/home/me/project")
ROW = SessionRow(
    id=SESSION,
    agent="builtin",
    device="laptop",
    cwd="/home/me/project",
    status="ready",
    binding_count=1,
    last_seen="2026-01-02T03:04:05.678Z",
)
TOOL = ToolDefinition(name="read", description="Read a file.\nMore.", parameters={"type": "object"})
NOOP = {"calls": [{"name": "noop", "arguments": {}}]}

Json = dict[str, Any]


DONE: Content = (Text(text="done"),)


def result(content: Content = DONE, call: str = "call_chp_1", **more: Any) -> ToolResult:
    given: Json = {"name": "noop", "is_error": False, "duration_ms": 3, **more}
    return ToolResult(call=CallId(call), content=content, **given)


def view(**more: Any) -> OperationView:
    given: Json = {
        "operation": OperationId("op_1"),
        "kind": "batch",
        "status": Status.DONE,
        "executed": Executed.YES,
        "target": HEAD,
        "seq": 1,
        "results": (result(),),
        "companions": Companions(receipt=ReceiptId("r_1")),
        **more,
    }
    return OperationView(**given)


QUESTION = Question(
    id=QuestionId("q_1"),
    session=SESSION,
    device=HEAD.device,
    cwd=HEAD.cwd,
    asked=Asked(
        header="Format",
        question="Which export format?",
        options=(Option(title="JSON", description="For programs.", recommended=True), Option(title="CSV")),
    ),
    stage=Stage.ASKED,
    loaded=False,
    revision=0,
    asked_at="2026-01-02T03:04:05.678Z",
)


def opened(**more: Any) -> SessionOpened:
    given: Json = {
        "selection": "automatic",
        "bound": True,
        "initialization": Initialization(session=SESSION, instructions="Go on."),
        "session": ROW,
        "tools": (TOOL,),
        "companions": Companions(receipt=ReceiptId("r_init")),
        **more,
    }
    return SessionOpened(**given)


class Scripted:
    """Answers at once and well, unless `on` says otherwise for a method.  Remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Message] = []
        self.receipts: dict[str, list[bool]] = {}
        self.on: dict[str, Callable[[Any], Awaitable[Message]]] = {}
        self._told = anyio.Event()

    async def sessions(self, request: ListSessions) -> SessionList:
        default = SessionList(binding=None, sessions=(ROW,), has_more=False)
        return cast("SessionList", await self._play("sessions", request, default))

    async def init(self, request: OpenSession) -> SessionOpened:
        return cast("SessionOpened", await self._play("init", request, opened()))

    async def tools(self, request: ListTools) -> ToolList:
        default = ToolList(session=ROW, tools=(TOOL,), pending=Pending())
        return cast("ToolList", await self._play("tools", request, default))

    async def call(self, request: Submit) -> OperationView:
        return cast("OperationView", await self._play("call", request, view()))

    async def chat(self, request: Chat) -> OperationView:
        default = view(kind="chat", results=(), entry=EntryId("e_9"))
        return cast("OperationView", await self._play("chat", request, default))

    async def transfer(self, request: Transfer) -> OperationView:
        default = view(kind="transfer", results=())
        return cast("OperationView", await self._play("transfer", request, default))

    async def push(self, request: Push) -> Pushed:
        raise AssertionError("the face never pushes bytes")

    async def ask(self, request: Ask) -> QuestionView:
        default = QuestionView(question=QUESTION, companions=Companions(receipt=ReceiptId("r_ask")))
        return cast("QuestionView", await self._play("ask", request, default))

    async def ask_assert(self, request: AssertAsked) -> QuestionView:
        return cast("QuestionView", await self._play("ask_assert", request, QuestionView(question=QUESTION)))

    async def answer(self, request: Respond) -> QuestionView:
        return cast("QuestionView", await self._play("answer", request, QuestionView(question=QUESTION)))

    async def history(self, request: FetchHistory) -> HistoryView:
        page = History(session=SESSION, cwd=HEAD.cwd)
        default = HistoryView(target=HEAD, pending=Pending(), page=page)
        return cast("HistoryView", await self._play("history", request, default))

    async def fetch(self, request: FetchBytes) -> Bytes:
        if "fetch" not in self.on:
            raise UnknownSession
        return cast("Bytes", await self.on["fetch"](request))

    async def say(self, request: TypeInput) -> Done:
        raise AssertionError("the face never types input")

    async def unbind(self, request: Unbind) -> Unbound:
        raise AssertionError("the face never unbinds")

    async def status(self, request: BrokerStatus) -> StatusReport:
        default = StatusReport(
            version="1",
            started="2026-01-02T03:04:05.678Z",
            sessions_online=1,
            sessions_known=1,
            bindings=0,
            operations_open=0,
        )
        return cast("StatusReport", await self._play("status", request, default))

    def told(self, receipt: ReceiptId, *, sent: bool) -> None:
        self.receipts.setdefault(receipt, []).append(sent)
        self._told.set()
        self._told = anyio.Event()

    async def until_told(self, receipt: str) -> bool:
        """What the gate said of `receipt`, which it says once."""
        with anyio.fail_after(5):
            while receipt not in self.receipts:
                await self._told.wait()
        (said,) = self.receipts[receipt]
        return said

    async def _play(self, method: str, request: Message, default: Message) -> Message:
        self.asked.append(request)
        if method in self.on:
            return await self.on[method](request)
        return default


def settings(**more: Any) -> FaceSettings:
    return FaceSettings(**{"version": "9.8", "credentials": (Credential("owner", SECRET),), **more})


@asynccontextmanager
async def served(app: ASGIApp, http: Literal["h11", "httptools"] = "httptools") -> AsyncGenerator[str]:
    """`app` on a free port of the loopback; its URL without a path.  The server's own protocol without its
    main loop, which takes a tenth of a second to stop."""
    config = uvicorn.Config(app, http=http, log_config=None, access_log=False, lifespan="off")
    config.load()
    state = uvicorn.server.ServerState()
    make = partial(config.http_protocol_class, config=config, server_state=state, app_state={})
    listener = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        for connection in list(state.connections):
            connection.shutdown()
        with anyio.move_on_after(1):
            while state.tasks:
                await anyio.lowlevel.checkpoint()
        for task in list(state.tasks):
            task.cancel()
        for connection in list(state.connections):
            connection.transport.abort()
        await anyio.lowlevel.checkpoint()


def request(name: str, arguments: Json | None = None, identifier: int | str = 1, **meta: Any) -> Json:
    """A `tools/call` of the handshake era."""
    params: Json = {"name": name, "arguments": arguments or {}}
    if meta:
        params["_meta"] = {key.replace("__", "/"): value for key, value in meta.items()}
    return {"jsonrpc": "2.0", "id": identifier, "method": "tools/call", "params": params}


@asynccontextmanager
async def client(url: str, headers: dict[str, str] | None = None) -> AsyncGenerator[httpx2.AsyncClient]:
    """An HTTP client with the credential."""
    every = {"X-Chappie-Key": SECRET, "Accept": "application/json, text/event-stream", **(headers or {})}
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, headers=every, timeout=10, limits=limits) as http:
        yield http


async def called(http: httpx2.AsyncClient, name: str, arguments: Json | None = None, **meta: Any) -> Json:
    """The result of a tool call over `http`."""
    answer = await http.post("/mcp", json=request(name, arguments, **meta))
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()["result"]
    return found


def lines(found: Json) -> list[Json]:
    """The blocks of a result that are JSON lines."""
    texts = [block["text"] for block in found["content"] if block["type"] == "text"]
    return [json.loads(text) for text in texts if text.startswith("{")]


def error(found: Json) -> Json:
    """The error of a result that is one."""
    assert found["isError"] is True
    (block,) = found["content"]
    shown: Json = json.loads(block["text"])["error"]
    return shown
