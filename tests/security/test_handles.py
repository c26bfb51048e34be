"""Uploads, addresses and cursors of another are unknown ones; and no agent speaks of what is not its own."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from chappie_agents.spool import Spool
from chappie_agents.transcript import Transcript
from chappie_broker.broker import Broker

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.errors import BridgeError, Executed, Timeout, UnknownEntry, UnknownOperation
from chappie_bridge.wire.ids import OperationId, SessionId
from chappie_bridge.wire.messages import Asking, CallResult, Finished, Pull, RunBatch
from chappie_bridge.wire.requests import FetchBytes, Push, Submit, Transfer, Upload
from chappie_bridge.wire.values import Caller, HistoryRange, Need, NewCall, Origin, ToolResult
from tests.agents.stage import entry
from tests.broker.rig import ScriptedAgent, broker, chat, settle_down

pytestmark = pytest.mark.anyio

PHONE, LAPTOP = chat("a", principal="phone"), chat("a", principal="laptop")

S = SessionId("s")

CALLS = (NewCall(name="noop", arguments={}),)


async def refused(ask: Callable[[str], Awaitable[object]], theirs: str, nobodys: str) -> BridgeError:
    """What both say, which must be the same."""
    said = []
    for handle in (theirs, nobodys):
        with pytest.raises(BridgeError) as error:
            await ask(handle)
        said.append(error.value)
    assert said[0].failure() == said[1].failure()
    return said[0]


async def test_bytes_for_an_upload_of_another_principal_are_not_taken(tmp_path: Path) -> None:
    """S08: the operation's id is not enough."""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.deaf = True
        agent.register("s")
        upload = (Upload(name="a", size=3),)
        begun = await board.transfer(
            Transfer(caller=PHONE, session=S, paths=("a",), uploads=upload, wait=0.01)
        )

        def push(caller: Caller) -> Callable[[str], Awaitable[object]]:
            return lambda operation: board.push(
                Push(caller=caller, operation=OperationId(operation), index=0, offset=0, data="YWJj")
            )

        assert isinstance(await refused(push(LAPTOP), begun.operation, "op_none"), UnknownOperation)
        with anyio.move_on_after(0.05) as waiting:
            await push(PHONE)(begun.operation)
        assert waiting.cancelled_caught  # it is known, and waits for room


async def test_an_address_given_to_another_principal_opens_nothing(tmp_path: Path) -> None:
    """S08: the agent is not even asked."""
    async with broker(tmp_path, ask_seconds=0.05) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        await settle_down()
        given = board._reading.capability(Origin(kind="shell", id="x", label="x", principal="phone"))

        def fetch(caller: Caller) -> Callable[[str], Awaitable[object]]:
            return lambda capability: board.fetch(
                FetchBytes(
                    caller=caller, session=S, source="file:x", offset=0, length=1, capability=capability
                )
            )

        assert (await refused(fetch(LAPTOP), given, "A" * len(given))).code == "path_missing"
        assert not [each for each in agent.got if isinstance(each, Pull)]
        with pytest.raises(Timeout):
            await fetch(PHONE)(given)
        assert [each for each in agent.got if isinstance(each, Pull)]


async def test_a_cursor_of_another_session_is_an_unknown_one(tmp_path: Path) -> None:
    """S08: entries have one name each, and it is good in one transcript."""
    mine = Transcript(tmp_path / "mine", Spool(tmp_path / "mine" / "spool"))
    theirs = Transcript(tmp_path / "theirs", Spool(tmp_path / "theirs" / "spool"))
    try:
        mine.append(entry("e_mine"))
        theirs.append(entry("e_theirs"))
        for cursor in ("before", "after", "entry"):
            said = []
            for name in ("e_theirs", "e_nobody"):
                with pytest.raises(UnknownEntry) as error:
                    await mine.page(HistoryRange.model_validate({cursor: name}))
                said.append((str(error.value).replace(name, ""), error.value.data))
            assert said[0] == said[1]
    finally:
        mine.close()
        theirs.close()


# --- what another's agent says ------------------------------------------------------------------


async def running(board: Broker, agent: ScriptedAgent) -> RunBatch:
    """A batch of the agent's session `s` that goes on."""
    agent.hold = True
    agent.register("s")
    await board.call(Submit(caller=PHONE, session=S, calls=CALLS, wait=0.01))
    return agent.batches()[-1]


def outcome(batch: RunBatch, session: str, text: str) -> tuple[CallResult, Finished]:
    result = ToolResult(
        call=batch.calls[0].id, name="noop", is_error=False, duration_ms=1, content=(Text(text=text),)
    )
    of = {"operation": batch.operation, "session": SessionId(session)}
    return (
        CallResult(**of, index=0, result=result),
        Finished(
            **of,
            origin=batch.origin,
            kind="batch",
            status="done",
            executed=Executed.YES,
            cwd="/work",
            count=1,
        ),
    )


async def test_no_device_says_that_anothers_batch_waits_for_the_person(tmp_path: Path) -> None:
    """S11: ids of what runs can be seen by whoever lists sessions."""
    async with broker(tmp_path, devices=("laptop", "other")) as board:
        agent = ScriptedAgent(board.dispatch)
        batch = await running(board, agent)
        other = ScriptedAgent(board.dispatch, device="other", instance="i2")
        other.register("theirs")
        need = Need(kind="prompt", session=S, what="Type your password")
        for session in ("s", "theirs"):
            other.say(Asking(operation=batch.operation, session=SessionId(session), needs=(need,)))
        view = await board.call(Submit(caller=PHONE, operation=batch.operation, wait=0))
        assert (view.status, view.needs) == (Status.RUNNING, ())
        agent.ask(batch, (need,))
        view = await board.call(Submit(caller=PHONE, operation=batch.operation, wait=0))
        assert view.needs == (need,)


@pytest.mark.parametrize("forgotten", [False, True])
async def test_no_device_slips_a_result_into_anothers_batch(tmp_path: Path, forgotten: bool) -> None:
    """S11: while the broker knows the batch, and after it forgot."""
    async with broker(tmp_path, devices=("laptop", "other")) as board:
        agent = ScriptedAgent(board.dispatch)
        batch = await running(board, agent)
        if forgotten:
            board._ledger.forget(batch.operation)
        other = ScriptedAgent(board.dispatch, device="other", instance="i2")
        other.register("theirs")
        for session in ("s", "theirs"):
            other.say(outcome(batch, session, "forged")[0])
        for message in outcome(batch, "s", "true"):
            agent.say(message)
        view = await board.call(Submit(caller=PHONE, operation=batch.operation, session=S))
        assert [each.content for each in view.results] == [(Text(text="true"),)]


async def test_an_agent_says_nothing_of_what_was_never_sent_to_it(tmp_path: Path) -> None:
    """S11: a session that asked for it itself knows the id while it waits."""
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        batch = await running(board, agent)
        queued = await board.call(Submit(caller=PHONE, session=S, calls=CALLS, wait=0.01, key="k"))
        assert queued.status is Status.QUEUED
        early = batch.model_copy(update={"operation": queued.operation})
        for message in outcome(early, "s", "early"):
            agent.say(message)
        agent.ask(early, ())
        view = await board.call(Submit(caller=PHONE, operation=queued.operation, wait=0))
        assert (view.status, view.results) == (Status.QUEUED, ())
        agent.hold = False
        agent.finish(batch)
        assert (await board.call(Submit(caller=PHONE, operation=queued.operation))).status is Status.DONE
