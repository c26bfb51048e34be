"""A session on real files: batches, cancels, chat, input, questions to the owner, what a broker asks."""

import asyncio
import hashlib
import json
from pathlib import Path

import anyio
import pytest
from chappie_agents import session as module
from chappie_agents import teller, upkeep
from chappie_agents.bounded import RESULT_MAX
from chappie_agents.policy import Answer, Decision, Policy, Rule
from chappie_agents.tools import Arguments, ToolContext, ToolFailed
from chappie_agents.tools.bash import BASH
from chappie_agents.tools.tool import tool

from chappie_bridge.wire.blocks import Content, Spill, Text
from chappie_bridge.wire.errors import Denied, Executed, Overloaded
from chappie_bridge.wire.ids import EntryId
from chappie_bridge.wire.link import encode
from chappie_bridge.wire.messages import (
    ApprovalsWaiting,
    Asking,
    CallResult,
    Cancel,
    Decide,
    Decided,
    Done,
    Failed,
    Finished,
    InputOffered,
    Notice,
    Register,
    SessionChanged,
    Settled,
    Typed,
)
from chappie_bridge.wire.values import ToolCall
from tests.agents.stage import (
    ORIGIN,
    SESSION,
    FakeLink,
    Gate,
    Nothing,
    batch,
    call,
    chat,
    read,
    results,
    stage,
    texts,
)

pytestmark = pytest.mark.anyio


# --- batches --------------------------------------------------------------------------------------


async def test_a_batch_sends_each_result_and_then_its_end(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        message = batch(call("say", text="one"), call("say", text="two"))
        on.host.received(link, message)
        finished = await link.finished(message.operation)
        assert [texts(each.result.content) for each in results(link, message.operation)] == ["one", "two"]
        assert (finished.status, finished.executed, finished.count) == ("done", Executed.YES, 2)
        assert finished.origin == ORIGIN
        assert finished.cwd == str(tmp_path)
        page = await read(on, link)
        assert [each.kind for each in page.entries] == ["call", "call", "result", "result"]
        assert page.entries[0].origin == ORIGIN
        assert page.entries[0].arguments == {"text": "one"}
        assert page.entries[2].id == EntryId(message.calls[0].id)


async def test_a_repeated_batch_runs_once_and_is_told_again(tmp_path: Path) -> None:
    """B41 B48: the same operation again: running, it is ignored; finished, its outcome comes again."""
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        message = batch(call("wait"))
        on.host.received(link, message)
        await gate.inside.wait()
        on.host.received(link, message)
        gate.opened.set()
        finished = await link.finished(message.operation)
        on.host.received(link, message)
        await link.until(lambda: len(link.all(Finished)) == 2)
        assert gate.entered == 1
        assert link.all(Finished) == [finished, finished]
        assert link.all(CallResult)[0] == link.all(CallResult)[1]
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        on.host.received(link, Settled(session=SESSION, operations=(message.operation,)))
        on.host.received(link, message)
        await link.until(lambda: finished in link.all(Finished))
        assert gate.entered == 1


async def test_a_call_id_that_was_used_before_loses_no_result(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        asked = call("say", text="x")
        for message in (batch(asked), batch(asked)):
            on.host.received(link, message)
            await link.finished(message.operation)
        entries = (await read(on, link)).entries
        assert [each.call for each in entries] == [asked.id] * 4
        assert len({each.id for each in entries}) == 4


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (call("say", txt="x"), "calls[50].arguments of `say`"),
        (call("say"), "calls[50].arguments of `say`"),
        (call("say", text=7), "calls[50].arguments of `say`"),
        (call("shout", text="x"), "calls[50].name"),
    ],
)
async def test_a_batch_with_one_malformed_call_runs_nothing(
    tmp_path: Path, wrong: ToolCall, named: str
) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        calls = [call("say", text=str(number)) for number in range(64)]
        calls[50] = wrong
        message = batch(*calls)
        on.host.received(link, message)
        finished = await link.finished(message.operation)
        assert (finished.status, finished.executed) == ("failed", Executed.NO)
        assert finished.error is not None
        assert finished.error.code == "bad_arguments"
        assert named in finished.error.message
        assert gate.ran == []
        assert not link.all(CallResult)
        on.host.received(link, message)
        await link.until(lambda: len(link.all(Finished)) == 2)
        assert gate.ran == []


