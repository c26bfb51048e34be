"""Callers over a link: served like callers in this process, within their rights."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from chappie_broker import desk as desks
from chappie_broker.desk import CallerDesk

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.errors import Executed, KeyReused, Overloaded, TooLarge
from chappie_bridge.wire.ids import (
    AppId,
    CallId,
    DeviceId,
    InputId,
    InstanceId,
    OperationId,
    ReceiptId,
    SessionId,
)
from chappie_bridge.wire.link import encode
from chappie_bridge.wire.messages import Done, Failed, Message, Request, Withdraw
from chappie_bridge.wire.owner import (
    ListApps,
    ListDevices,
    ListSubjects,
    MakeCode,
    PairDevice,
    ReadAudit,
    RedeemCode,
    RevokeApp,
    RevokeDevice,
    RuleSubject,
    TakeMeasures,
)
from chappie_bridge.wire.ports import Peer, stops
from chappie_bridge.wire.requests import (
    BrokerStatus,
    Bytes,
    CallerRequest,
    Chat,
    FetchBytes,
    ListSessions,
    OperationView,
    Receipt,
    Submit,
    TypeInput,
    Unbind,
    ViewPart,
)
from chappie_bridge.wire.values import (
    Caller,
    Companions,
    DeferredItem,
    Input,
    InputItem,
    SessionHead,
    ToolResult,
)
from tests.peer.link_rig import DEVICE, LOCAL
from tests.peer.switchboard import ScriptedSwitchboard

pytestmark = pytest.mark.anyio

SESSION = SessionId("s_1")
HEAD = SessionHead(session=SESSION, device="laptop", cwd="/")


class ListLink:
    """A link to a caller that keeps what is sent; what a real link could not carry, it refuses."""

    def __init__(self, device: DeviceId = LOCAL) -> None:
        self.peer = Peer("caller", device, InstanceId("i_c"), "")
        self.up = True
        self.sent: list[Message] = []
        self.full = False
        self._more = anyio.Event()

    def send(self, message: Message) -> None:
        if self.full:
            raise Overloaded
        encode(message)
        self.sent.append(message)
        self._more.set()

    async def send_chunk(self, stream: int, offset: int, data: bytes) -> None:
        raise NotImplementedError

    async def replies(self, count: int) -> list[Message]:
        with anyio.fail_after(10):
            while len(self.sent) < count:
                self._more = anyio.Event()
                await self._more.wait()
        return self.sent

    def failures(self) -> dict[int, str]:
        return {one.request: one.failure.code for one in self.sent if isinstance(one, Failed)}


@asynccontextmanager
async def serving(
    answer: Callable[[CallerRequest], Awaitable[Any]], device: DeviceId = LOCAL
) -> AsyncIterator[tuple[CallerDesk, ListLink, ScriptedSwitchboard]]:
    switchboard = ScriptedSwitchboard(answer)
    desk, link = CallerDesk(switchboard, switchboard, local_device=LOCAL), ListLink(device)
    async with desk.open():
        desk.link_up(link)
        yield desk, link, switchboard


async def done(request: CallerRequest) -> Request:
    return Done()


def result(number: int, size: int = 10) -> ToolResult:
    return ToolResult(
        call=CallId(f"c_{number}"),
        name="read",
        is_error=False,
        duration_ms=1,
        content=(Text(text="x" * size),),
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


async def test_a_request_is_answered_under_its_own_number() -> None:
    async with serving(done) as (desk, link, switchboard):
        desk.received(link, Chat(request=41, text="hi"))
        assert await link.replies(1) == [Done(request=41)]
        assert switchboard.asked == [Chat(request=41, text="hi")]


async def test_requests_are_served_side_by_side() -> None:
    gate = anyio.Event()

    async def wait_first(request: CallerRequest) -> Request:
        if request.request == 1:
            await gate.wait()
        return Done()

    async with serving(wait_first) as (desk, link, _):
        desk.received(link, ListSessions(request=1))
        desk.received(link, ListSessions(request=2))
        assert await link.replies(1) == [Done(request=2)]
        gate.set()
        assert await link.replies(2) == [Done(request=2), Done(request=1)]


async def test_errors_travel_as_they_are_and_a_bug_says_where_to_look(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(request: CallerRequest) -> Request:
        if request.request == 1:
            raise KeyReused(hint="Use another.")
        raise RuntimeError("a secret detail")

    async with serving(fail) as (desk, link, _):
        desk.received(link, Submit(request=1))
        desk.received(link, Submit(request=2))
        desk.received(link, CallerRequest(request=3))
        await link.replies(3)
        failures = {one.request: one.failure for one in link.sent if isinstance(one, Failed)}
        assert (failures[1].code, failures[1].hint) == ("key_reused", "Use another.")
        assert failures[2].code == "internal"
        assert "secret" not in failures[2].message
        assert failures[2].message.split()[-1].rstrip(".") in caplog.text
        assert failures[3].code == "unsupported"


async def test_a_withdrawn_request_is_cancelled_and_not_answered() -> None:
    cancelled, stopped = anyio.Event(), list[bool]()

    async def park(request: CallerRequest) -> Request:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(stops())
            cancelled.set()
        return Done()

    async with serving(park) as (desk, link, switchboard):
        desk.received(link, Submit(request=1))
        while not switchboard.asked:
            await anyio.lowlevel.checkpoint()
        desk.received(link, Withdraw(request=2))  # not ours
        assert not cancelled.is_set()
        desk.received(link, Submit(request=3))
        await anyio.wait_all_tasks_blocked()
        desk.received(link, Withdraw(request=3, stop=True))
        await cancelled.wait()
        desk.received(link, Withdraw(request=1))
        await anyio.wait_all_tasks_blocked()
        assert stopped == [True, False]
        assert link.sent == []
        desk.received(link, Withdraw(request=1))  # late


async def test_requests_outlive_a_socket_and_end_with_their_link() -> None:
    """B31: a cut is no withdrawal; a caller that is gone for good is one."""
    ended: list[int] = []

    async def park(request: CallerRequest) -> Request:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(request.request)
        return Done()

    async with serving(park) as (desk, link, _):
        other = ListLink()
        desk.link_up(other)
        desk.received(link, Submit(request=1))
        desk.received(other, Submit(request=2))
        desk.link_down(link)
        desk.link_back(link)
        await anyio.wait_all_tasks_blocked()
        assert ended == []
        desk.link_gone(link)
        await anyio.wait_all_tasks_blocked()
        assert ended == [1]
        desk.received(link, Submit(request=3))  # crossed with its end
        assert link.failures() == {3: "overloaded"}
    assert ended == [1, 2]


async def test_one_caller_may_have_so_many_requests_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """S22: retryable, for that request only; other callers are not touched."""
    monkeypatch.setattr(desks, "MAX_REQUESTS", 3)
    gate = anyio.Event()

    async def wait(request: CallerRequest) -> Request:
        await gate.wait()
        return Done()

    async with serving(wait) as (desk, link, _):
        other = ListLink()
        desk.link_up(other)
        for number in range(4):
            desk.received(link, ListSessions(request=number))
        desk.received(other, ListSessions(request=9))
        assert link.failures() == {3: "overloaded"}
        desk.received(link, ListSessions(request=0))  # a number that is in use
        assert link.failures() == {3: "overloaded", 0: "overloaded"}
        gate.set()
        await other.replies(1)
        await link.replies(5)
        desk.received(link, ListSessions(request=4))
        assert (await link.replies(6))[-1] == Done(request=4)


async def test_receipts_are_passed_on() -> None:
    async with serving(done) as (desk, link, switchboard):
        desk.received(link, Receipt(receipt=ReceiptId("r_1"), sent=True))
        assert switchboard.receipts == [(ReceiptId("r_1"), True)]


# --- rights ---


async def test_a_process_of_this_machine_names_any_source() -> None:
    async with serving(done) as (desk, link, switchboard):
        for number, source in enumerate(("openai", "header", "stdio", "session", "shell", "none")):
            caller = Caller(principal="p", source=source, value="v")
            desk.received(link, Chat(request=number, caller=caller, text=""))
        await link.replies(6)
        assert link.failures() == {}
        assert {request.caller.principal for request in switchboard.asked} == {"p"}


async def test_another_device_speaks_for_its_sessions_only() -> None:
    """S18: and as itself, whatever it claims."""
    async with serving(done, DEVICE) as (desk, link, switchboard):
        for number, source in enumerate(("openai", "header", "stdio", "shell", "none")):
            caller = Caller(principal="owner", source=source, value="v")
            desk.received(link, Chat(request=number, caller=caller, text=""))
        assert set(link.failures().values()) == {"forbidden"}
        assert len(link.sent) == 5
        session = Caller(principal="owner", source="session", value="s_9")
        desk.received(link, Chat(request=9, caller=session, text=""))
        assert (await link.replies(6))[-1] == Done(request=9)
        (asked,) = switchboard.asked
        assert asked.caller == Caller(principal=f"device:{DEVICE}", source="session", value="s_9")


async def test_another_device_cannot_type_unbind_or_look_around() -> None:
    """S11 S18: what is done at the broker's own machine is done there."""
    session = Caller(principal="", source="session", value="s_9")
    async with serving(done, DEVICE) as (desk, link, switchboard):
        desk.received(link, TypeInput(request=1, caller=session, session=SESSION, content=()))
        desk.received(link, Unbind(request=2, caller=session, session=SESSION))
        desk.received(link, BrokerStatus(request=3, caller=session))
        desk.received(link, MakeCode(request=4, caller=session, purpose="login"))
        desk.received(link, RedeemCode(request=5, caller=session, purpose="login", code="", by=""))
        desk.received(link, ReadAudit(request=6, caller=session))
        desk.received(link, TakeMeasures(request=7, caller=session))
        desk.received(link, ListApps(request=8, caller=session))
        desk.received(link, RevokeApp(request=9, caller=session, app=AppId("a")))
        desk.received(link, ListSubjects(request=10, caller=session))
        desk.received(link, RuleSubject(request=11, caller=session, subject="x", allow=True))
        desk.received(link, PairDevice(request=12, caller=session))
        desk.received(link, ListDevices(request=13, caller=session))
        desk.received(link, RevokeDevice(request=14, caller=session, device="d"))
        assert link.failures() == dict.fromkeys(range(1, 15), "forbidden")
        assert switchboard.asked == []


