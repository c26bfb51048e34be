"""A program and ChatGPT around one session: holds, calls, results, words, aborts, restarts."""

from pathlib import Path

import anyio
import pytest
from chappie_agents.hosts.model.knowledge import Settings

from chappie_bridge.wire.errors import Executed, Overloaded
from chappie_bridge.wire.messages import (
    Asking,
    CallResult,
    Describe,
    Description,
    Finished,
    Recall,
    RequestEnded,
    RequestOpened,
    SessionChanged,
    SessionEnded,
    Settled,
)
from tests.agents.model.rig import Program, Reply, Stage, stage
from tests.agents.stage import texts

pytestmark = pytest.mark.anyio

S = "0199-pi-session"


async def _held(on: Stage, program: Program) -> None:
    await on.link.until(lambda: program.session in on.link.registered())
    session = on.house.sessions[program.session]
    with anyio.fail_after(5):
        while not session.waits:  # noqa: ASYNC110  # it tells nobody
            await anyio.sleep(0.001)


async def test_a_batch_is_one_native_batch_and_its_results_come_in_request_order(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        batch = on.batch(S, ("say", {"text": "one"}), ("run", {"text": "two"}))
        await reply.until_end()
        assert reply.call_ids == [call.id for call in batch.calls]
        program.history.append(reply.message())
        for call in reversed(batch.calls):  # Claude Code sends them as they end
            program.history.append({"role": "tool", "tool_call_id": call.id, "content": f"of {call.name}"})
        program.asks()
        finished = await on.link.finished(batch.operation)
        assert (finished.status, finished.executed, finished.count) == ("done", Executed.YES, 2)
        told = on.link.all(CallResult)
        assert [(each.index, texts(each.result.content)) for each in told] == [(0, "of say"), (1, "of run")]


async def test_a_call_that_does_not_fit_is_refused_before_the_program_sees_anything(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        batch = on.batch(S, ("say", {"text": "one"}), ("sing", {}))
        finished = await on.link.finished(batch.operation)
        assert finished.error is not None
        assert (finished.status, finished.executed, finished.error.code) == ("failed", "no", "bad_arguments")
        assert "sing" in finished.error.message
        assert not reply.ended
        assert not reply.call_ids


async def test_a_hold_that_drops_and_comes_back_is_the_same_hold_and_nobody_is_told(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        first = program.asks()
        await _held(on, program)
        first.leave()
        await anyio.sleep(2)
        batch = on.batch(S, ("say", {"text": "one"}))  # while nobody holds
        await anyio.sleep(2)
        assert not on.link.all(Finished)
        again = await program.asks().until_end()
        assert again.call_ids == [batch.calls[0].id]
        assert on.link.typed() == ["hello"]
        assert on.link.registered() == [S]


async def test_an_answer_that_did_not_arrive_is_given_again_with_the_same_ids(tmp_path: Path) -> None:
    """A dropped stream after the calls were written: the program sends the identical request."""
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        batch = on.batch(S, ("say", {"text": "one"}))
        await reply.until_end()
        again = await program.asks().until_end()
        assert again.call_ids == reply.call_ids
        program.ran(again, "said")
        program.asks()
        assert (await on.link.finished(batch.operation)).status == "done"
        assert len(on.link.all(CallResult)) == 1


async def test_the_end_of_a_turn_that_did_not_arrive_is_told_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        on.chat(S, "All done.")
        await reply.until_end()
        again = await program.asks().until_end()
        assert again.message()["content"] == "All done."
        program.history.append(again.message())
        later = program.says("and now?").asks()
        await _held(on, program)
        assert not later.ended
        assert on.link.typed() == ["hello", "and now?"]


async def test_words_typed_during_tools_arrive_with_the_results_and_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        batch = on.batch(S, ("say", {"text": "one"}))
        await reply.until_end()
        program.ran(reply, "said", then="be quick")
        held = program.asks()
        await on.link.finished(batch.operation)
        await _held(on, program)
        held.leave()
        program.asks()
        await anyio.sleep(1)
        assert on.link.typed() == ["hello", "be quick"]


async def test_words_that_a_full_link_did_not_take_follow_once_there_is_room(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        on.batch(S, ("say", {"text": "one"}))
        await reply.until_end()
        on.link.full = Overloaded()
        program.ran(reply, "said", then="be quick")
        program.asks()
        await anyio.sleep(1)
        assert on.link.typed() == ["hello"]
        on.link.full = None
        await on.link.until(lambda: on.link.typed() == ["hello", "be quick"])


async def test_the_same_words_twice_are_two_inputs(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("continue")
        reply = program.asks()
        await _held(on, program)
        on.chat(S, "Done.")
        await reply.until_end()
        program.history.append(reply.message())
        program.says("continue").asks()
        await on.link.until(lambda: len(on.link.typed()) == 2)
        assert on.link.typed() == ["continue", "continue"]


async def test_progress_leaves_the_request_open_and_survives_a_drop(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        chat = on.chat(S, "Looking.", final=False)
        assert (await on.link.finished(chat.operation)).status == "done"
        await anyio.sleep(1)
        assert not reply.ended
        reply.leave()
        again = program.asks()
        await anyio.sleep(1)
        on.batch(S, ("say", {"text": "one"}))
        await again.until_end()
        assert again.message()["content"] == "Looking."
        assert again.call_ids


async def test_progress_of_a_program_that_does_not_stream_comes_with_the_calls(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        program.stream = False
        reply = program.asks()
        await _held(on, program)
        on.chat(S, "Looking.", final=False)
        await anyio.sleep(25)
        on.batch(S, ("say", {"text": "one"}))
        await reply.until_end()
        assert reply.body.startswith(b"  {")  # white space kept it alive
        assert b"Looking." in reply.body
        assert b"call_chp_" in reply.body


async def test_an_abort_while_held_ends_the_turn_and_says_what_to_do(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        reply.leave()
        await anyio.sleep(1)
        batch = on.batch(S, ("say", {"text": "one"}))
        await anyio.sleep(30)
        finished = await on.link.finished(batch.operation)
        assert finished.error is not None
        assert (finished.error.code, finished.executed) == ("not_listening", "no")
        assert "Pi" in (finished.error.hint or "")
        assert on.link.all(SessionChanged)[-1].session.activity == "idle"


async def test_an_abort_before_the_calls_arrived_means_that_nothing_ran(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        batch = on.batch(S, ("say", {"text": "one"}))
        await reply.until_end()
        program.says("no, wait").asks()
        finished = await on.link.finished(batch.operation)
        assert (finished.status, finished.executed) == ("cancelled", "no")
        await on.link.until(lambda: on.link.typed() == ["hello", "no, wait"])


async def test_an_abort_during_tools_keeps_the_finished_sibling(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S)
        program.tools = [
            {"type": "function", "function": {"name": "bash", "description": "", "parameters": {}}}
        ]
        reply = program.says("hello").asks()
        await _held(on, program)
        batch = on.batch(S, ("bash", {"command": "a"}), ("bash", {"command": "b"}))
        await reply.until_end()
        program.ran(reply, "finished output", "Command aborted", then="stop that")
        program.asks()
        finished = await on.link.finished(batch.operation)
        assert (finished.status, finished.executed, finished.count) == ("cancelled", "yes", 2)
        results = [each.result for each in on.link.all(CallResult)]
        assert [(each.is_error, texts(each.content)) for each in results] == [
            (False, "finished output"),
            (True, "Command aborted"),
        ]


async def test_a_restart_during_a_hold_keeps_the_session_and_what_was_accepted(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        reply.leave()
        await anyio.sleep(1)
        batch = on.batch(S, ("say", {"text": "one"}))
        await anyio.sleep(1)
    async with stage(tmp_path) as on:
        assert on.link.registered() == [S]  # before the program comes back
        program.stage = on
        again = await program.asks().until_end()
        assert again.call_ids == [batch.calls[0].id]
        await on.link.until(lambda: on.link.typed() == ["hello"])  # again: nobody had confirmed it
        program.ran(again, "said")
        program.asks()
        assert (await on.link.finished(batch.operation)).status == "done"


async def test_a_restart_during_tools_runs_nothing_twice(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        batch = on.batch(S, ("say", {"text": "one"}))
        await reply.until_end()
    async with stage(tmp_path) as on:
        assert batch.operation in on.house.sessions[S].known()
        on.host.received(on.link, batch)  # the broker repeats it
        program.stage = on
        program.ran(reply, "said")
        held = program.asks()
        assert (await on.link.finished(batch.operation)).status == "done"
        await anyio.sleep(1)
        assert not held.call_ids


async def test_a_restart_after_calls_that_never_arrived_gives_them_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        on.batch(S, ("say", {"text": "one"}))
        await reply.until_end()
    async with stage(tmp_path) as on:
        program.stage = on
        again = await program.asks().until_end()
        assert again.call_ids == reply.call_ids


async def test_an_outcome_that_nobody_confirmed_is_told_to_the_next_broker(tmp_path: Path) -> None:
    """Completed output of an interrupted request reaches the conversation with a later response."""
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        batch = on.batch(S, ("say", {"text": "one"}))
        await reply.until_end()
        on.host.link_gone(on.link)
        program.ran(reply, "said")
        program.asks()
        await anyio.sleep(1)
        assert not on.link.all(Finished)
        on.host.link_up(on.link)
        assert (await on.link.finished(batch.operation)).status == "done"
        assert texts(on.link.all(CallResult)[0].result.content) == "said"
        on.host.received(on.link, Settled(session=batch.session, operations=(batch.operation,)))
        on.host.received(on.link, Recall(request=7, session=batch.session, operation=batch.operation))
        await on.link.until(lambda: len(on.link.all(Finished)) == 2)


async def test_two_terminals_with_the_same_greeting_are_two_sessions(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        Program(on).says("hello").asks()
        Program(on).says("hello").asks()
        await on.link.until(lambda: len(set(on.link.registered())) == 2)


async def test_a_program_without_session_ids_is_known_by_our_call_ids_also_after_a_restart(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as on:
        program = Program(on).says("hello")
        reply = program.asks()
        await on.link.until(lambda: on.link.registered())
        session = on.link.registered()[0]
        await anyio.sleep(1)
        batch = on.batch(session, ("say", {"text": "one"}))
        await reply.until_end()
        program.ran(reply, "said")
    async with stage(tmp_path) as on:
        program.stage = on
        program.asks()
        assert (await on.link.finished(batch.operation)).status == "done"
        assert set(on.link.registered()) == {session}


async def test_a_batch_without_a_word_for_long_says_so(tmp_path: Path) -> None:
    async with stage(tmp_path, Settings(no_word=60)) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        batch = on.batch(S, ("say", {"text": "one"}))
        await reply.until_end()
        await anyio.sleep(61)
        asking = await on.link.one(Asking)
        assert asking.operation == batch.operation
        assert (asking.needs[0].kind, asking.needs[0].session) == ("prompt", S)
        assert "60 s" in asking.needs[0].what


async def test_a_session_that_nobody_hears_of_ends_and_brings_its_results_when_it_comes_back(
    tmp_path: Path,
) -> None:
    """Completed output from an interrupted request."""
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        batch = on.batch(S, ("say", {"text": "one"}))
        await reply.until_end()
        await anyio.sleep(599)
        assert not on.link.all(SessionEnded)
        await anyio.sleep(30)
        assert on.link.all(SessionEnded)
        program.ran(reply, "said at last")
        program.asks()
        await on.link.until(lambda: on.link.registered() == [S, S])
        assert (await on.link.finished(batch.operation)).status == "done"
        assert texts(on.link.all(CallResult)[0].result.content) == "said at last"
        assert on.link.typed()[0] == "hello"


async def test_a_held_session_outlives_every_lease(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        program.asks()
        await _held(on, program)
        await anyio.sleep(3 * 3600)
        assert not on.link.all(SessionEnded)
        assert on.link.all(SessionChanged)[-1].session.activity == "ready"


async def test_a_summary_is_a_model_request_and_nothing_runs_meanwhile(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        on.chat(S, "Done.")
        await reply.until_end()
        asked = _summary(program)
        opened = await on.link.one(RequestOpened)
        assert opened.request.kind == "compaction"
        assert "what we did" in texts(opened.request.content)
        batch = on.batch(S, ("say", {"text": "one"}))
        finished = await on.link.finished(batch.operation)
        assert (finished.status, finished.executed) == ("cancelled", "no")
        answer = on.chat(S, "The summary.", reply_to=opened.request.id)
        assert (await on.link.finished(answer.operation)).status == "done"
        assert (await asked.until_end()).message()["content"] == "The summary."
        assert on.link.all(RequestEnded)[0].request == opened.request.id
        late = on.chat(S, "Again.", reply_to=opened.request.id)
        assert (await on.link.finished(late.operation)).error.code == "request_closed"


async def test_a_summary_asked_for_behind_a_full_link_is_told_once_there_is_room(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        reply = program.asks()
        await _held(on, program)
        on.chat(S, "Done.")
        await reply.until_end()
        on.link.full = Overloaded()
        asked = _summary(program)
        await anyio.sleep(1)
        assert not on.link.all(RequestOpened)
        on.link.full = None
        opened = await on.link.one(RequestOpened)
        assert on.link.all(SessionChanged)[-1].session.activity == "requesting"
        on.chat(S, "The summary.", reply_to=opened.request.id)
        assert (await asked.until_end()).message()["content"] == "The summary."


async def test_several_summaries_may_wait_and_each_has_its_own_answer(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        first, second = _summary(program, "part one"), _summary(program, "part two")
        await on.link.until(lambda: len(on.link.all(RequestOpened)) == 2)
        ids = {texts(each.request.content): each.request.id for each in on.link.all(RequestOpened)}
        on.chat(S, "Two.", reply_to=ids["part two"])
        on.chat(S, "One.", reply_to=ids["part one"])
        assert (await first.until_end()).message()["content"] == "One."
        assert (await second.until_end()).message()["content"] == "Two."


async def test_a_summary_that_nobody_makes_is_a_digest(tmp_path: Path) -> None:
    async with stage(tmp_path, Settings(summary_wait=120)) as on:
        asked = _summary(Program(on, S), "[User]: hello\n\n[Assistant]: hi")
        opened = await on.link.one(RequestOpened)
        assert "made without a model" in (await asked.until_end(200)).message()["content"]
        assert on.link.all(RequestEnded)[0].request == opened.request.id


async def test_a_summary_asked_again_after_a_drop_is_the_same_request(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S)
        first = _summary(program)
        opened = await on.link.one(RequestOpened)
        first.leave()
        again = _summary(program)
        await anyio.sleep(60)
        on.chat(S, "The summary.", reply_to=opened.request.id)
        assert (await again.until_end()).message()["content"] == "The summary."
        assert len(on.link.all(RequestOpened)) == 1


async def test_a_summary_that_the_program_gives_up_is_no_request_any_more(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        first = _summary(Program(on, S))
        opened = await on.link.one(RequestOpened)
        first.leave()
        await anyio.sleep(30)
        assert (await on.link.one(RequestEnded)).request == opened.request.id


async def test_the_tools_are_those_of_the_newest_request(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("hello")
        program.asks()
        await _held(on, program)
        describe = Describe(request=9, session=S, names=("run", "sing"))
        on.host.received(on.link, describe)
        described = await on.link.reply(Description, 9)
        assert [tool.name for tool in described.tools] == ["run"]
        assert described.unknown == ("sing",)


def _summary(program: Program, prompt: str = "what we did") -> Reply:
    system = {"role": "system", "content": "You are a context summarization assistant. Summarise."}
    body = {"model": "chappie", "stream": True, "messages": [system, {"role": "user", "content": prompt}]}
    return program.posts("/v1/chat/completions", body)
