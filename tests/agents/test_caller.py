"""The broker as seen over a link: the same Switchboard, honest about what it does not know."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from chappie_agents import caller as callers
from chappie_agents.caller import RemoteSwitchboard
from chappie_broker.desk import CallerDesk

from chappie_bridge.inproc import InProcessLink, connect
from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.errors import (
    BridgeError,
    Executed,
    Internal,
    Lost,
    Overloaded,
    SessionOffline,
    Timeout,
)
from chappie_bridge.wire.ids import AppId, CallId, InstanceId, OperationId, ReceiptId, SessionId
from chappie_bridge.wire.messages import Decided, Done, Failed, History, Message, Request, Withdraw
from chappie_bridge.wire.overview import (
    AnswerApproval,
    ApprovalList,
    AwaitChange,
    CancelOperation,
    Changed,
    ListApprovals,
    ListOperations,
    ListQuestions,
    OperationList,
    QuestionList,
)
from chappie_bridge.wire.owner import (
    AppList,
    AuditPage,
    CodeMade,
    DeviceList,
    ListApps,
    ListDevices,
    ListSubjects,
    MakeCode,
    Measures,
    PairDevice,
    PairingMade,
    ReadAudit,
    RedeemCode,
    RevokeApp,
    RevokeDevice,
    RuleSubject,
    SubjectList,
    TakeMeasures,
)
from chappie_bridge.wire.ports import Link, Peer
from chappie_bridge.wire.requests import (
    BrokerStatus,
    Bytes,
    CallerRequest,
    Chat,
    FetchBytes,
    FetchHistory,
    HistoryView,
    ListSessions,
    ListTools,
    OpenSession,
    OperationView,
    Receipt,
    SessionList,
    StatusReport,
    Submit,
    ToolList,
    TypeInput,
    Unbind,
    Unbound,
    ViewPart,
)
from chappie_bridge.wire.values import (
    Companions,
    DeferredItem,
    HistoryRange,
    Pending,
    SessionHead,
    SessionRow,
    ToolResult,
)
from tests.peer.flaky import Flaky
from tests.peer.link_rig import LOCAL, a_dial, a_hub, room, running
from tests.peer.recorder import Recorder
from tests.peer.switchboard import ScriptedSwitchboard

pytestmark = pytest.mark.anyio

SESSION = SessionId("s_1")
HEAD = SessionHead(session=SESSION, device="laptop", cwd="/")
ROW = SessionRow(
    id=SESSION, agent="builtin", device="laptop", cwd="/", status="ready", binding_count=0, last_seen=""
)


def view(*results: ToolResult, companions: Companions | None = None) -> OperationView:
    return OperationView(
        operation=OperationId("op_1"),
        kind="batch",
        status=Status.DONE,
        executed=Executed.YES,
        target=HEAD,
        seq=1,
        results=results,
        companions=companions or Companions(),
    )


def result(number: int, size: int = 10) -> ToolResult:
    return ToolResult(
        call=CallId(f"c_{number}"),
        name="read",
        is_error=False,
        duration_ms=1,
        content=(Text(text="x" * size),),
    )


class Broker(Recorder):
    """The other end of an in-process link, played by the test."""

    def requests(self) -> list[CallerRequest]:
        return [message for message in self.messages if isinstance(message, CallerRequest)]

    async def asked(self, count: int) -> CallerRequest:
        await self.until(lambda: len(self.requests()) >= count)
        return self.requests()[count - 1]


def linked(board: RemoteSwitchboard, broker: Recorder) -> InProcessLink:
    return connect(
        board,
        Peer("broker", LOCAL, InstanceId("i_b"), ""),
        broker,
        Peer("caller", LOCAL, InstanceId("i_c"), ""),
    )[0]


class Outcome:
    """What became of a request that runs in a task of its own."""

    value: object = None

    def __init__(self) -> None:
        self.over = anyio.Event()

    async def of(self, call: Callable[[Any], Awaitable[object]], request: CallerRequest) -> None:
        try:
            self.value = await call(request)
        except BridgeError as error:
            self.value = error
        self.over.set()


@asynccontextmanager
async def asking(
    call: Callable[[Any], Awaitable[object]], *requests: CallerRequest
) -> AsyncIterator[list[Outcome]]:
    outcomes = [Outcome() for _ in requests]
    async with anyio.create_task_group() as tasks:
        for outcome, request in zip(outcomes, requests, strict=True):
            tasks.start_soon(outcome.of, call, request)
        yield outcomes
        with anyio.fail_after(10):
            for outcome in outcomes:
                await outcome.over.wait()


async def test_replies_find_their_requests_in_any_order() -> None:
    board, broker = RemoteSwitchboard(), Broker()
    linked(board, broker)
    async with asking(board.chat, Chat(text="1"), Chat(text="2")) as outcomes:
        first, second = await broker.asked(1), await broker.asked(2)
        broker.link.send(view(result(2)).model_copy(update={"request": second.request}))
        broker.link.send(view(result(1)).model_copy(update={"request": first.request}))
        broker.link.send(view().model_copy(update={"request": 999}))  # nobody's
    assert [outcome.value.results[0].call for outcome in outcomes] == ["c_1", "c_2"]


async def test_a_failure_is_raised_as_the_error_it_is() -> None:
    def refuse(link: Link, message: Message) -> None:
        if isinstance(message, Request):
            link.send(Failed(request=message.request, failure=SessionOffline(hint="Start it.").failure()))

    board = RemoteSwitchboard()
    linked(board, Recorder(refuse))
    with pytest.raises(SessionOffline) as raised:
        await board.chat(Chat(text=""))
    assert raised.value.hint == "Start it."
    assert raised.value.retryable


async def test_a_reply_of_another_kind_is_a_bug_and_says_so() -> None:
    board = RemoteSwitchboard()
    linked(board, Recorder(lambda link, message: link.send(Done(request=message.request))))
    with pytest.raises(Internal, match="Chat with Done"):
        await board.chat(Chat(text=""))


async def test_parts_are_put_back_into_their_places() -> None:
    deferred = DeferredItem(
        operation=OperationId("op_0"), what="batch", target=HEAD, status=Status.DONE, executed=Executed.YES
    )
    whole = view(
        result(1),
        result(2),
        companions=Companions(
            receipt=ReceiptId("r"),
            items=(deferred, deferred.model_copy(update={"results": (result(3), result(4))})),
        ),
    )

    def answer(link: Link, message: Message) -> None:
        if isinstance(message, Request):
            number = message.request
            for place, one in ((None, 1), (1, 3), (None, 2), (1, 4)):
                link.send(ViewPart(request=number, deferred=place, result=result(one)))
            companions = Companions(receipt=ReceiptId("r"), items=(deferred, deferred))
            link.send(view(companions=companions).model_copy(update={"request": number}))

    board = RemoteSwitchboard()
    linked(board, Recorder(answer))
    found = await board.call(Submit())
    assert found.model_copy(update={"request": 0}) == whole


async def test_a_reply_of_too_many_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """S22: what is put together is bounded."""
    monkeypatch.setattr(callers, "MAX_PARTS", 3)

    def answer(link: Link, message: Message) -> None:
        if isinstance(message, Submit):
            for _ in range(4):
                link.send(ViewPart(request=message.request, deferred=None, result=result(1)))

    board = RemoteSwitchboard()
    linked(board, Recorder(answer))
    with pytest.raises(Internal, match="parts"):
        await board.call(Submit())


async def test_cancelling_a_request_withdraws_it() -> None:
    board, broker = RemoteSwitchboard(), Broker()
    linked(board, broker)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(board.call, Submit())
        asked = await broker.asked(1)
        tasks.cancel_scope.cancel()
    await broker.until(lambda: Withdraw(request=asked.request) in broker.messages)
    broker.link.send(view().model_copy(update={"request": asked.request}))  # crossed
    await anyio.wait_all_tasks_blocked()


async def test_no_reply_in_time_is_a_timeout_that_says_what_may_have_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(callers, "PATIENCE", 0.01)
    board, broker = RemoteSwitchboard(), Broker()
    linked(board, broker)
    with pytest.raises(Timeout) as unsafe:
        await board.call(Submit(wait=0))
    assert unsafe.value.executed is Executed.UNKNOWN
    with pytest.raises(Timeout) as safe:
        await board.sessions(ListSessions())
    assert safe.value.executed is Executed.NO
    await broker.until(lambda: sum(isinstance(message, Withdraw) for message in broker.messages) == 2)


async def test_a_broker_that_is_never_reached_means_that_nothing_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "PATIENCE", 0.01)
    board = RemoteSwitchboard()
    with pytest.raises(Lost) as lost:
        await board.call(Submit(wait=0))
    assert lost.value.executed is Executed.NO
    with pytest.raises(Lost):
        await board.reach(0.01)
    linked(board, Broker())
    await board.reach(10)


async def test_a_request_waits_for_the_broker_to_come_up() -> None:
    board, broker = RemoteSwitchboard(), Broker()
    async with asking(board.call, Submit()) as (outcome,):
        await anyio.wait_all_tasks_blocked()
        linked(board, broker)
        asked = await broker.asked(1)
        broker.link.send(view().model_copy(update={"request": asked.request}))
    assert isinstance(outcome.value, OperationView)


async def test_so_many_requests_may_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """S22: the caller's own queue is bounded."""
    monkeypatch.setattr(callers, "MAX_OUTSTANDING", 2)
    board = RemoteSwitchboard()
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(board.call, Submit())
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Overloaded):
            await board.call(Submit())
        tasks.cancel_scope.cancel()


