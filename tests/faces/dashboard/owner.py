"""An owner with something of everything to see, hostile names included; and a browser of sorts."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from chappie_bridge.faces.chatgpt.server import build
from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.blocks import Image, Spill, Text
from chappie_bridge.wire.errors import Executed, Forbidden, Unsupported
from chappie_bridge.wire.ids import CallId, DeviceId, EntryId, OperationId, QuestionId, SessionId
from chappie_bridge.wire.messages import Decided, Done, History
from chappie_bridge.wire.overview import (
    AnswerApproval,
    AnswerQuestion,
    ApprovalList,
    AwaitChange,
    CancelOperation,
    Changed,
    ListApprovals,
    ListOperations,
    ListQuestions,
    OperationList,
    OperationRow,
    PendingApproval,
    QuestionList,
    RecentQuestion,
)
from chappie_bridge.wire.owner import (
    AuditPage,
    AuditRow,
    DeviceList,
    DeviceView,
    ListDevices,
    Measure,
    Measures,
    ReadAudit,
    RedeemCode,
    RevokeDevice,
    Sample,
    TakeMeasures,
)
from chappie_bridge.wire.question import Asked, Option, Question, Stage
from chappie_bridge.wire.requests import (
    BrokerStatus,
    CallerRequest,
    FetchHistory,
    HistoryView,
    ListSessions,
    QuestionView,
    SessionList,
    StatusReport,
)
from chappie_bridge.wire.values import (
    ApprovalAsked,
    Entry,
    Moving,
    Need,
    Pending,
    SessionHead,
    SessionRow,
)
from tests.faces.chatgpt.scripted import settings
from tests.peer.switchboard import ScriptedSwitchboard

CODE = "AAAA-BBBB-CCCC-DDDD"
EVIL = "<script>alert(1)</script>\u202e\x1b[2J"
SESSION = SessionId("s/<b>one</b>?&#")
AT = "2026-01-02T03:04:05.678Z"
HOST = "http://127.0.0.1:24273"

Json = dict[str, Any]

ROW = SessionRow(
    id=SESSION,
    agent=EVIL,
    device=EVIL,
    cwd=f"/home/{EVIL}",
    name=EVIL,
    model=EVIL,
    parent=SessionId(EVIL),
    status="offline",
    binding_count=2,
    last_seen=AT,
    transfers=(Moving(operation=OperationId("op_3"), files=2, moved=500, size=2000),),
)
APPROVAL = PendingApproval(
    session=SESSION,
    device=EVIL,
    cwd="/",
    approval=ApprovalAsked(
        id="ap_1", tool=EVIL, path=EVIL, writing=True, what=EVIL, directory=EVIL, conversational=True
    ),
)
QUESTION = Question(
    id=QuestionId("q_1"),
    session=SESSION,
    device=EVIL,
    cwd="/",
    asked=Asked(
        header=EVIL,
        question=f"{EVIL}\nWhich?",
        context=EVIL,
        options=(Option(title=EVIL, description=EVIL, recommended=True), Option(title="CSV")),
    ),
    stage=Stage.SHOWN,
    loaded=True,
    revision=3,
    asked_at=AT,
)


def operation(name: str, **more: Any) -> OperationRow:
    given: Json = {
        "operation": OperationId(name),
        "kind": "batch",
        "session": SESSION,
        "device": EVIL,
        "origin": EVIL,
        "status": Status.RUNNING,
        "executed": Executed.UNKNOWN,
        "seq": 7,
        "accepted": AT,
        "duration_ms": 61_500,
        "what": EVIL,
        **more,
    }
    return OperationRow(**given)


def device(of: str, **more: Any) -> DeviceView:
    times: Json = {"paired": 1_767_323_045.0, "last_seen": 1_767_323_045.5, "links": 0}
    return DeviceView(**{"id": DeviceId(of), "name": of, **times, **more})


def entry(of: str, kind: Any = "assistant", **more: Any) -> Entry:
    return Entry(**{"id": EntryId(of), "at": AT, "kind": kind, "content": (Text(text=EVIL),), **more})


ENTRIES = (
    entry("e_1", "user"),
    entry("e_2", "call", call=CallId("call_chp_1"), name=EVIL, arguments={EVIL: EVIL, "n": [1]}, content=()),
    entry(
        "e_3",
        "result",
        call=CallId("call_chp_1"),
        name=EVIL,
        is_error=True,
        duration_ms=12,
        content=(
            Text(text="first line\nsecond"),
            Image(data="aGk=", mime_type="image/png"),
            Image(data="aGk=", mime_type="image/svg+xml"),
            Spill(of="text", head=EVIL, tail=EVIL, size=90_000, sha256="0" * 64, path=EVIL),
            Spill(of="image", size=90_000, sha256="0" * 64, path=EVIL),
        ),
    ),
    entry("e/4 ü"),
)

OPERATIONS = (
    operation("op_1", status=Status.ASKING, needs=(Need(kind="approval", session=SESSION, what=EVIL),)),
    operation("op_2", status=Status.INTERRUPTED),
    operation("op_3", kind="transfer"),
)


class Owner(ScriptedSwitchboard):
    """`on` gives other answers by the class of the request."""

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.on: dict[type[CallerRequest], Callable[[Any], Awaitable[Any]]] = {}
        self.codes = {CODE}

    async def _reply(self, request: CallerRequest) -> Any:
        if type(request) in self.on:
            return await self.on[type(request)](request)
        match request:
            case RedeemCode(purpose="login", code=code):
                if code not in self.codes:
                    raise Forbidden("This code is not valid, or no longer.")
                self.codes.remove(code)
                return Done()
            case ListSessions():
                return SessionList(sessions=(ROW,), has_more=True)
            case ListOperations():
                return OperationList(operations=OPERATIONS)
            case ListApprovals():
                return ApprovalList(approvals=(APPROVAL,))
            case ListQuestions():
                return QuestionList(questions=(RecentQuestion(question=QUESTION, origin=EVIL),))
            case FetchHistory():
                head = SessionHead(session=SESSION, device="d", cwd="/")
                page = History(session=SESSION, cwd="/", entries=ENTRIES, has_more=True)
                return HistoryView(target=head, pending=Pending(), page=page)
            case ReadAudit():
                line = AuditRow(number=4, at=AT, who=EVIL, what=EVIL, where=EVIL, size=1, outcome=EVIL)
                return AuditPage(lines=(line,))
            case ListDevices():
                return DeviceList(
                    devices=(
                        device("local", name="laptop"),
                        device("d_1", name=EVIL, links=2),
                        device("d_2", revoked=1_767_323_045.0),
                    )
                )
            case RevokeDevice():
                return Done()
            case TakeMeasures():
                sample = Sample(value=2, labels={"status": "done"})
                return Measures(
                    measures=(Measure(name="chappie_x", kind="gauge", about="Things.", samples=(sample,)),)
                )
            case BrokerStatus():
                return StatusReport(
                    version="1",
                    started=AT,
                    sessions_online=1,
                    sessions_known=2,
                    bindings=3,
                    operations_open=4,
                )
            case CancelOperation():
                return Done()
            case AnswerApproval(allowed=allowed, scope=scope):
                return Decided(allowed=allowed, scope=scope, by="dashboard")
            case AnswerQuestion():
                return QuestionView(question=QUESTION)
            case AwaitChange():
                return Changed(number=1)
            case _:
                raise Unsupported

    def of(self, kind: type[CallerRequest]) -> list[Any]:
        """The requests of one kind that came."""
        return [each for each in self.asked if type(each) is kind]


@asynccontextmanager
async def browser(owner: Owner, **more: Any) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client that keeps cookies, as a page of the bridge itself has it."""
    transport = httpx2.ASGITransport(app=build(owner, settings(**more), owner))
    async with httpx2.AsyncClient(transport=transport, base_url=HOST, headers={"Origin": HOST}) as http:
        yield http


async def log_in(http: httpx2.AsyncClient, code: str = CODE) -> httpx2.Response:
    return await http.post("/dashboard/login", data={"code": code})


@asynccontextmanager
async def inside(owner: Owner, **more: Any) -> AsyncGenerator[httpx2.AsyncClient]:
    """A browser that is logged in."""
    async with browser(owner, **more) as http:
        assert (await log_in(http)).status_code == 303
        yield http


async def token(http: httpx2.AsyncClient) -> str:
    """What the forms of a page carry."""
    found = re.search(r'name="token" value="([^"]+)"', (await http.get("/dashboard")).text)
    assert found is not None
    return found[1]