# --- large replies ---


async def test_a_reply_that_fits_is_one_message() -> None:
    whole = view(result(1, 300_000), result(2, 300_000))

    async def answer(request: CallerRequest) -> Request:
        return whole

    async with serving(answer) as (desk, link, _):
        desk.received(link, Submit(request=5))
        assert await link.replies(1) == [whole.model_copy(update={"request": 5})]


async def test_a_reply_too_large_for_one_message_comes_in_parts() -> None:
    """B76: 3 MB of results reach the caller, none lost."""
    deferred = DeferredItem(
        operation=OperationId("op_0"),
        what="batch",
        target=HEAD,
        status=Status.DONE,
        executed=Executed.YES,
        results=(result(8, 600_000), result(9)),
    )
    typed = InputItem(session=SESSION, input=Input(id=InputId("in_1"), at="", content=(Text(text="hi"),)))
    companions = Companions(receipt=ReceiptId("r_1"), items=(typed, deferred))

    async def answer(request: CallerRequest) -> Request:
        return view(*(result(number, 600_000) for number in range(4)), companions=companions)

    async with serving(answer) as (desk, link, switchboard):
        desk.received(link, Submit(request=5))
        *parts, last = await link.replies(7)
        assert all(isinstance(part, ViewPart) and part.request == 5 for part in parts)
        assert [(part.deferred, part.result.call) for part in parts] == [
            *((None, f"c_{number}") for number in range(4)),
            (1, "c_8"),
            (1, "c_9"),
        ]
        assert isinstance(last, OperationView)
        assert last.results == ()
        assert last.companions.items == (typed, deferred.model_copy(update={"results": ()}))
        assert switchboard.receipts == []


