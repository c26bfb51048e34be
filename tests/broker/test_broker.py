"""The Switchboard against scripted agents: targets, queues, deadlines, what accompanies results."""

from pathlib import Path

import anyio
import pytest
from chappie_broker.broker import Broker
from chappie_broker.outcomes import MAX_ORPHAN_BYTES

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.errors import (
    BridgeError,
    Executed,
    KeyReused,
    NoConversation,
    NoFreeSession,
    NoSession,
    Overloaded,
    RequestClosed,
    SessionOffline,
    UnknownOperation,
    UnknownSession,
)
from chappie_bridge.wire.ids import OperationId
from chappie_bridge.wire.messages import CallResult, Failed, Recall, RequestEnded, RequestOpened, RunBatch
from chappie_bridge.wire.ports import WITHDRAWAL, Withdrawal
from chappie_bridge.wire.requests import (
    Chat,
    FetchHistory,
    ListSessions,
    ListTools,
    OpenSession,
    OperationView,
    Submit,
    TypeInput,
    Unbind,
)
from chappie_bridge.wire.values import Caller, HistoryRange, ModelRequest, Need, NewCall, ToolResult
from tests.broker.rig import ScriptedAgent, broker, chat, settle_down

pytestmark = pytest.mark.anyio

NONE = Caller(principal="owner", source="none")


def calls(*names: str) -> tuple[NewCall, ...]:
    return tuple(NewCall(name=name, arguments={}) for name in names)


def submit(caller: Caller, *names: str, **more: object) -> Submit:
    return Submit(caller=caller, calls=calls(*(names or ("noop",))), **more)


# -- which session --------------------------------------------------------------------------------