# --- restarts of the broker ---

SAFE: list[tuple[str, CallerRequest]] = [
    ("sessions", ListSessions()),
    ("tools", ListTools()),
    ("history", FetchHistory(range=HistoryRange())),
    ("fetch", FetchBytes(session=SESSION, source="spill:x", offset=0, length=1)),
    ("status", BrokerStatus()),
    ("call", Submit(operation=OperationId("op_1"))),
]
UNSAFE: list[tuple[str, CallerRequest]] = [
    ("call", Submit()),
    ("call", Submit(operation=OperationId("op_1"), cancel=True)),
    ("chat", Chat(text="")),
    ("init", OpenSession()),
    ("say", TypeInput(session=SESSION, content=())),
    ("unbind", Unbind(session=SESSION)),
]


@pytest.mark.parametrize(("method", "request_"), SAFE, ids=lambda value: getattr(value, "type", value))
async def test_reading_is_asked_once_more_after_a_restart(method: str, request_: CallerRequest) -> None:
    """B02: and only once."""
    board, first, second = RemoteSwitchboard(), Broker(), Broker()
    link = linked(board, first)
    async with asking(getattr(board, method), request_) as (outcome,):
        asked = await first.asked(1)
        link.close()
        await anyio.wait_all_tasks_blocked()
        assert outcome.value is None
        link = linked(board, second)
        assert (await second.asked(1)).model_copy(update={"request": asked.request}) == asked
        link.close()
    assert isinstance(outcome.value, Timeout)
    assert outcome.value.executed is Executed.NO


