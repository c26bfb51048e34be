"""What every agent program must do with ChatGPT as its model: no model anywhere, a script in its place."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from chappie_bridge.demo.chatgpt import Answer, Chat
from tests.hosts.programs import DRIVERS, Driver
from tests.hosts.rig import (
    PNG,
    SECONDS,
    Bridge,
    bridge,
    ended,
    inputs,
    joined,
    results,
    until,
    until_status,
)

pytestmark = pytest.mark.anyio


class Stage:
    def __init__(self, bridge: Bridge, program: Driver, chat: Chat, tasks: anyio.abc.TaskGroup) -> None:
        self.bridge, self.program, self.chat, self.tasks = bridge, program, chat, tasks

    async def joined(self) -> str:
        return await joined(self.chat)


@asynccontextmanager
async def stage(room: Path, name: str, settings: str = "") -> AsyncGenerator[Stage]:
    async with bridge(room / "bridge", settings) as made:
        program = DRIVERS[name](made)
        async with anyio.create_task_group() as tasks:
            try:
                await program.start(tasks)
                yield Stage(made, program, made.chatgpt.new_chat(), tasks)
            finally:
                await program.stop()
                tasks.cancel_scope.cancel()


def drivable(name: str, what: str) -> None:
    if what in DRIVERS[name].undriven:
        pytest.skip(f"as we drive it, nothing makes it {what}")


async def test_a_batch_with_results_images_failures_and_unknown_tools(tmp_path: Path, name: str) -> None:
    async with stage(tmp_path, name) as on:
        (on.bridge.work / "dot.png").write_bytes(PNG)
        sh, image = on.program.sh, on.program.image
        await on.program.prompt("Hello, this is the person.")
        session = await on.joined()

        both = await on.chat.call(
            "call", calls=[sh("sleep 1; echo first").as_json, sh("echo second").as_json]
        )
        assert not both.is_error, both.texts
        told = results(both)
        assert ["first" in told[0].text, "second" in told[1].text] == [True, True]
        assert inputs(both) == ["Hello, this is the person."]
        assert both.head["cwd"] == str(on.bridge.work)

        mixed = await on.chat.call("call", calls=[sh("exit 3").as_json, image("dot.png").as_json])
        failed, picture = results(mixed)
        assert failed.failed is on.program.tells_exit_codes
        assert not picture.failed
        assert picture.images == on.program.sees_images

        unknown = await on.chat.call("call", calls=[{"name": "no_such_tool", "arguments": {}}])
        assert unknown.is_error
        assert "no_such_tool" in unknown.texts[1]

        done = await on.chat.call("chat", text="All done.")
        assert not done.is_error
        await until_status(on.chat, session, "idle")
        late = await on.chat.call("call", calls=[sh("echo late").as_json])
        if on.program.wakes:
            assert "late" in results(late)[0].text
        else:  # the answer says what the person must do
            assert late.head["executed"] == "no"
            assert "not_listening" in late.texts[1]
            assert "continue" in late.texts[1]


async def test_an_endpoint_killed_during_a_hold_and_during_tools_runs_nothing_twice(
    tmp_path: Path, name: str
) -> None:
    async with stage(tmp_path, name) as on:
        sh = on.program.sh
        await on.program.prompt("hello")
        session = await on.joined()
        if not on.program.named:  # it is known by our call ids, and before the first call by nothing
            await on.chat.call("call", calls=[sh("true").as_json])
        on.bridge.kill_model()
        await anyio.sleep(1)
        on.bridge.start_model()
        calls = [sh("echo ran >> held.txt; echo held").as_json]
        first = await until(lambda: on.chat.call("call", calls=calls), lambda answer: not answer.is_error)
        assert first.head["sessionId"] == session
        assert "held" in results(first)[0].text
        assert (on.bridge.work / "held.txt").read_text(encoding="utf-8") == "ran\n"

        calls = [sh("echo ran >> tools.txt; sleep 3; echo tools").as_json]
        running = await on.chat.call("call", calls=calls, wait=1)
        assert running.head["status"] == "running"
        on.bridge.kill_model()
        on.bridge.start_model()
        later = await ended(on.chat, running.head["operation"])
        assert later.head["status"] == "done", later.texts
        assert "tools" in results(later)[0].text
        assert (on.bridge.work / "tools.txt").read_text(encoding="utf-8") == "ran\n"


async def next_turn(on: Stage, session: str) -> None:
    """Where words typed within a turn wait for its end: end it."""
    if not on.program.takes_words:
        await on.chat.call("chat", text="Done.")
        await until_status(on.chat, session, "ready")


async def test_words_typed_during_tools_arrive_with_the_next_result(tmp_path: Path, name: str) -> None:
    async with stage(tmp_path, name) as on:
        await on.program.prompt("hello")
        session = await on.joined()
        running = await on.chat.call("call", calls=[on.program.sh("sleep 3; echo slept").as_json], wait=1)
        assert running.head["status"] == "running"
        await on.program.steer("Be quick, please.")
        answer = await ended(on.chat, running.head["operation"])
        assert "slept" in results(answer)[0].text
        typed = inputs(running) + inputs(answer)
        if "Be quick, please." not in typed:  # the words may come a request later
            await next_turn(on, session)
            more = await on.chat.call("call", calls=[on.program.sh("echo more").as_json])
            typed += inputs(more)
        assert typed == ["hello", "Be quick, please."]


async def test_words_typed_while_a_request_is_held_are_no_abort(tmp_path: Path, name: str) -> None:
    async with stage(tmp_path, name) as on:
        await on.program.prompt("hello")
        session = await on.joined()
        await on.program.steer("And this.")
        await anyio.sleep(1)
        answer = await on.chat.call("call", calls=[on.program.sh("echo here").as_json])
        assert "here" in results(answer)[0].text
        await next_turn(on, session)
        more = await on.chat.call("call", calls=[on.program.sh("echo there").as_json])
        assert inputs(answer) + inputs(more) == ["hello", "And this."]


async def test_an_abort_while_held_and_during_tools(tmp_path: Path, name: str) -> None:
    drivable(name, "abort")
    async with stage(tmp_path, name) as on:
        sh = on.program.sh
        await on.program.prompt("hello")
        session = await on.joined()
        await on.program.abort()
        await until_status(on.chat, session, "idle")

        await on.program.prompt("again")
        await until_status(on.chat, session, "ready")
        running = await on.chat.call(
            "call", calls=[sh("echo finished").as_json, sh("sleep 20; echo never").as_json], wait=2
        )
        assert running.head["status"] == "running"
        await on.program.abort()
        answer = await ended(on.chat, running.head["operation"])  # its transcript says so: nobody types
        assert answer.head["status"] == "cancelled", answer.texts
        finished, stopped = results(answer)
        assert "finished" in finished.text
        assert stopped.failed
        assert "never" not in stopped.text
        await on.program.prompt("I stopped that.")
        await until_status(on.chat, session, "ready")
        next_one = await on.chat.call("call", calls=[sh("echo goes on").as_json])
        assert "goes on" in results(next_one)[0].text
        assert inputs(next_one)[-1:] == ["I stopped that."]


async def test_a_compaction_is_a_model_request_and_the_session_goes_on(tmp_path: Path, name: str) -> None:
    drivable(name, "compact")
    async with stage(tmp_path, name) as on:
        sh = on.program.sh
        await on.program.prompt("hello")
        session = await on.joined()
        await on.chat.call("call", calls=[sh("seq 1 30000").as_json])
        await on.chat.call("call", calls=[sh("seq 1 30000").as_json])
        await on.chat.call("chat", text="Done.")
        await until_status(on.chat, session, "idle")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on.program.compact)
            calls = [sh("true").as_json]
            assert await _answer_request(on.chat, session, SECONDS, calls)
            while await _answer_request(on.chat, session, 3, calls):
                pass  # a long history is summarised in parts
        await on.program.prompt("go on")
        await until_status(on.chat, session, "ready")
        answer = await on.chat.call("call", calls=[sh("echo after").as_json])
        assert "after" in results(answer)[0].text
        assert answer.head["sessionId"] == session


async def _answer_request(chat: Chat, session: str, seconds: float, calls: list[Any]) -> bool:
    """One model request; False when none comes within so many seconds."""
    with anyio.move_on_after(seconds):
        while not (await chat.call("sessions", sessionId=session)).head["pending"]["requests"]:  # noqa: ASYNC110
            await anyio.sleep(0.1)
        refused = await chat.call("call", calls=calls)
        assert (refused.head["status"], refused.head["executed"]) == ("cancelled", "no")
        (note,) = refused.notes("request")
        reply = await chat.call("chat", replyTo=note["request"], text="We greeted and counted.")
        assert not reply.is_error, reply.texts
        return True
    return False


async def test_a_program_that_comes_back_is_the_same_session(tmp_path: Path, name: str) -> None:
    async with stage(tmp_path, name) as on:
        await on.program.prompt("hello")
        session = await on.joined()
        await on.chat.call("call", calls=[on.program.sh("echo one").as_json])
        await on.chat.call("chat", text="Done.")
        await until_status(on.chat, session, "idle")
        await on.program.stop()
        await on.program.start(on.tasks, resume=True)
        await on.program.prompt("I am back")
        await until_status(on.chat, session, "ready")
        answer = await on.chat.call("call", calls=[on.program.sh("echo two").as_json])
        assert answer.head["sessionId"] == session
        assert inputs(answer) == ["I am back"]


async def test_history_is_the_programs_own_transcript_entry_by_entry(tmp_path: Path, name: str) -> None:
    async with stage(tmp_path, name) as on:
        sh = on.program.sh
        await on.program.prompt("hello")
        session = await on.joined()
        await on.chat.call("call", calls=[sh("echo one").as_json, sh("exit 3").as_json])
        await on.chat.call("chat", text="Half way.", final=False)
        await on.chat.call("call", calls=[sh("seq 1 2000").as_json])
        await on.chat.call("chat", text="Done.")
        await until_status(on.chat, session, "idle")

        def entries(page: Answer) -> list[tuple[str, str]]:
            return [(each["entry"], each["at"]) for each in page.notes("entry")]

        def whole(page: Answer) -> bool:
            natives = [each for each in entries(page) if "." not in each[0]]  # further parts of a message
            return "Done." in page.texts and natives == on.program.recorded()

        told = entries(await until(lambda: on.chat.call("history", limit=50), whole))
        assert len(told) >= 6

        newest = told[-1][0]
        await on.program.prompt("and live?")
        page = await on.chat.call("history", after=newest, wait=True)
        assert any("and live?" in text for text in page.texts), page.texts
        older = await on.chat.call("history", before=newest, limit=2)
        assert [each["entry"] for each in older.notes("entry")] == [each[0] for each in told[-3:-1]]
