"""What the owner sees of everybody's work, and decides."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from chappie_broker.broker import Broker
from chappie_broker.office import OwnersOffice
from chappie_broker.store.port import StoreFull

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import (
    BridgeError,
    RequestClosed,
    SessionOffline,
    UnknownOperation,
    UnknownQuestion,
)
from chappie_bridge.wire.ids import DeviceId, OperationId, QuestionId, SessionId
from chappie_bridge.wire.messages import ApprovalsWaiting, Decide, Decided, Failed
from chappie_bridge.wire.overview import (
    AnswerApproval,
    AnswerQuestion,
    AwaitChange,
    CancelOperation,
    ListApprovals,
    ListOperations,
    ListQuestions,
)
from chappie_bridge.wire.owner import RevokeDevice
from chappie_bridge.wire.question import Answer, Asked, Option
from chappie_bridge.wire.requests import Ask, OpenSession, Respond, Submit
from chappie_bridge.wire.values import ApprovalAsked, Caller, NewCall
from tests.broker.rig import ScriptedAgent, an_office, broker, chat, settle_down

pytestmark = pytest.mark.anyio

S = SessionId("s")
APPROVAL = ApprovalAsked(
    id="ap_1", tool="bash", path="/work", writing=True, what="rm x", directory="/work", conversational=True
)


class Room:
    def __init__(self, board: Broker, agent: ScriptedAgent) -> None:
        self.board, self.agent = board, agent
        self.office: OwnersOffice = an_office(board)

    async def submits(self, who: str, tool: str = "noop", wait: float = 0) -> OperationId:
        submit = Submit(caller=chat(who), session=S, calls=(NewCall(name=tool, arguments={}),), wait=wait)
        return (await self.board.call(submit)).operation

    async def asks_approval(self, *approvals: ApprovalAsked) -> None:
        self.agent.say(ApprovalsWaiting(session=S, approvals=approvals))
        await settle_down()


@asynccontextmanager
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        await settle_down()
        yield Room(board, agent)


async def test_operations_of_all_conversations_are_seen_open_ones_first(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        done = await here.submits("a", "first", wait=5)
        here.agent.hold = True
        running, queued = await here.submits("b", "second"), await here.submits("c", "third")
        rows = (await here.office.operations(ListOperations())).operations
        assert [(row.operation, row.status) for row in rows] == [
            (running, Status.RUNNING),
            (queued, Status.QUEUED),
            (done, Status.DONE),
        ]
        assert [row.what for row in rows] == ["batch second", "batch third", "batch first"]
        assert {row.origin[:7] for row in rows} == {"ChatGPT"}
        assert (await here.office.operations(ListOperations(session=SessionId("t")))).operations == ()
        assert len((await here.office.operations(ListOperations(limit=1))).operations) == 1


async def test_the_owner_cancels_what_any_conversation_started(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        here.agent.hold = True
        running, queued = await here.submits("a"), await here.submits("b")
        await here.office.cancel(CancelOperation(operation=queued))
        await here.office.cancel(CancelOperation(operation=running))
        rows = (await here.office.operations(ListOperations())).operations
        assert [(row.operation, row.status) for row in rows] == [
            (running, Status.CANCELLING),
            (queued, Status.CANCELLED),
        ]
        await settle_down()
        assert [cancel.operation for cancel in here.agent.cancels()] == [running]
        with pytest.raises(UnknownOperation):
            await here.office.cancel(CancelOperation(operation=OperationId("op_none")))


async def test_approvals_are_seen_and_the_agent_hears_the_answer(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        await here.asks_approval(APPROVAL)
        (pending,) = (await here.office.approvals(ListApprovals())).approvals
        assert (pending.session, pending.cwd, pending.approval) == (S, "/work", APPROVAL)
        answer = AnswerApproval(session=S, approval="ap_1", allowed=True, scope="conversation")
        task = asyncio.create_task(here.office.answer_approval(answer))
        await settle_down()
        (decide,) = [message for message in here.agent.got if isinstance(message, Decide)]
        assert (decide.approval, decide.allowed, decide.scope, decide.by) == (
            "ap_1",
            True,
            "conversation",
            "dashboard",
        )
        first = Decided(request=decide.request, allowed=False, scope="once", by="terminal")
        here.agent.say(first)
        assert await task == first
        await here.asks_approval()
        assert (await here.office.approvals(ListApprovals())).approvals == ()


async def test_an_approval_whose_call_ended_is_closed(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        task = asyncio.create_task(
            here.office.answer_approval(AnswerApproval(session=S, approval="ap_0", allowed=True))
        )
        await settle_down()
        (decide,) = [message for message in here.agent.got if isinstance(message, Decide)]
        here.agent.say(Failed(request=decide.request, failure=RequestClosed().failure()))
        with pytest.raises(RequestClosed):
            await task


async def test_approvals_of_a_session_that_left_or_begins_anew_are_gone(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        await here.asks_approval(APPROVAL)
        here.agent.register("s")
        await settle_down()
        assert (await here.office.approvals(ListApprovals())).approvals == ()
        await here.asks_approval(APPROVAL)
        here.board.dispatch.link_gone(here.agent)
        assert (await here.office.approvals(ListApprovals())).approvals == ()
        with pytest.raises(SessionOffline):
            await here.office.answer_approval(AnswerApproval(session=S, approval="ap_1", allowed=True))


async def test_the_owner_answers_a_question_of_any_conversation_once(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        await here.board.init(OpenSession(caller=chat("a"), session=S))
        asked = Asked(question="Which?", options=(Option(title="A"), Option(title="B")))
        question = (await here.board.ask(Ask(caller=chat("a"), asked=asked))).question
        (seen,) = (await here.office.questions(ListQuestions())).questions
        assert (seen.question, seen.origin[:7]) == (question, "ChatGPT")
        view = await here.office.answer_question(
            AnswerQuestion(question=question.id, answer=Answer(selections=(1,)), revision=0)
        )
        assert view.question.answer == Answer(selections=(1,))
        with pytest.raises(RequestClosed):  # the page in the chat comes second
            await here.board.answer(
                Respond(caller=chat("a"), question=question.id, answer=Answer(selections=(0,)), revision=0)
            )
        with pytest.raises(UnknownQuestion):
            await here.office.answer_question(
                AnswerQuestion(question=QuestionId("q_none"), answer=Answer(skipped=True))
            )


async def test_a_change_is_told_once_to_each_that_waits(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        now = (await here.office.change(AwaitChange(since=0))).number
        waits = [asyncio.create_task(here.office.change(AwaitChange(since=now))) for _ in range(3)]
        await settle_down()
        assert not any(task.done() for task in waits)
        await here.asks_approval(APPROVAL)
        numbers = [(await task).number for task in waits]
        assert min(numbers) > now
        assert (await here.office.change(AwaitChange(since=numbers[0], wait=0))).number == numbers[0]


async def test_the_owner_hears_that_a_revocation_has_to_be_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(device: str) -> DeviceId:
        raise StoreFull(tmp_path)

    async with room(tmp_path) as here:
        monkeypatch.setattr(here.office._devices, "revoke", full)
        with pytest.raises(BridgeError) as told:
            await here.office.revoke(
                RevokeDevice(caller=Caller(principal="owner", source="shell"), device="d")
            )
    assert told.value.code == "disk_full"
    assert "again" in (told.value.hint or "")