@pytest.mark.parametrize(("method", "request_"), UNSAFE, ids=lambda value: getattr(value, "type", value))
async def test_what_may_have_run_is_never_sent_twice(method: str, request_: CallerRequest) -> None:
    """B02: the caller hears that it is not known."""
    board, first, second = RemoteSwitchboard(), Broker(), Broker()
    link = linked(board, first)
    async with asking(getattr(board, method), request_) as (outcome,):
        await first.asked(1)
        link.close()
    assert isinstance(outcome.value, Timeout)
    assert outcome.value.executed is Executed.UNKNOWN
    linked(board, second)
    await second.until_events("up")
    await anyio.wait_all_tasks_blocked()
    assert second.messages == []


async def test_what_never_left_is_sent_after_a_restart_whatever_it_is() -> None:
    """B02: it did not run, so nothing runs twice."""

    class Down(Recorder):
        """A link without a socket."""

        peer = Peer("broker", LOCAL, InstanceId("i_b"), "")
        up = False

        def send(self, message: Message) -> None:
            self.messages.append(message)

        async def send_chunk(self, stream: int, offset: int, data: bytes) -> None:
            raise NotImplementedError

    board, down, broker = RemoteSwitchboard(), Down(), Broker()
    board.link_up(down)
    board.link_down(down)
    async with asking(board.call, Submit()) as (outcome,):
        await anyio.wait_all_tasks_blocked()
        assert len(down.messages) == 1
        board.link_gone(down)
        linked(board, broker)
        asked = await broker.asked(1)
        broker.link.send(view().model_copy(update={"request": asked.request}))
    assert isinstance(outcome.value, OperationView)


async def test_receipts_are_sent_while_the_broker_that_offered_is_there() -> None:
    board, broker = RemoteSwitchboard(), Broker()
    board.told(ReceiptId("r_0"), sent=True)  # nobody to tell
    linked(board, broker)
    await broker.until_events("up")
    board.told(ReceiptId("r_1"), sent=False)
    await broker.until(lambda: broker.messages == [Receipt(receipt=ReceiptId("r_1"), sent=False)])


# --- with the real desk, over real sockets ---