async def test_batches_of_no_or_too_many_calls_are_refused(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        twice = call("say", text="x")
        for calls in ((), [call("say", text="x") for _ in range(65)], (twice, twice)):
            message = batch(*calls)
            on.host.received(link, message)
            assert (await link.finished(message.operation)).executed is Executed.NO
        assert gate.ran == []


async def test_thirty_two_parallel_calls_are_inside_at_the_same_time(tmp_path: Path) -> None:
    gate = Gate(width=32)
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        message = batch(*(call("meet") for _ in range(32)))
        on.host.received(link, message)
        assert (await link.finished(message.operation)).status == "done"
        assert sorted(each.index for each in results(link, message.operation)) == list(range(32))


async def test_a_call_that_is_not_parallel_waits_for_those_before_it_and_holds_back_the_rest(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        message = batch(call("wait"), call("wait"), call("say", text="after"), call("wait"))
        on.host.received(link, message)
        await gate.inside.wait()
        await asyncio.sleep(0)
        assert (gate.entered, gate.ran) == (2, [])
        gate.opened.set()
        await link.finished(message.operation)
        assert (gate.entered, gate.ran) == (3, ["after"])


class Broken(Arguments):
    how: str


async def broken(arguments: Broken, context: ToolContext) -> Content:
    if arguments.how == "failed":
        raise ToolFailed("it says so itself")
    if arguments.how == "denied":
        raise Denied
    raise ZeroDivisionError("the secret inside")


async def test_a_tool_that_breaks_is_an_error_result_and_the_batch_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    breaks = tool("break", "Breaks.", Broken, broken, parallel=False)
    async with stage(tmp_path, (*gate.tools(), breaks)) as on:
        link = await on.link()
        kinds = ("failed", "denied", "bug")
        message = batch(*(call("break", how=kind) for kind in kinds), call("say", text="still here"))
        on.host.received(link, message)
        assert (await link.finished(message.operation)).status == "done"
        told = [each.result for each in results(link, message.operation)]
        assert [each.is_error for each in told] == [True, True, True, False]
        assert texts(told[0].content) == "it says so itself"
        assert texts(told[1].content).startswith("denied:")
        assert "secret" not in texts(told[2].content)
        mark = texts(told[2].content).rstrip(".").split()[-1]
        assert mark in caplog.text
        assert "the secret inside" in caplog.text


class Much(Arguments):
    count: int


async def much(arguments: Much, context: ToolContext) -> Content:
    return tuple(Text(text="\x1b\x00" * 60_000) for _ in range(arguments.count))


async def test_results_that_do_not_fit_a_message_are_spilled_and_readable_whole(tmp_path: Path) -> None:
    """B28: control characters at their JSON worst, many blocks of them; the session stays usable."""
    gate = Gate()
    floods = tool("flood", "Floods.", Much, much, parallel=True)
    data = ("\x1b\x00" * 60_000).encode()
    async with stage(tmp_path, (*gate.tools(), floods)) as on:
        link = await on.link()
        message = batch(call("flood", count=170), call("flood", count=1))
        on.host.received(link, message)
        await link.finished(message.operation)
        for told in results(link, message.operation):
            assert len(encode(told).encode()) <= RESULT_MAX + 4096
        short = next(each.result for each in results(link, message.operation) if each.index == 1)
        spill = short.content[0]
        assert isinstance(spill, Spill)
        assert spill.sha256 == hashlib.sha256(data).hexdigest()
        whole, offset = b"", 0
        while offset is not None:
            piece = (await read(on, link, entry=short.call, offset=offset)).text
            assert piece is not None
            whole += piece.text.encode()
            offset = piece.next_offset
        assert whole == data
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        page = await read(on, link, limit=200)
        assert len(encode(page).encode()) < 512 * 1024
        assert page.entries[-1].kind == "result"


# --- cancel ---------------------------------------------------------------------------------------


async def test_a_cancel_keeps_what_ended_and_says_what_never_began(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        message = batch(call("say", text="first"), call("wait"), call("say", text="never"))
        on.host.received(link, message)
        await gate.inside.wait()
        on.host.received(link, Cancel(operation=message.operation, session=SESSION, reason="Enough."))
        finished = await link.finished(message.operation)
        told = [each.result for each in results(link, message.operation)]
        assert [each.is_error for each in told] == [False, True, True]
        assert texts(told[0].content) == "first"
        assert texts(told[1].content).startswith("Cancelled while it ran")
        assert texts(told[2].content).startswith("Not run")
        assert (finished.status, finished.executed, finished.count) == ("cancelled", Executed.YES, 3)
        assert finished.error is not None
        assert finished.error.message == "Enough."
        assert (gate.cancelled, gate.ran) == (1, ["first"])


async def test_a_cancelled_command_gives_what_it_had_written(tmp_path: Path) -> None:
    async with stage(tmp_path, [BASH]) as on:
        link = await on.link()
        printed = tmp_path / "printed"
        message = batch(call("bash", command=f"echo one; echo two >&2; touch '{printed}'; sleep 300"))
        on.host.received(link, message)
        with anyio.fail_after(20):
            while not printed.exists():  # noqa: ASYNC110 - no event: the command made it
                await anyio.sleep(0.01)
        on.host.received(link, Cancel(operation=message.operation, session=SESSION, reason="Enough."))
        await link.finished(message.operation)
        (told,) = [each.result for each in results(link, message.operation)]
        assert told.is_error
        output, ending, why = [block.text for block in told.content if isinstance(block, Text)]
        assert output == "one\ntwo\n"
        assert json.loads(ending) == {
            "bytes": 8,
            "stopped": "It was cancelled; its process group was ended.",
        }
        assert why.startswith("Cancelled while it ran")


async def test_a_batch_cancelled_before_its_first_step_ran_nothing(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        message = batch(call("wait"), call("wait"), call("say", text="x"))
        on.host.received(link, message)
        on.host.received(link, Cancel(operation=message.operation, session=SESSION, reason="At once."))
        finished = await link.finished(message.operation)
        assert (finished.status, finished.executed) == ("cancelled", Executed.NO)
        assert (gate.entered, gate.ran) == (0, [])
        assert len(results(link, message.operation)) == 3


async def test_a_late_cancel_changes_nothing(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        message = batch(call("say", text="x"))
        on.host.received(link, message)
        await link.finished(message.operation)
        on.host.received(link, Cancel(operation=message.operation, session=SESSION, reason="Late."))
        other = batch(call("say", text="y"))
        on.host.received(link, other)
        assert (await link.finished(other.operation)).status == "done"
        assert len(link.all(Finished)) == 2


async def test_an_agent_that_is_stopped_keeps_what_ended_and_tells_it_the_next_time(tmp_path: Path) -> None:
    gate = Gate()
    message = batch(call("say", text="first"), call("wait"), call("say", text="never"))
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        on.host.received(link, message)
        await gate.inside.wait()
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        finished = await link.finished(message.operation)
        assert (finished.status, finished.executed) == ("cancelled", Executed.YES)
        assert [each.result.is_error for each in results(link, message.operation)] == [False, True, True]


# --- brokers come and go --------------------------------------------------------------------------


async def test_what_ran_while_the_link_was_gone_is_told_to_the_next_broker(tmp_path: Path) -> None:
    """B31 B40: a lost link stops nothing, and its outcome is stored before it is told."""
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        first = await on.link()
        message = batch(call("say", text="early"), call("wait"))
        on.host.received(first, message)
        await gate.inside.wait()
        on.host.link_down(first)
        on.host.link_gone(first)
        second = FakeLink()
        on.host.link_up(second)
        (register,) = second.all(Register)
        assert register.known == (message.operation,)
        gate.opened.set()
        await anyio.wait_all_tasks_blocked()
        assert not second.all(Finished)
        third = await on.link()
        assert (await third.finished(message.operation)).status == "done"
        told = results(third, message.operation)
        assert [texts(each.result.content) for each in told] == ["early", "opened"]
        assert third.sent.index(told[1]) < third.sent.index(third.all(Finished)[0])


async def test_the_same_link_back_again_brings_nothing_twice(tmp_path: Path) -> None:
    """B31: the link replays by itself."""
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        message = batch(call("wait"))
        on.host.received(link, message)
        await gate.inside.wait()
        on.host.link_down(link)
        on.host.link_back(link)
        gate.opened.set()
        await link.finished(message.operation)
        await anyio.wait_all_tasks_blocked()
        assert (len(link.all(Finished)), len(link.all(CallResult))) == (1, 1)


async def test_an_interrupted_batch_is_told_after_the_restart(tmp_path: Path) -> None:
    """B35: the session of a process that died resumes and says what it does not know."""
    gate = Gate()
    message = batch(call("wait"))
    async with stage(tmp_path, gate.tools()) as on:
        on.outbox.accept(message.operation, ORIGIN, kind="batch", cwd="/", calls=[message.calls[0].id])
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        finished = await link.finished(message.operation)
        assert (finished.status, finished.executed) == ("interrupted", Executed.UNKNOWN)
        on.host.received(link, message)
        await link.until(lambda: len(link.all(Finished)) == 2)
        assert gate.entered == 0
        assert message.operation in on.screen.notices[0]
        assert (await read(on, link)).entries[-1].kind == "notice"


async def test_a_full_link_gets_the_outcome_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teller, "RETRY", 0.001)
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        link.full = Overloaded()
        message = batch(call("say", text="x"))
        on.host.received(link, message)
        await on.session.type((Text(text="hello"),))
        await anyio.wait_all_tasks_blocked()
        assert on.screen.ends
        link.full = None
        assert (await link.finished(message.operation)).status == "done"
        assert len(results(link, message.operation)) == 1
        assert (await link.one(InputOffered)).input.content == (Text(text="hello"),)


async def test_a_settled_outcome_is_not_offered_again(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        first = await on.link()
        kept, settled = batch(call("say", text="kept")), batch(call("say", text="settled"))
        for message in (settled, kept):
            on.host.received(first, message)
            await first.finished(message.operation)
        on.host.received(first, Settled(session=SESSION, operations=(settled.operation,)))
        on.host.link_gone(first)
        second = await on.link()
        await second.finished(kept.operation)
        await anyio.wait_all_tasks_blocked()
        assert len(second.all(Finished)) == 1


# --- chat and input -------------------------------------------------------------------------------


async def test_a_chat_message_is_an_entry_of_the_transcript_once(tmp_path: Path) -> None:
    async with stage(tmp_path, ()) as on:
        link = await on.link()
        message = chat("working on it", final=False)
        on.host.received(link, message)
        on.host.received(link, message)
        await link.until(lambda: len(link.all(Finished)) == 2)
        finished = link.all(Finished)[0]
        assert (finished.kind, finished.status) == ("chat", "done")
        (entry,) = (await read(on, link)).entries
        assert (entry.id, entry.kind, entry.final) == (finished.entry, "assistant", False)
        assert on.screen.chats == ["working on it"]


async def test_a_reply_to_a_request_that_was_never_made_is_refused(tmp_path: Path) -> None:
    async with stage(tmp_path, ()) as on:
        link = await on.link()
        message = chat("a title", reply_to="r1")
        on.host.received(link, message)
        finished = await link.finished(message.operation)
        assert finished.error is not None
        assert (finished.error.code, finished.executed) == ("request_closed", Executed.NO)
        assert not (await read(on, link)).entries


async def test_typed_input_is_offered_to_every_broker_until_it_is_settled(tmp_path: Path) -> None:
    """B38 B40: input typed while nobody is there waits on the disk."""
    async with stage(tmp_path, ()) as on:
        names = [await on.session.type((Text(text=f"line {number}"),)) for number in range(3)]
    async with stage(tmp_path, ()) as on:
        first = await on.link()
        await first.until(lambda: len(first.all(InputOffered)) == 3)
        assert [each.input.id for each in first.all(InputOffered)] == names
        names.append(await on.session.type((Text(text="line 3"),)))
        on.host.received(first, Settled(session=SESSION, inputs=(names[0],)))
        on.host.link_gone(first)
        second = await on.link()
        await second.until(lambda: len(second.all(InputOffered)) == 3)
        offered = [each.input for each in second.all(InputOffered)]
        assert [each.id for each in offered] == names[1:]
        assert offered[-1].content == (Text(text="line 3"),)
        entries = (await read(on, second)).entries
        assert [texts(each.content) for each in entries] == [f"line {number}" for number in range(4)]
        assert {each.kind for each in entries} == {"user"}


async def test_what_a_full_link_did_not_take_is_offered_next_though_nothing_was_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B38: more input than the link takes at once; no conversation has asked for any of it."""
    monkeypatch.setattr(teller, "RETRY", 0.001)
    async with stage(tmp_path, ()) as on:
        names = [await on.session.type((Text(text=f"line {number}"),)) for number in range(5)]
        link = await on.link()
        link.room = 2
        await link.until(lambda: len(link.all(InputOffered)) == 2)
        names.append(await on.session.type((Text(text="line 5"),)))
        link.room = 2
        await link.until(lambda: len(link.all(InputOffered)) == 4)
        link.room = 2
        await link.until(lambda: len(link.all(InputOffered)) == 6)
        assert [each.input.id for each in link.all(InputOffered)] == names


async def test_input_from_a_shell_counts_as_typed_here(tmp_path: Path) -> None:
    async with stage(tmp_path, ()) as on:
        link = await on.link()
        content = (Text(text="x" * 100_000),)
        on.host.received(link, Typed(request=7, session=SESSION, content=content))
        await link.reply(Done, 7)
        (spill,) = link.all(InputOffered)[0].input.content
        assert isinstance(spill, Spill)
        assert spill.size == 100_000


async def test_input_that_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INPUTS", 2)
    async with stage(tmp_path, ()) as on:
        link = await on.link()
        for _ in range(2):
            await on.session.type((Text(text="x"),))
        on.host.received(link, Typed(request=7, session=SESSION, content=(Text(text="x"),)))
        assert (await link.reply(Failed, 7)).failure.code == "overloaded"


async def test_a_notice_is_shown_and_kept(tmp_path: Path) -> None:
    async with stage(tmp_path, ()) as on:
        link = await on.link()
        on.host.received(link, Notice(session=SESSION, text="A chat joined."))
        assert on.screen.notices == ["A chat joined."]
        (entry,) = (await read(on, link)).entries
        assert (entry.kind, texts(entry.content)) == ("notice", "A chat joined.")


# --- questions to the owner -----------------------------------------------------------------------


async def guarded(arguments: Nothing, context: ToolContext) -> Content:
    await context.permit("guarded", "file", writing=True, what="write the file")
    return (Text(text="allowed"),)


GUARDED = tool("guarded", "Asks first.", Nothing, guarded, parallel=False)
ASKS = Policy(rules=(Rule("guarded", Decision.ASK),))


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_batch_that_needs_the_owner_says_so_and_goes_on_with_the_answer(
    tmp_path: Path, allowed: bool
) -> None:
    async with stage(tmp_path, (GUARDED,), policy=ASKS) as on:
        link = await on.link()
        message = batch(call("guarded"))
        on.host.received(link, message)
        asking = await link.one(Asking)
        assert asking.operation == message.operation
        assert asking.needs[0].kind == "approval"
        assert "write the file" in asking.needs[0].what
        assert link.all(SessionChanged)[-1].session.activity == "asking"
        (approval,) = on.screen.approvals
        on.session.approvals.answer(approval.id, Answer(allowed))
        await link.finished(message.operation)
        assert link.all(Asking)[-1].needs == ()
        assert link.all(SessionChanged)[-1].session.activity == "ready"
        (told,) = results(link, message.operation)
        assert told.result.is_error is not allowed


async def test_a_cancel_withdraws_the_question(tmp_path: Path) -> None:
    async with stage(tmp_path, (GUARDED,), policy=ASKS) as on:
        link = await on.link()
        message = batch(call("guarded"))
        on.host.received(link, message)
        await link.one(Asking)
        assert on.session.stop("The owner stopped it.") == 1
        finished = await link.finished(message.operation)
        assert finished.status == "cancelled"
        assert on.session.approvals.pending == ()


def decide(approval: str, *, allowed: bool, request: int = 7) -> Decide:
    return Decide(
        request=request, session=SESSION, approval=approval, allowed=allowed, scope="once", by="dashboard"
    )


@pytest.mark.parametrize("allowed", [True, False])
async def test_the_broker_hears_what_waits_for_the_owner_and_brings_the_answer(
    tmp_path: Path, allowed: bool
) -> None:
    async with stage(tmp_path, (GUARDED,), policy=ASKS) as on:
        link = await on.link()
        message = batch(call("guarded"))
        on.host.received(link, message)
        (asked,) = (await link.one(ApprovalsWaiting)).approvals
        assert (asked.tool, asked.what, asked.writing) == ("guarded", "write the file", True)
        on.host.received(link, decide(asked.id, allowed=allowed))
        decided = await link.reply(Decided, 7)
        assert (decided.allowed, decided.by) == (allowed, "dashboard")
        await link.finished(message.operation)
        (told,) = results(link, message.operation)
        assert told.result.is_error is not allowed
        assert link.all(ApprovalsWaiting)[-1].approvals == ()


async def test_a_full_link_hears_once_there_is_room_what_waits_for_the_owner_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teller, "RETRY", 0.001)
    async with stage(tmp_path, (GUARDED,), policy=ASKS) as on:
        link = await on.link()
        first, second = batch(call("guarded")), batch(call("guarded"))
        on.host.received(link, first)
        await link.one(ApprovalsWaiting)
        link.full = Overloaded()
        on.session.approvals.answer(on.session.approvals.pending[0].id, Answer(True))
        await anyio.wait_all_tasks_blocked()
        on.host.received(link, second)
        await anyio.wait_all_tasks_blocked()
        link.full = None
        await link.until(lambda: len(link.all(ApprovalsWaiting)) > 1)
        (told,) = link.all(ApprovalsWaiting)[1:]
        assert [each.id for each in told.approvals] == [each.id for each in on.session.approvals.pending]
        assert link.all(SessionChanged)[-1].session.activity == "asking"


async def test_an_answer_that_comes_second_is_told_the_first(tmp_path: Path) -> None:
    async with stage(tmp_path, (GUARDED,), policy=ASKS) as on:
        link = await on.link()
        message = batch(call("guarded"))
        on.host.received(link, message)
        (asked,) = (await link.one(ApprovalsWaiting)).approvals
        on.session.approvals.answer(on.session.approvals.pending[0].id, Answer(False, by="terminal"))
        on.host.received(link, decide(asked.id, allowed=True))
        decided = await link.reply(Decided, 7)
        assert (decided.allowed, decided.by) == (False, "terminal")


async def test_an_answer_to_what_no_longer_waits_is_refused(tmp_path: Path) -> None:
    async with stage(tmp_path, (GUARDED,), policy=ASKS) as on:
        link = await on.link()
        on.host.received(link, decide("ap_never", allowed=True))
        assert (await link.reply(Failed, 7)).failure.code == "request_closed"


async def test_another_broker_hears_what_still_waits(tmp_path: Path) -> None:
    async with stage(tmp_path, (GUARDED,), policy=ASKS) as on:
        link = await on.link()
        on.host.received(link, batch(call("guarded")))
        told = await link.one(ApprovalsWaiting)
        on.host.link_gone(link)
        assert await (await on.link()).one(ApprovalsWaiting) == told


async def test_what_is_written_reaches_the_disk_and_the_index_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "SYNC_AFTER", 0.0)
    synced = anyio.Event()
    async with stage(tmp_path, Gate().tools()) as on:
        real = on.outbox.sync

        def sync() -> None:
            real()
            anyio.from_thread.run_sync(synced.set)

        monkeypatch.setattr(on.outbox, "sync", sync)
        link = await on.link()
        message = batch(call("say", text="x"))
        on.host.received(link, message)
        await link.finished(message.operation)
        with anyio.fail_after(10):
            await synced.wait()