async def test_two_new_conversations_at_the_same_moment_get_different_sessions(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        for n in range(400):
            agent.register(f"s{n}")
        await settle_down()
        got: list[str] = []

        async def init(name: str) -> None:
            got.append((await board.init(OpenSession(caller=chat(name)))).session.id)

        for n in range(200):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(init, f"a{n}")
                tasks.start_soon(init, f"b{n}")
        assert len(set(got)) == 400


async def test_the_second_conversation_hears_at_once_that_no_session_is_free(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        ScriptedAgent(board.dispatch).register("s")
        await board.init(OpenSession(caller=chat("a")))
        with pytest.raises(NoFreeSession) as caught:
            await board.init(OpenSession(caller=chat("b")))
        assert caught.value.data is not None
        assert caught.value.data["sessions"][0]["id"] == "s"
        shared = await board.init(OpenSession(caller=chat("b"), session="s"))
        assert shared.selection == "explicit"
        assert shared.session.binding_count == 2


async def test_init_waits_for_a_first_session_when_nothing_is_online(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)

        async def later() -> None:
            await settle_down()
            agent.register("s")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(later)
            opened = await board.init(OpenSession(caller=chat("a")))
        assert opened.selection == "automatic"


async def test_nothing_online_says_how_to_start_one(tmp_path: Path) -> None:
    async with broker(tmp_path, session_wait=0.01) as board:
        with pytest.raises(NoSession, match="chappie-bridge agent"):
            await board.init(OpenSession(caller=chat("a")))


async def test_an_offline_default_is_never_replaced(tmp_path: Path) -> None:
    """B45"""
    async with broker(tmp_path, offline_grace=0.01) as board:
        first, second = ScriptedAgent(board.dispatch), ScriptedAgent(board.dispatch, instance="i2")
        first.register("mine")
        await board.init(OpenSession(caller=chat("a")))
        second.register("other")
        first.up = False
        board.dispatch.link_down(first)
        with pytest.raises(SessionOffline) as caught:
            await board.call(submit(chat("a")))
        assert caught.value.data is not None
        assert caught.value.data["sessionId"] == "mine"
        with pytest.raises(SessionOffline):
            await board.init(OpenSession(caller=chat("a")))
        assert second.batches() == []


async def test_bindings_are_the_same_after_a_restart(tmp_path: Path) -> None:
    """B01 B45"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s1")
        agent.register("s2")
        await board.init(OpenSession(caller=chat("a"), session="s2"))
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch, instance="i2")
        agent.register("s1")  # the other one comes first
        agent.register("s2")
        opened = await board.init(OpenSession(caller=chat("a")))
        assert (opened.selection, opened.session.id) == ("existing", "s2")


async def test_the_same_session_from_another_device_is_a_conflict(tmp_path: Path) -> None:
    async with broker(tmp_path, devices=("laptop", "thief")) as board:
        mine, theirs = ScriptedAgent(board.dispatch), ScriptedAgent(board.dispatch, device="thief")
        mine.register("s")
        board.dispatch.link_gone(mine)
        theirs.register("s")
        assert theirs.refusals() == ["session_conflict"]


async def test_an_explicit_session_selects_one_operation_and_changes_nothing(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s1")
        agent.register("s2")
        await board.init(OpenSession(caller=chat("a"), session="s1"))
        view = await board.call(submit(chat("a"), session="s2"))
        assert view.target.session == "s2"
        view = await board.call(submit(chat("a")))
        assert view.target.session == "s1"


async def test_the_first_call_establishes_a_default(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s1")
        agent.register("s2")
        await board.call(submit(chat("a"), session="s2"))
        assert (await board.sessions(ListSessions(caller=chat("a")))).binding == "s2"


async def test_a_client_without_a_conversation_must_name_the_session(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        ScriptedAgent(board.dispatch).register("s")
        opened = await board.init(OpenSession(caller=NONE))
        assert not opened.bound
        with pytest.raises(NoConversation):
            await board.tools(ListTools(caller=NONE))
        assert (await board.call(submit(NONE, session="s"))).status is Status.DONE
        assert (await board.sessions(ListSessions(caller=NONE))).sessions[0].binding_count == 0


async def test_an_unknown_session_is_an_error_not_a_default(tmp_path: Path) -> None:
    """B46"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        await board.init(OpenSession(caller=chat("a")))
        with pytest.raises(UnknownSession):
            await board.call(submit(chat("a"), session="t"))
        assert agent.batches() == []


async def test_a_sub_agent_is_never_chosen_automatically(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        ScriptedAgent(board.dispatch).register("s/child", parent="s")
        with pytest.raises(NoFreeSession):
            await board.init(OpenSession(caller=chat("a")))


async def test_a_long_silent_binding_does_not_keep_its_session_taken(tmp_path: Path) -> None:
    clock = [1_000_000.0]
    async with broker(tmp_path, now=lambda: clock[0]) as board:
        ScriptedAgent(board.dispatch).register("s")
        await board.init(OpenSession(caller=chat("a")))
        clock[0] += 15 * 86_400
        opened = await board.init(OpenSession(caller=chat("b")))
        assert opened.session.id == "s"


async def test_sessions_filters_and_pages_without_loss(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        for n in range(7):
            agent.register(f"s{n}", cwd=f"/home/u/project{n % 2}/src")
        agent.register("odd", cwd="/home/u/project12")
        inside = await board.sessions(ListSessions(directory="project1"))
        assert {row.id for row in inside.sessions} == {"s1", "s3", "s5"}
        seen: list[str] = []
        after = None
        while True:
            page = await board.sessions(ListSessions(limit=3, after=after))
            seen += [row.id for row in page.sessions]
            if not page.has_more:
                break
            after = page.sessions[-1].id
        assert sorted(seen) == sorted([f"s{n}" for n in range(7)] + ["odd"])


async def test_unbind_frees_a_session(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        ScriptedAgent(board.dispatch).register("s")
        await board.init(OpenSession(caller=chat("a")))
        assert (await board.unbind(Unbind(session="s"))).count == 1
        assert (await board.init(OpenSession(caller=chat("b")))).selection == "automatic"


async def test_a_session_of_another_process_is_replaced_only_when_that_one_is_gone(tmp_path: Path) -> None:
    """B33 B37"""
    async with broker(tmp_path) as board:
        old, new = ScriptedAgent(board.dispatch), ScriptedAgent(board.dispatch, instance="i2")
        old.register("s")
        new.register("s")
        assert new.refusals() == ["session_conflict"]
        old.up = False
        board.dispatch.link_down(old)
        new.register("s")
        board.dispatch.link_gone(old)  # the stale one's clean-up comes last
        assert (await board.call(submit(chat("a"), session="s"))).status is Status.DONE


async def test_a_session_whose_link_ended_without_a_word_about_it_is_offline(tmp_path: Path) -> None:
    """B36: its agent said goodbye to the link, not for the session; calls do not queue for nobody."""
    async with broker(tmp_path, offline_grace=0.01) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        await settle_down()
        agent.up = False
        board.dispatch.link_gone(agent)
        assert (await board.sessions(ListSessions())).sessions[0].status == "offline"
        with pytest.raises(SessionOffline):
            await board.call(submit(chat("a"), session="s"))


# -- the life of an operation ---------------------------------------------------------------------


async def test_a_batch_returns_its_results_in_request_order(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        ScriptedAgent(board.dispatch).register("s")
        view = await board.call(submit(chat("a"), "one", "two", "three"))
        assert [result.name for result in view.results] == ["one", "two", "three"]
        assert (view.status, view.executed, view.seq) == (Status.DONE, Executed.YES, 1)


async def test_what_outlasts_its_deadline_is_running_and_can_be_joined(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        view = await board.call(submit(chat("a"), wait=0.01))
        assert view.status is Status.RUNNING

        async def finish() -> None:
            await settle_down()
            agent.finish(agent.batches()[0])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(finish)
            joined = await board.call(Submit(caller=chat("a"), operation=view.operation))
        assert (joined.status, joined.joined) == (Status.DONE, True)
        assert joined.companions.items == ()


async def test_an_outcome_that_nobody_awaits_rides_with_the_next_response_once(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        view = await board.call(submit(chat("a"), wait=0.01))
        board.told(view.companions.receipt, sent=True)
        agent.finish(agent.batches()[0])
        agent.hold = False
        after = await board.chat(Chat(caller=chat("a"), text="hello"))
        assert [item.kind for item in after.companions.items] == ["deferred"]
        assert after.companions.items[0].operation == view.operation
        board.told(after.companions.receipt, sent=True)
        later = await board.chat(Chat(caller=chat("a"), text="again"))
        assert later.companions.items == ()
        assert view.operation in [op for message in agent.settled() for op in message.operations]


async def test_what_was_not_sent_is_offered_again_and_says_so(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        ScriptedAgent(board.dispatch).register("s")
        view = await board.call(submit(chat("a")))
        board.told(view.companions.receipt, sent=False)
        after = await board.chat(Chat(caller=chat("a"), text="x"))
        (item,) = after.companions.items
        assert (item.kind, item.operation, item.again) == ("deferred", view.operation, True)


async def test_no_outcome_reaches_another_conversation(tmp_path: Path) -> None:
    """B04 B05"""
    async with broker(tmp_path) as board:
        ScriptedAgent(board.dispatch).register("s")
        view = await board.call(submit(chat("a")))
        board.told(view.companions.receipt, sent=False)
        other = await board.call(submit(chat("b"), session="s"))
        assert other.companions.items == ()
        with pytest.raises(UnknownOperation):
            await board.call(Submit(caller=chat("c", principal="stranger"), operation=view.operation))


async def test_cancel_stops_a_queued_batch_before_it_runs(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        await board.call(submit(chat("a"), "one", wait=0.01))
        second = await board.call(submit(chat("a"), "two", wait=0.01))
        assert second.status is Status.QUEUED
        assert second.queue is not None
        assert second.queue.position == 1
        gone = await board.call(Submit(caller=chat("a"), operation=second.operation, cancel=True))
        assert (gone.status, gone.executed) == (Status.CANCELLED, Executed.NO)
        agent.finish(agent.batches()[0])
        await settle_down()
        assert len(agent.batches()) == 1


async def test_cancel_of_running_work_reaches_the_agent_and_keeps_finished_calls(tmp_path: Path) -> None:
    """B49"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        view = await board.call(submit(chat("a"), "one", "two", wait=0.01))

        async def stop() -> None:
            await settle_down()
            assert len(agent.cancels()) == 1
            agent.finish(agent.batches()[0], status="cancelled", upto=1)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            ended = await board.call(Submit(caller=chat("a"), operation=view.operation, cancel=True))
        assert ended.status is Status.CANCELLED
        assert [result.name for result in ended.results] == ["one"]
        assert ended.error is not None
        assert (ended.executed, ended.error.executed) == (Executed.YES, Executed.YES)


async def test_who_takes_a_request_back_stops_what_it_started(tmp_path: Path) -> None:
    """B49: a client that cancels, and not one that is gone; finished calls come with the next answer."""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        agent.register("s")
        withdrawal = Withdrawal()

        async def ask() -> None:
            WITHDRAWAL.set(withdrawal)
            await board.call(submit(chat("a"), "one", "two"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await settle_down()
            withdrawal.stop = True
            tasks.cancel_scope.cancel()
        assert len(agent.cancels()) == 1
        agent.finish(agent.batches()[0], status="cancelled", upto=1)
        agent.hold = False
        after = await board.call(submit(chat("a")))
        (item,) = after.companions.items
        assert item.kind == "deferred"
        assert (item.status, [result.name for result in item.results]) == (Status.CANCELLED, ["one"])
        assert item.error is not None
        assert item.error.executed is Executed.YES


async def test_a_cancel_goes_to_its_own_device_under_its_own_name_while_others_run(tmp_path: Path) -> None:
    """B50: it waits behind nothing, not even the calls of its own session, and touches no other work."""
    async with broker(tmp_path, devices=("laptop", "tower")) as board:
        here = ScriptedAgent(board.dispatch)
        there = ScriptedAgent(board.dispatch, device="tower", instance="i2")
        here.hold = there.hold = True
        await here.comes("s1")
        await there.comes("s2")
        await settle_down()
        first = await board.call(submit(chat("a"), "slow", session="s1", wait=0.01))
        behind = await board.call(submit(chat("b"), "next", session="s1", wait=0.01))
        other = await board.call(submit(chat("a"), "slow", session="s2", wait=0.01))
        asked = Submit(caller=chat("a"), operation=first.operation, cancel=True, wait=0.01)
        assert (await board.call(asked)).status is Status.CANCELLING
        assert [(cancel.operation, cancel.session) for cancel in here.cancels()] == [(first.operation, "s1")]
        assert there.cancels() == []
        here.finish(here.batches()[0], status="cancelled", upto=0)
        there.finish(there.batches()[0])
        await settle_down()
        here.finish(here.batches()[1])
        for view, caller in ((behind, "b"), (other, "a")):
            ended = await board.call(Submit(caller=chat(caller), operation=view.operation))
            assert ended.status is Status.DONE


async def test_a_cancel_frees_the_queue_even_if_the_device_is_silent(tmp_path: Path) -> None:
    """B27"""
    async with broker(tmp_path, cancel_silence=0.01) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        view = await board.call(submit(chat("a"), wait=0.01))
        ended = await board.call(Submit(caller=chat("a"), operation=view.operation, cancel=True))
        assert (ended.status, ended.executed) == (Status.INTERRUPTED, Executed.UNKNOWN)
        agent.hold = False
        assert (await board.call(submit(chat("a")))).status is Status.DONE


async def test_a_request_that_is_closed_while_queued_is_lost_and_never_runs(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        await board.call(submit(chat("a"), "one", wait=0.01))
        with anyio.move_on_after(0.01):
            await board.call(submit(chat("a"), "two"))
        agent.finish(agent.batches()[0])
        await settle_down()
        assert [batch.calls[0].name for batch in agent.batches()] == ["one"]
        agent.hold = False
        after = await board.chat(Chat(caller=chat("a"), text="x"))
        lost = [
            item for item in after.companions.items if item.kind == "deferred" and item.status is Status.LOST
        ]
        assert len(lost) == 1
        assert lost[0].executed is Executed.NO


async def test_a_request_that_is_closed_while_running_goes_on_and_its_outcome_is_kept(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        agent.register("s")
        with anyio.move_on_after(0.01):
            await board.call(submit(chat("a")))
        assert agent.cancels() == []
        agent.finish(agent.batches()[0])
        agent.hold = False
        after = await board.chat(Chat(caller=chat("a"), text="x"))
        assert [item.status for item in after.companions.items] == [Status.DONE]


async def test_the_bounds_of_the_queue_answer_overloaded(tmp_path: Path) -> None:
    """S22"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        agent.register("s")
        for n in range(9):  # one runs, eight wait
            await board.call(submit(chat("a"), f"t{n}", wait=0.001, session="s"))
        with pytest.raises(Overloaded):
            await board.call(submit(chat("a"), "more", wait=0.001, session="s"))
        assert len(agent.batches()) == 1


async def test_what_waits_too_long_for_its_turn_is_lost(tmp_path: Path) -> None:
    clock = [1000.0]
    async with broker(tmp_path, now=lambda: clock[0]) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        agent.register("s")
        await board.call(submit(chat("a"), "one", wait=0.001))
        second = await board.call(submit(chat("a"), "two", wait=0.001))
        clock[0] += 601
        board.dispatch.expire_queues()
        view = await board.call(Submit(caller=chat("a"), operation=second.operation))
        assert (view.status, view.executed) == (Status.LOST, Executed.NO)


async def test_work_of_an_agent_that_restarted_is_interrupted_not_repeated(tmp_path: Path) -> None:
    """B48"""
    async with broker(tmp_path) as board:
        agent, successor = ScriptedAgent(board.dispatch), ScriptedAgent(board.dispatch, instance="i2")
        agent.hold = True
        await agent.comes("s")
        view = await board.call(submit(chat("a"), wait=0.01))
        agent.up = False
        board.dispatch.link_down(agent)
        successor.register("s")
        ended = await board.call(Submit(caller=chat("a"), operation=view.operation))
        assert (ended.status, ended.executed) == (Status.INTERRUPTED, Executed.UNKNOWN)
        assert successor.batches() == []


async def test_work_goes_on_through_a_dropped_link(tmp_path: Path) -> None:
    """B31"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        view = await board.call(submit(chat("a"), wait=0.01))
        board.dispatch.link_down(agent)
        assert (await board.sessions(ListSessions())).sessions[0].status == "adrift"
        board.dispatch.link_back(agent)
        agent.finish(agent.batches()[0])
        ended = await board.call(Submit(caller=chat("a"), operation=view.operation))
        assert ended.status is Status.DONE


async def test_a_session_is_offline_when_its_agent_does_not_come_back(tmp_path: Path) -> None:
    """B36"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        running = await board.call(submit(chat("a"), "one", wait=0.01))
        queued = await board.call(submit(chat("a"), "two", wait=0.01))
        board.dispatch.link_down(agent)
        board.dispatch.link_gone(agent)
        assert (await board.sessions(ListSessions())).sessions[0].status == "offline"
        one = await board.call(Submit(caller=chat("a"), operation=running.operation))
        two = await board.call(Submit(caller=chat("a"), operation=queued.operation))
        assert (one.status, two.status) == (Status.INTERRUPTED, Status.LOST)


async def test_an_outcome_after_we_gave_up_is_better_than_our_doubt(tmp_path: Path) -> None:
    async with broker(tmp_path, cancel_silence=0.01) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        view = await board.call(submit(chat("a"), wait=0.01))
        await board.call(Submit(caller=chat("a"), operation=view.operation, cancel=True))
        agent.finish(agent.batches()[0])
        ended = await board.call(Submit(caller=chat("a"), operation=view.operation))
        assert ended.status is Status.DONE


@pytest.mark.parametrize("requests", [0, 1, 2])
async def test_an_outcome_arrives_also_when_the_doubt_has_been_told_before(
    tmp_path: Path, requests: int
) -> None:
    """B42: the doubt was shown, or has even arrived for certain; the output that came later is not lost."""
    async with broker(tmp_path, cancel_silence=0.01) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        view = await board.call(submit(chat("a"), wait=0.01))
        doubt = await board.call(Submit(caller=chat("a"), operation=view.operation, cancel=True))
        assert doubt.status is Status.INTERRUPTED
        board.told(doubt.companions.receipt, sent=True)
        agent.hold = False
        for _ in range(requests):  # each settles what was sent before it
            other = await board.call(submit(chat("a")))
            assert other.companions.items == ()
            board.told(other.companions.receipt, sent=True)
        agent.finish(agent.batches()[0])
        later = await board.call(submit(chat("a")))
        (item,) = later.companions.items
        assert (item.operation, item.status) == (view.operation, Status.DONE)
        assert item.results
        board.told(later.companions.receipt, sent=True)
        last = await board.call(submit(chat("a")))
        assert last.companions.items == ()


async def test_a_wait_ends_early_when_a_person_must_act(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        agent.on_batch = lambda batch: agent.ask(batch, (Need(kind="approval", session="s", what="bash"),))
        view = await board.call(submit(chat("a")))
        assert view.status is Status.ASKING
        assert view.needs[0].kind == "approval"
        agent.on_batch = None
        agent.ask(agent.batches()[0], ())
        agent.finish(agent.batches()[0])
        ended = await board.call(Submit(caller=chat("a"), operation=view.operation))
        assert ended.status is Status.DONE


async def test_an_outcome_from_before_the_broker_s_restart_is_delivered(tmp_path: Path) -> None:
    """B38 B40"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        await board.init(OpenSession(caller=chat("a")))
        view = await board.call(submit(chat("a"), wait=0.01))
        batch = agent.batches()[0]
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch, instance="i1")
        agent.register("s", known=(view.operation,))
        agent.finish(batch)
        after = await board.chat(Chat(caller=chat("a"), text="x"))
        (item,) = after.companions.items
        assert (item.operation, item.status) == (view.operation, Status.DONE)


@pytest.mark.parametrize("shown", [False, True])
async def test_a_stored_doubt_gives_way_to_the_outcome_that_comes_after_a_restart(
    tmp_path: Path, shown: bool
) -> None:
    """B42: the doubt is in the registry, and the broker that wrote it is gone."""
    async with broker(tmp_path, cancel_silence=0.01) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        await board.init(OpenSession(caller=chat("a")))
        view = await board.call(submit(chat("a"), wait=0.01))
        board.told(view.companions.receipt, sent=True)
        batch = agent.batches()[0]
        await board.call(Submit(caller=chat("a"), operation=view.operation, cancel=True, wait=0))
        with anyio.fail_after(5):
            while not board.dispatch.mailroom.undelivered:  # noqa: ASYNC110 - the mailroom tells nobody
                await anyio.sleep(0.001)
        if shown:
            told = await board.chat(Chat(caller=chat("a"), text="x"))
            assert [item.status for item in told.companions.items] == [Status.INTERRUPTED]
            board.told(told.companions.receipt, sent=True)
    for life in ("first", "second"):
        async with broker(tmp_path) as board:
            agent = ScriptedAgent(board.dispatch, instance=f"i-{life}")
            agent.register("s", known=(view.operation,))
            if life == "first":
                agent.finish(batch)
                continue  # nobody asks in this life: the registry alone has the better word
            after = await board.chat(Chat(caller=chat("a"), text="y"))
            (item,) = after.companions.items
            assert (item.operation, item.status) == (view.operation, Status.DONE)
            assert item.results
            board.told(after.companions.receipt, sent=True)
            last = await board.chat(Chat(caller=chat("a"), text="z"))
            assert last.companions.items == ()


async def test_a_batch_queued_when_the_broker_died_is_lost_not_run(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        await board.call(submit(chat("a"), "one", wait=0.01))
        queued = await board.call(submit(chat("a"), "two", wait=0.01))
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch, instance="i1")
        agent.register("s")
        view = await board.call(Submit(caller=chat("a"), operation=queued.operation))
        assert (view.status, view.executed) == (Status.LOST, Executed.NO)
        assert agent.batches() == []


# -- the same request again -----------------------------------------------------------------------


async def test_a_key_runs_once_and_joins(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        first = await board.call(submit(chat("a"), key="k"))
        again = await board.call(submit(chat("a"), key="k"))
        assert first.operation == again.operation
        assert again.results == first.results
        assert len(agent.batches()) == 1
        with pytest.raises(KeyReused):
            await board.call(submit(chat("a"), "other", key="k"))
        assert (await board.call(submit(chat("b"), key="k", session="s"))).operation != first.operation


async def test_a_request_that_comes_again_joins_though_the_clock_on_the_wall_jumped_meanwhile(
    tmp_path: Path,
) -> None:
    """What ended lately is remembered by how long ago that was, not by the date."""
    clock = [1_000_000.0]
    async with broker(tmp_path, now=lambda: clock[0]) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        first = await board.call(submit(chat("a"), tunnel_request="t1"))
        clock[0] += 30 * 3600
        board._janitor._forget(board.dispatch.limits.keep_results)
        again = await board.call(submit(chat("a"), tunnel_request="t1"))
        assert again.operation == first.operation
        assert len(agent.batches()) == 1


async def knows_nothing(board: Broker, agent: ScriptedAgent) -> None:
    """The agent's answer when it is asked for an operation of long ago."""
    await settle_down()
    (recall,) = [message for message in agent.got if isinstance(message, Recall)]
    failed = Failed(request=recall.request, failure=UnknownOperation().failure())
    board.dispatch.received(agent, failed)


async def test_a_key_whose_result_has_expired_says_so_and_runs_nothing(tmp_path: Path) -> None:
    """B48: neither the broker nor the agent's journal has it any more."""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        first = await board.call(submit(chat("a"), key="k"))
        board._ledger.forget(first.operation)

        async def again() -> None:
            with pytest.raises(UnknownOperation, match="has expired") as refused:
                await board.call(submit(chat("a"), key="k"))
            assert refused.value.executed is Executed.UNKNOWN

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(again)
            await knows_nothing(board, agent)
        assert len(agent.batches()) == 1


async def test_what_was_refused_before_it_ran_is_told_by_the_registry_alone(tmp_path: Path) -> None:
    """Its agent never took it, and the broker was killed before it told anybody."""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        first = await board.call(submit(chat("a"), wait=0.01))
        await settle_down()
        await board._store.finish_operation(first.operation, Status.FAILED, Executed.NO, 0.0)
        board._ledger.forget(first.operation)
        views: list[OperationView] = []

        async def read() -> None:
            views.append(await board.call(Submit(caller=chat("a"), operation=first.operation, wait=5)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await knows_nothing(board, agent)
        (view,) = views
        assert (view.status, view.executed) == (Status.FAILED, Executed.NO)
        assert view.error is not None
        assert (view.error.code, view.error.executed) == ("lost", Executed.NO)


async def test_equal_requests_with_one_key_at_the_same_moment_run_once(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        views: list[OperationView] = []

        async def one() -> None:
            views.append(await board.call(submit(chat("a"), key="k", session="s")))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(one)
        assert len({view.operation for view in views}) == 1
        assert len(agent.batches()) == 1


async def test_an_identical_request_joins_the_first_while_its_answer_is_not_sent(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        first = await board.call(submit(chat("a"), wait=0.01))
        board.told(first.companions.receipt, sent=False)
        second = await board.call(submit(chat("a"), wait=0.01))
        assert (second.operation, second.joined) == (first.operation, True)
        board.told(second.companions.receipt, sent=True)
        third = await board.call(submit(chat("a"), wait=0.01))
        assert third.operation != first.operation


async def test_the_tunnel_s_request_id_joins_equal_requests_only(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        first = await board.call(submit(chat("a"), tunnel_request="t"))
        board.told(first.companions.receipt, sent=True)
        same = await board.call(submit(chat("a"), tunnel_request="t"))
        assert (same.operation, same.again) == (first.operation, True)
        other = await board.call(submit(chat("a"), "other", tunnel_request="t"))
        assert other.operation != first.operation


# -- local input and model requests ---------------------------------------------------------------


async def test_local_input_goes_to_the_executor_once(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        agent.type("s", "in1", "please stop")
        pending = await board.history(FetchHistory(caller=chat("a"), session="s", range=HistoryRange()))
        assert pending.pending.inputs == 1
        view = await board.call(submit(chat("a"), session="s"))
        assert [item.input.id for item in view.companions.items] == ["in1"]
        board.told(view.companions.receipt, sent=True)
        other = await board.call(submit(chat("b"), session="s"))
        assert other.companions.items == ()
        after = await board.chat(Chat(caller=chat("a"), text="x"))
        assert after.companions.items == ()
        assert "in1" in [i for message in agent.settled() for i in message.inputs]


async def test_local_input_follows_the_executor_while_it_was_not_shown(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        await board.call(submit(chat("a"), session="s"))
        agent.type("s", "in1", "hello")
        view = await board.call(submit(chat("b"), session="s"))
        assert [item.input.id for item in view.companions.items] == ["in1"]


async def test_an_input_offered_twice_is_delivered_once(tmp_path: Path) -> None:
    """B41"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        await board.call(submit(chat("a"), session="s"))
        agent.type("s", "in1", "hello")
        agent.type("s", "in1", "hello")
        view = await board.call(submit(chat("a")))
        assert len(view.companions.items) == 1
        board.told(view.companions.receipt, sent=True)
        await board.call(submit(chat("a")))
        agent.type("s", "in1", "hello")
        assert (await board.call(submit(chat("a")))).companions.items == ()


async def test_say_reaches_the_agent(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        await settle_down()
        await board.say(TypeInput(session="s", content=(Text(text="hi"),)))
        assert [message.type for message in agent.got].count("typed") == 1


async def test_nothing_runs_while_a_model_request_waits(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        await board.call(submit(chat("a"), "one", wait=0.01))
        queued = await board.call(submit(chat("a"), "two", wait=0.01))
        request = ModelRequest(id="r1", kind="compaction", instructions="", content=(Text(text="long"),))
        agent.say(RequestOpened(session="s", request=request))
        refused = await board.call(Submit(caller=chat("a"), operation=queued.operation))
        assert (refused.status, refused.executed) == (Status.CANCELLED, Executed.NO)
        agent.finish(agent.batches()[0])
        view = await board.call(submit(chat("a"), "three"))
        assert (view.status, view.executed) == (Status.CANCELLED, Executed.NO)
        shown = [item for item in view.companions.items if item.kind == "request"]
        assert shown[0].request.id == "r1"
        assert "replyTo" in shown[0].request.instructions
        with pytest.raises(RequestClosed):
            await board.chat(Chat(caller=chat("a"), text="x", reply_to="r0"))
        await board.chat(Chat(caller=chat("a"), text="summary", reply_to="r1"))
        agent.say(RequestEnded(session="s", request="r1"))
        agent.hold = False
        assert (await board.call(submit(chat("a"), "four"))).status is Status.DONE
        assert [batch.calls[0].name for batch in agent.batches()] == ["one", "four"]


async def test_a_history_wait_ends_early_for_a_model_request_and_leaves_nothing(tmp_path: Path) -> None:
    """B59 B60"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")

        async def interrupt() -> None:
            await settle_down()
            request = ModelRequest(id="r1", kind="summary", instructions="", content=())
            agent.say(RequestOpened(session="s", request=request))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(interrupt)
            wait = FetchHistory(caller=chat("a"), session="s", range=HistoryRange(after="e", wait=30))
            view = await board.history(wait)
        assert view.page.entries == ()
        assert view.pending.requests == 1
        assert len(board.dispatch.rpc) == 0
        assert [message.type for message in agent.got].count("withdraw") == 1


async def test_what_one_device_can_leave_at_the_broker_is_bounded(tmp_path: Path) -> None:
    bounds = {"sessions": 2, "model_requests": 2, "unclaimed_inputs": 2}
    async with broker(tmp_path, **bounds) as board:
        agent = ScriptedAgent(board.dispatch)
        for name in ("s", "t", "u"):
            agent.register(name)
        await settle_down()
        assert agent.registered() == ["s", "t"]
        assert agent.refusals() == ["overloaded"]
        for number in range(3):
            agent.type("s", f"i{number}", "words")
            request = ModelRequest(id=f"r{number}", kind="summary", instructions="", content=())
            agent.say(RequestOpened(session="s", request=request))
        view = await board.call(submit(chat("a"), session="t"))
        assert view.status is Status.DONE
        session = board.dispatch.directory.get("s")
        assert (len(session.requests), len(session.unclaimed)) == (2, 2)


# -- participation --------------------------------------------------------------------------------


async def test_a_second_init_inside_the_window_observes(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        first = await board.init(OpenSession(caller=chat("a")))
        agent.type("s", "in1", "x")
        second = await board.init(OpenSession(caller=chat("a")))
        assert not first.initialization.observer
        assert second.initialization.observer
        assert "observer:true" in second.initialization.instructions
        assert second.companions.items == ()


async def test_the_window_can_be_switched_off(tmp_path: Path) -> None:
    async with broker(tmp_path, cooldown=0) as board:
        ScriptedAgent(board.dispatch).register("s")
        await board.init(OpenSession(caller=chat("a")))
        assert not (await board.init(OpenSession(caller=chat("a")))).initialization.observer


# -- load -----------------------------------------------------------------------------------------


async def test_many_callers_share_a_session_fairly_and_nothing_crosses(tmp_path: Path) -> None:
    """B04 S07"""
    async with broker(tmp_path, queue_session=64) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        order: list[tuple[str, int]] = []

        def run(batch: RunBatch) -> None:
            order.append((batch.origin.id, batch.calls[0].arguments["n"]))
            agent.finish(batch, text=f"{batch.calls[0].arguments['who']}:{batch.calls[0].arguments['n']}")

        agent.on_batch = run

        async def work(who: str) -> None:
            for n in range(60):
                call = (NewCall(name="noop", arguments={"who": who, "n": n}),)
                view = await board.call(Submit(caller=chat(who), calls=call, session="s"))
                assert view.results[0].content[0].text == f"{who}:{n}"
                board.told(view.companions.receipt, sent=True)

        async with anyio.create_task_group() as tasks:
            for n in range(32):
                tasks.start_soon(work, f"chat{n}")
        assert len(order) == 32 * 60
        for origin in {origin for origin, _ in order}:
            numbers = [n for who, n in order if who == origin]
            assert numbers == sorted(numbers)


async def test_errors_of_the_closed_list_only(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        with pytest.raises(BridgeError) as caught:
            await board.call(Submit(caller=chat("a")))
        assert caught.value.code == "bad_arguments"


async def test_a_link_lost_while_its_registration_is_written_leaves_it_adrift(tmp_path: Path) -> None:
    """B44"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        agent.up = False
        board.dispatch.link_down(agent)
        await settle_down()
        assert (await board.sessions(ListSessions())).sessions[0].status == "adrift"
        agent.up = True
        board.dispatch.link_back(agent)
        assert (await board.call(submit(chat("a")))).status is Status.DONE


async def test_an_outcome_told_for_the_first_time_does_not_say_again(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        view = await board.call(submit(chat("a"), wait=0.01))
        board.told(view.companions.receipt, sent=True)
        agent.finish(agent.batches()[0])
        first = await board.call(Submit(caller=chat("a"), operation=view.operation))
        board.told(first.companions.receipt, sent=True)
        second = await board.call(Submit(caller=chat("a"), operation=view.operation))
        assert (first.again, second.again) == (False, True)


async def test_the_same_tunnel_request_twice_at_once_runs_once(tmp_path: Path) -> None:
    """B48"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        views: list[OperationView] = []

        async def one() -> None:
            views.append(await board.call(submit(chat("a"), tunnel_request="t")))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(one)
        assert len({view.operation for view in views}) == 1
        assert len(agent.batches()) == 1


async def test_what_a_shell_was_told_is_settled_at_once(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        await settle_down()
        shell = Caller(principal="owner", source="shell")
        view = await board.call(submit(shell, session="s"))
        board.told(view.companions.receipt, sent=True)
        assert [message.operations for message in agent.settled()] == [(view.operation,)]


async def test_a_model_request_is_shown_to_whoever_joins(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        await board.call(submit(chat("a"), session="s"))
        agent.say(
            RequestOpened(
                session="s", request=ModelRequest(id="r1", kind="summary", instructions="", content=())
            )
        )
        opened = await board.init(OpenSession(caller=chat("b"), session="s"))
        assert [item.kind for item in opened.companions.items] == ["request"]


async def test_the_same_init_with_a_directory_keeps_its_session(tmp_path: Path) -> None:
    """B45"""
    async with broker(tmp_path, cooldown=0) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s1", cwd="/p")
        agent.register("s2", cwd="/p")
        agent.register("s3", cwd="/q")
        got = [await board.init(OpenSession(caller=chat("a"), directory="/p")) for _ in range(3)]
        assert {opened.session.id for opened in got} == {"s1"}
        moved = await board.init(OpenSession(caller=chat("a"), directory="/q"))
        assert moved.session.id == "s3"


async def test_who_only_joins_does_not_take_the_outcome_from_who_asked(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        view = await board.call(submit(chat("a"), session="s", wait=0.01))

        async def finish() -> None:
            await settle_down()
            agent.finish(agent.batches()[0])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(finish)
            joined = await board.call(Submit(caller=chat("b"), operation=view.operation))
        assert joined.status is Status.DONE
        after = await board.chat(Chat(caller=chat("a"), text="x"))
        assert [item.operation for item in after.companions.items if item.kind == "deferred"] == [
            view.operation
        ]


async def test_a_message_that_the_tunnel_brings_twice_is_posted_once_and_settles_nothing(
    tmp_path: Path,
) -> None:
    """B48"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        await board.call(submit(chat("a"), session="s"))
        agent.type("s", "in1", "hello")
        first = await board.chat(Chat(caller=chat("a"), text="x", tunnel_request="t"))
        board.told(first.companions.receipt, sent=True)
        again = await board.chat(Chat(caller=chat("a"), text="x", tunnel_request="t"))
        assert again.operation == first.operation
        assert [(item.input.id, item.again) for item in again.companions.items if item.kind == "input"] == [
            ("in1", True)
        ]
        assert [message.type for message in agent.got].count("post_chat") == 1


async def test_an_init_that_the_tunnel_brings_twice_does_not_turn_into_an_observer(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        ScriptedAgent(board.dispatch).register("s")
        await board.init(OpenSession(caller=chat("a"), tunnel_request="t"))
        again = await board.init(OpenSession(caller=chat("a"), tunnel_request="t"))
        assert not again.initialization.observer


async def test_without_a_conversation_nothing_runs_on_a_session_that_nobody_named(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        await settle_down()
        with pytest.raises(NoConversation):
            await board.call(submit(NONE))
        with pytest.raises(NoConversation):
            await board.chat(Chat(caller=NONE, text="x"))
        assert agent.batches() == []


async def test_two_clients_without_a_conversation_never_share_a_run(tmp_path: Path) -> None:
    """S07"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        first = await board.call(submit(NONE, session="s", wait=0.01))
        second = await board.call(submit(NONE, session="s", wait=0.01))
        assert first.operation != second.operation


async def test_a_reply_to_a_model_request_ends_with_its_agent(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        await agent.comes("s")
        await settle_down()
        agent.deaf = True
        agent.say(
            RequestOpened(
                session="s", request=ModelRequest(id="r1", kind="summary", instructions="", content=())
            )
        )
        view = await board.chat(Chat(caller=chat("a"), session="s", text="sum", reply_to="r1", wait=0.01))
        agent.up = False
        board.dispatch.link_down(agent)
        board.dispatch.link_gone(agent)
        ended = await board.call(Submit(caller=chat("a"), operation=view.operation))
        assert ended.status is Status.INTERRUPTED


async def test_bodies_kept_for_delivery_have_a_bound_and_what_was_sent_goes_first(tmp_path: Path) -> None:
    """S22"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        agent.on_batch = lambda batch: agent.finish(batch, text="x" * 10_000)
        for number in range(20):
            view = await board.call(submit(chat(f"c{number}"), session="s"))
            board.told(view.companions.receipt, sent=number % 2 == 0)
        board.dispatch.outcomes.shrink(110_000)
        arrived, given_up = board.dispatch.mailroom.oldest(110_000)
        assert (arrived, given_up) == ([], [])
        waiting = [
            await board.chat(Chat(caller=chat(f"c{n}"), session="s", text="x")) for n in range(1, 20, 2)
        ]
        assert all(item.companions.items for item in waiting)


async def test_an_operation_keeps_its_principal_through_a_restart(tmp_path: Path) -> None:
    """S08"""
    phone = chat("a", principal="phone")
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        view = await board.call(submit(phone, session="s", wait=0.01))
    async with broker(tmp_path) as board:
        ScriptedAgent(board.dispatch, instance="i2").register("s")
        await settle_down()
        with pytest.raises(UnknownOperation):
            await board.call(Submit(caller=chat("b"), operation=view.operation))
        assert (await board.call(Submit(caller=phone, operation=view.operation))).status is Status.INTERRUPTED


async def test_a_message_twice_at_one_moment_is_posted_once(tmp_path: Path) -> None:
    """B48"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        views: list[OperationView] = []

        async def say() -> None:
            views.append(await board.chat(Chat(caller=chat("a"), text="x", tunnel_request="t")))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(say)
        assert len({view.operation for view in views}) == 1
        assert [message.type for message in agent.got].count("post_chat") == 1


async def test_a_cancel_that_the_link_does_not_take_still_ends(tmp_path: Path) -> None:
    """B27"""
    async with broker(tmp_path, cancel_silence=0.01) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        view = await board.call(submit(chat("a"), wait=0.01))
        agent.full = True
        with pytest.raises(Overloaded):
            await board.call(Submit(caller=chat("a"), operation=view.operation, cancel=True))
        agent.full = False
        ended = await board.call(Submit(caller=chat("a"), operation=view.operation))
        assert (ended.status, ended.executed) == (Status.INTERRUPTED, Executed.UNKNOWN)


async def test_results_of_operations_that_never_end_have_a_bound(tmp_path: Path) -> None:
    """S22"""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.hold = True
        await agent.comes("s")
        await board.call(submit(chat("a"), wait=0.01))
        batch = agent.batches()[0]
        text = Text(text="x" * 500_000)
        for number in range(300):
            result = ToolResult(
                call=batch.calls[0].id, name="noop", is_error=False, duration_ms=1, content=(text,)
            )
            operation = OperationId(f"op_{number}")
            agent.say(CallResult(operation=operation, session=batch.session, index=0, result=result))
        assert len(board.dispatch.outcomes._orphans) <= MAX_ORPHAN_BYTES // 500_000