REPLIES: list[tuple[str, CallerRequest, Request]] = [
    ("sessions", ListSessions(), SessionList(binding=SESSION, sessions=(), has_more=False)),
    ("tools", ListTools(), ToolList(session=ROW, tools=(), pending=Pending())),
    ("call", Submit(), view(result(1))),
    ("chat", Chat(text="hi"), view()),
    (
        "history",
        FetchHistory(range=HistoryRange()),
        HistoryView(target=HEAD, pending=Pending(), page=History(session=SESSION, cwd="/")),
    ),
    (
        "fetch",
        FetchBytes(session=SESSION, source="spill:x", offset=0, length=512 * 1024),
        Bytes(data="A" * 699_052, size=2**40),
    ),
    ("say", TypeInput(session=SESSION, content=(Text(text="hi"),)), Done()),
    ("unbind", Unbind(session=SESSION), Unbound(count=3)),
    ("make_code", MakeCode(purpose="pair"), CodeMade(code="A-B", expires="2026-01-01T00:00:00+00:00")),
    ("operations", ListOperations(session=SESSION), OperationList(operations=())),
    ("cancel", CancelOperation(operation=OperationId("op_1")), Done()),
    ("approvals", ListApprovals(), ApprovalList(approvals=())),
    (
        "answer_approval",
        AnswerApproval(session=SESSION, approval="ap_1", allowed=True, scope="directory"),
        Decided(allowed=False, scope="once", by="terminal"),
    ),
    ("questions", ListQuestions(limit=7), QuestionList(questions=())),
    ("change", AwaitChange(since=3, wait=0.5), Changed(number=4)),
    ("pair", PairDevice(name="laptop"), PairingMade(line="l", expires="2026-01-01T00:00:00+00:00")),
    ("devices", ListDevices(), DeviceList(devices=())),
    ("revoke", RevokeDevice(device="laptop"), Done()),
    ("redeem_code", RedeemCode(purpose="login", code="A-B", by="::1"), Done()),
    ("list_apps", ListApps(), AppList(apps=())),
    ("revoke_app", RevokeApp(app=AppId("a")), Done()),
    ("list_subjects", ListSubjects(), SubjectList(subjects=())),
    ("rule_subject", RuleSubject(subject="x", allow=True), Done()),
    ("audit", ReadAudit(before=7), AuditPage(lines=())),
    ("measures", TakeMeasures(), Measures(measures=())),
    (
        "status",
        BrokerStatus(),
        StatusReport(
            version="1", started="", sessions_online=1, sessions_known=1, bindings=0, operations_open=0
        ),
    ),
]


@asynccontextmanager
async def served(
    answer: Callable[[CallerRequest], Awaitable[Any]], faults: dict[str, Any] | None = None
) -> AsyncIterator[tuple[RemoteSwitchboard, ScriptedSwitchboard]]:
    switchboard, board = ScriptedSwitchboard(answer), RemoteSwitchboard()
    desk = CallerDesk(switchboard, switchboard, local_device=LOCAL)
    with room() as directory:
        flaky = Flaky(directory / "f", directory / "s", **(faults or {}))
        async with (
            desk.open(),
            a_hub(desk).serve_unix(directory / "s"),
            flaky.running(),
            running(a_dial(directory / "f", board, role="caller")),
        ):
            await board.reach(10)
            yield board, switchboard


@pytest.mark.parametrize(("method", "request_", "reply"), REPLIES, ids=[row[0] for row in REPLIES])
async def test_the_whole_switchboard_works_over_the_link(
    method: str, request_: CallerRequest, reply: Request
) -> None:
    async def answer(request: CallerRequest) -> Request:
        return reply

    async with served(answer) as (board, switchboard):
        found = await getattr(board, method)(request_)
        assert found.model_copy(update={"request": 0}) == reply
        assert switchboard.asked[0].model_copy(update={"request": 0}) == request_


async def test_a_request_survives_a_cut_between_it_and_its_reply() -> None:
    """B31: the reply comes over the next socket, and the request ran once."""
    gate = anyio.Event()

    async def answer(request: CallerRequest) -> Request:
        gate.set()
        return view(result(1))

    async with served(answer, {"to_broker": {2: "cut after"}}) as (board, switchboard):
        found = await board.call(Submit())
        assert found.results == (result(1),)
        assert len(switchboard.asked) == 1


async def test_three_megabytes_of_results_arrive_whole() -> None:
    """B76: in parts, over a real socket."""
    whole = view(*(result(number, 600_000) for number in range(5)))

    async def answer(request: CallerRequest) -> Request:
        return whole

    async with served(answer) as (board, _):
        found = await board.call(Submit())
        assert found.model_copy(update={"request": 0}) == whole
