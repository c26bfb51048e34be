"""Questions to the person: kept before they are told, answered once or revised, told to who asked."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from chappie_broker.broker import Broker
from chappie_broker.store.port import Retention

from chappie_bridge.wire.errors import (
    BadArguments,
    Overloaded,
    QuestionSkipped,
    RequestClosed,
    SessionOffline,
    UnknownQuestion,
    UnknownSession,
    Unsupported,
)
from chappie_bridge.wire.ids import QuestionId, SessionId
from chappie_bridge.wire.question import Answer, Asked, Option, Stage
from chappie_bridge.wire.requests import (
    Ask,
    AssertAsked,
    FetchHistory,
    ListSessions,
    OpenSession,
    QuestionView,
    Respond,
    Submit,
)
from chappie_bridge.wire.values import AnswerItem, Caller, Companions, HistoryRange, NewCall
from tests.broker.rig import ScriptedAgent, broker, chat, settle_down

pytestmark = pytest.mark.anyio

NONE = Caller(principal="owner", source="none")
ONE = chat("one")
FORMAT = Asked(question="Which format?", options=(Option(title="JSON"), Option(title="CSV")))
JSON, CSV, SKIP = Answer(selections=(0,)), Answer(selections=(1,)), Answer(skipped=True)


async def ready(board: Broker, session: str = "s1") -> ScriptedAgent:
    agent = ScriptedAgent(board.dispatch)
    agent.register(session)
    await settle_down()
    return agent


async def asked(board: Broker, caller: Caller = ONE, **more: Any) -> QuestionView:
    view = await board.ask(Ask(caller=caller, asked=more.pop("asked", FORMAT), **more))
    sent(board, view.companions)
    return view


async def respond(board: Broker, question: str, answer: Answer | None = None, **more: Any) -> QuestionView:
    caller = more.pop("caller", ONE)
    return await board.answer(Respond(caller=caller, question=QuestionId(question), answer=answer, **more))


async def call(board: Broker, caller: Caller = ONE, *, received: bool = True) -> list[AnswerItem]:
    """The answers that accompany the next result."""
    view = await board.call(Submit(caller=caller, calls=(NewCall(name="noop", arguments={}),), wait=5))
    sent(board, view.companions, received=received)
    return answers(view.companions)


def answers(companions: Companions) -> list[AnswerItem]:
    return [item for item in companions.items if isinstance(item, AnswerItem)]


def sent(board: Broker, companions: Companions, *, received: bool = True) -> None:
    assert companions.receipt is not None
    board.told(companions.receipt, sent=received)


def told(items: list[AnswerItem]) -> list[tuple[int, Answer | None]]:
    return [(item.question.revision, item.question.answer) for item in items]


async def test_an_answer_comes_with_the_next_result_and_once(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        await ready(board)
        question = (await asked(board)).question
        assert (question.stage, question.session, question.cwd) == (Stage.ASKED, "s1", "/work")
        assert question.id.startswith("q_")
        assert len(question.id) == 34
        await respond(board, question.id, loaded=True)
        shown = (await respond(board, question.id, JSON, revision=0)).question
        assert (shown.stage, shown.revision, shown.loaded) == (Stage.ANSWERED, 1, True)
        (item,) = await call(board)
        assert item.question == shown
        assert await call(board) == []


async def test_an_answer_that_did_not_arrive_is_offered_again(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        await ready(board)
        question = (await asked(board)).question
        await respond(board, question.id, JSON)
        (item,) = await call(board, received=False)
        assert item.again is False
        (item,) = await call(board)
        assert item.again is True
        assert await call(board) == []


async def test_a_question_outlives_the_broker_and_is_answered(tmp_path: Path) -> None:
    """B51 B55: ask, restart, answer, restart: the answer comes."""
    async with broker(tmp_path) as board:
        await ready(board)
        question = (await asked(board)).question
    async with broker(tmp_path) as board:
        await ready(board)
        await respond(board, question.id, loaded=True)
        view = await board.ask_assert(AssertAsked(caller=ONE, question=question.id, wait=0))
        assert view.question.stage is Stage.SHOWN
        sent(board, view.companions)
        await respond(board, question.id, CSV)
    async with broker(tmp_path) as board:
        await ready(board)
        assert told(await call(board)) == [(1, CSV)]
        again = (await respond(board, question.id)).question
        assert (again.stage, again.answer) == (Stage.ANSWERED, CSV)
    async with broker(tmp_path) as board:
        await ready(board)
        await call(board)
        assert await call(board) == []


async def test_the_report_of_loading_ends_the_wait(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        await ready(board)
        question = (await asked(board)).question
        seen: list[QuestionView] = []

        async def wait() -> None:
            seen.append(await board.ask_assert(AssertAsked(caller=ONE, question=question.id)))

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await settle_down()
                await respond(board, question.id, loaded=True)
        assert seen[0].question.stage is Stage.SHOWN
        assert seen[0].question.loaded


async def test_silence_is_no_answer_and_a_late_one_is_taken(tmp_path: Path) -> None:
    """B52: what nobody was shown says so; the person's word still comes, and as theirs."""
    async with broker(tmp_path) as board:
        await ready(board)
        question = (await asked(board)).question
        for _ in range(2):
            with pytest.raises(QuestionSkipped) as caught:
                await board.ask_assert(AssertAsked(caller=ONE, question=question.id, wait=0))
            assert "later" in str(caught.value.hint)
        (item,) = await call(board)
        assert item.question.unseen
        late = (await respond(board, question.id, loaded=True)).question
        assert (late.stage, late.loaded, late.revision) == (Stage.SKIPPED, True, 0)
        view = await board.ask_assert(AssertAsked(caller=ONE, question=question.id, wait=0))
        sent(board, view.companions)
        await respond(board, question.id, JSON, revision=0)
        (item,) = await call(board)
        assert item.question.stage is Stage.ANSWERED
        assert not item.question.unseen