async def test_companions_that_do_not_fit_wait_and_the_outcome_goes_first() -> None:
    inputs = tuple(
        InputItem(
            session=SESSION, input=Input(id=InputId(f"in_{n}"), at="", content=(Text(text="x" * 400_000),))
        )
        for n in range(4)
    )

    async def answer(request: CallerRequest) -> Request:
        return view(result(1), companions=Companions(receipt=ReceiptId("r_1"), items=inputs, more=2))

    async with serving(answer) as (desk, link, switchboard):
        desk.received(link, Submit(request=5))
        part, last = await link.replies(2)
        assert isinstance(part, ViewPart)
        assert isinstance(last, OperationView)
        assert last.companions == Companions(more=6)
        assert switchboard.receipts == [(ReceiptId("r_1"), False)]


async def test_a_reply_that_cannot_be_split_is_a_typed_error() -> None:
    async def answer(request: CallerRequest) -> Request:
        if isinstance(request, FetchBytes):
            return Bytes(data="x" * 2_000_000, size=1)
        return view(result(1, 2_000_000))

    async with serving(answer) as (desk, link, _):
        desk.received(link, FetchBytes(request=1, session=SESSION, source="spill:x", offset=0, length=1))
        await link.replies(1)
        desk.received(link, Submit(request=2))
        await link.replies(2)
        assert link.failures() == {1: "too_large", 2: "too_large"}
        failures = {one.request: one.failure for one in link.sent if isinstance(one, Failed)}
        assert failures[1].executed == "no"
        assert failures[2].executed == "yes"  # the tool ran; its result is in the history
        assert failures[1].code == TooLarge.code


async def test_a_caller_that_takes_nothing_loses_its_reply_and_keeps_its_companions() -> None:
    async def answer(request: CallerRequest) -> Request:
        return view(companions=Companions(receipt=ReceiptId("r_1")))

    async with serving(answer) as (desk, link, switchboard):
        link.full = True
        desk.received(link, Submit(request=1))
        while not switchboard.receipts:
            await anyio.lowlevel.checkpoint()
        assert switchboard.receipts == [(ReceiptId("r_1"), False)]