async def test_a_late_answer_takes_the_place_of_a_skip_that_was_not_told(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        await ready(board)
        question = (await asked(board)).question
        with pytest.raises(QuestionSkipped):
            await board.ask_assert(AssertAsked(caller=ONE, question=question.id, wait=0))
        await respond(board, question.id, JSON)
        assert told(await call(board)) == [(1, JSON)]
    async with broker(tmp_path) as board:
        await ready(board)
        assert told(await call(board)) in ([], [(1, JSON)])


async def test_a_revision_and_a_skip_are_delivered_and_a_repeat_is_not(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        await ready(board)
        question = (await asked(board)).question
        await respond(board, question.id, JSON, revision=0)
        await respond(board, question.id, Answer(selections=(0, 0)), revision=0)  # its reply was lost
        assert told(await call(board)) == [(1, JSON)]
        await respond(board, question.id, CSV, revision=1)
        await respond(board, question.id, SKIP, revision=2)
        assert told(await call(board)) == [(3, SKIP)], "what was not told yet is replaced"
        await respond(board, question.id, SKIP, revision=3)
        assert await call(board) == []


async def test_of_two_pages_the_first_answer_counts_and_the_second_is_told(tmp_path: Path) -> None:
    """B53: a second client; each page says which answer it had seen."""
    async with broker(tmp_path) as board:
        await ready(board)
        question = (await asked(board)).question
        outcomes: list[str] = []

        async def answer(given: Answer) -> None:
            try:
                await respond(board, question.id, given, revision=0)
                outcomes.append("taken")
            except RequestClosed as error:
                outcomes.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, JSON)
            tasks.start_soon(answer, CSV)
        assert sorted(outcomes)[1] == "taken"
        assert "answered already: JSON" in min(outcomes)
        assert told(await call(board)) == [(1, JSON)]
        await respond(board, question.id, CSV, revision=1)
        assert told(await call(board)) == [(2, CSV)]


async def test_what_could_not_be_kept_says_so(tmp_path: Path) -> None:
    """B54: an error means that nothing was stored; success that it will be delivered."""
    async with broker(tmp_path, offline_grace=0.0, open_questions=2) as board:
        agent = await ready(board)
        await asked(board)
        await asked(board)
        with pytest.raises(Overloaded):
            await asked(board)
        assert await board._store.open_questions("conversation", board._identity.of(ONE) or "") == 2
        agent.up = False
        board.dispatch.link_down(agent)
        with pytest.raises(SessionOffline):
            await asked(board, chat("two"), session=SessionId("s1"))
        assert await board._store.open_questions("conversation", board._identity.of(chat("two")) or "") == 0


async def test_no_layer_answers_for_the_person(tmp_path: Path) -> None:
    """B56: a question of which nothing was heard stays open; only `ask_assert` may call it skipped."""
    async with broker(tmp_path) as board:
        await ready(board)
        question = (await asked(board)).question
        assert await call(board) == []
        assert (await respond(board, question.id)).question.stage is Stage.ASKED
        with pytest.raises(Unsupported):
            await asked(board, Caller(principal="owner", source="session", value="s1"))


@pytest.mark.parametrize(
    "caller", [chat("two"), chat("one", "somebody"), Caller(principal="x", source="none")]
)
async def test_a_question_of_another_is_unknown(tmp_path: Path, caller: Caller) -> None:
    """S08: of another conversation, and of another credential."""
    async with broker(tmp_path) as board:
        await ready(board)
        question = (await asked(board)).question
        for unknown in (question.id, QuestionId("q_none")):
            with pytest.raises(UnknownQuestion):
                await respond(board, unknown, JSON, caller=caller)
            with pytest.raises(UnknownQuestion):
                await board.ask_assert(AssertAsked(caller=caller, question=unknown, wait=0))


async def test_a_page_whose_host_does_not_name_the_chat_is_known_by_the_id(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        await ready(board)
        question = (await asked(board)).question
        await respond(board, question.id, JSON, caller=NONE, revision=0)
        assert told(await call(board)) == [(1, JSON)]


async def test_a_client_without_conversations_asks_by_session_and_looks_for_the_answer(
    tmp_path: Path,
) -> None:
    async with broker(tmp_path) as board:
        await ready(board)
        with pytest.raises(UnknownSession):
            await board.ask(Ask(caller=NONE, asked=FORMAT, session=SessionId("nobody")))
        question = (await asked(board, NONE, session=SessionId("s1"))).question
        await respond(board, question.id, JSON, caller=NONE)
        view = await board.ask_assert(AssertAsked(caller=NONE, question=question.id, wait=0))
        assert view.question.answer == JSON
        assert answers(view.companions) == []


@pytest.mark.parametrize("given", [Answer(), Answer(selections=(2,)), Answer(selections=(0, 1))])
async def test_a_wrong_answer_changes_nothing(tmp_path: Path, given: Answer) -> None:
    async with broker(tmp_path) as board:
        await ready(board)
        question = (await asked(board)).question
        with pytest.raises(BadArguments):
            await respond(board, question.id, given, loaded=True)
        assert (await respond(board, question.id)).question == question


async def test_a_request_that_the_tunnel_sends_twice_asks_once(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        await ready(board)
        first = await asked(board, tunnel_request="t1")
        again = await asked(board, tunnel_request="t1")
        other = await asked(board, tunnel_request="t2")
        assert first.question.id == again.question.id != other.question.id


async def test_asking_saves_a_default_where_there_is_none(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = await ready(board)
        await asked(board)
        assert (await board.sessions(ListSessions(caller=ONE))).binding == "s1"
        agent.register("s2")
        await asked(board, session=SessionId("s2"))
        assert (await board.sessions(ListSessions(caller=ONE))).binding == "s1"


async def test_a_loaded_page_renews_the_participation(tmp_path: Path) -> None:
    async with broker(tmp_path, cooldown=3600.0) as board:
        await ready(board)
        question = (await asked(board)).question
        await respond(board, question.id, loaded=True)
        joined = await board.init(OpenSession(caller=ONE, session=SessionId("s1")))
        assert joined.initialization.observer


async def test_history_counts_answers_that_wait_and_carries_none(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        await ready(board)
        question = (await asked(board)).question
        await respond(board, question.id, JSON)
        for _ in range(2):
            page = await board.history(FetchHistory(caller=ONE, range=HistoryRange()))
            assert page.pending.answers == 1
        listed = await board.sessions(ListSessions(caller=ONE))
        assert listed.pending is not None
        assert listed.pending.answers == 1
        await call(board)
        assert (await board.history(FetchHistory(caller=ONE, range=HistoryRange()))).pending.answers == 0


async def test_who_waits_for_history_is_called_when_an_answer_comes(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        await ready(board)
        question = (await asked(board)).question
        seen: list[int] = []

        async def wait() -> None:
            wanted = HistoryRange(wait=30, after="e_1")
            seen.append((await board.history(FetchHistory(caller=ONE, range=wanted))).pending.answers)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await settle_down()
                await respond(board, question.id, JSON)
        assert seen == [1]


async def test_an_answer_settles_no_agent_and_is_forgotten_after_its_time(tmp_path: Path) -> None:
    clock = [1_000.0]
    async with broker(tmp_path, now=lambda: clock[0]) as board:
        agent = await ready(board)
        question = (await asked(board)).question
        await respond(board, question.id, JSON)
        await call(board)
        before = len(agent.settled())
        await call(board)
        assert all(message.operations for message in agent.settled()[before:])
        clock[0] += 91 * 86_400
        await board._store.prune(clock[0], Retention())
        with pytest.raises(UnknownQuestion):
            await respond(board, question.id)
