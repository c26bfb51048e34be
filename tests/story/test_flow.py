"""The local function flow end to end: the strict peer over HTTP on one side, a real session on a real
directory on the other."""

import base64
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import pytest
from chappie_broker.state import StateDirectory

from chappie_bridge.cli.reach import reached
from chappie_bridge.faces.chatgpt.present import Presenter
from chappie_bridge.faces.flow.hearing import LocalCall, Said
from chappie_bridge.faces.flow.talk import Talk
from chappie_bridge.faces.flow.tools import LocalTools
from chappie_bridge.faces.flow.transport import Transport
from chappie_bridge.faces.flow.turn import Conversation, Ended, Manner, State
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.ports import Switchboard
from chappie_bridge.wire.requests import FetchHistory, ListTools
from chappie_bridge.wire.values import Caller, HistoryRange
from tests.faces.flow.conftest import owners
from tests.peer.deltas import ENCODING
from tests.peer.flow import FINISHED, Call, Cut, Flow, Raw, Say, Script, serving
from tests.story.bridge import Home

pytestmark = pytest.mark.anyio

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("flow"))
    (home.work / "a.txt").write_text("one\n", encoding="utf-8")
    (home.work / "pixel.png").write_bytes(PIXEL)
    with home.up():
        yield home


class Held:
    """One conversation with the peer."""

    def __init__(self, talk: Talk, flow: Flow, shown: list[Any], broker: Switchboard) -> None:
        self.talk, self.flow, self.shown, self.broker = talk, flow, shown, broker

    async def say(self, text: str = "go") -> Ended:
        with anyio.fail_after(60):
            return await self.talk.say(text)

    def text(self, channel: str = "final") -> str:
        return "".join(each.text for each in self.shown if isinstance(each, Said) and each.channel == channel)

    @property
    def calls(self) -> list[LocalCall]:
        return [each for each in self.shown if isinstance(each, LocalCall)]

    @property
    def messages(self) -> list[str]:
        """What the model read of each result."""
        return [result["message"] for result in self.flow.results]


@asynccontextmanager
async def holding(
    home: Home,
    room: Path,
    *script: Script,
    native: bool = False,
    approve: bool = True,
    wait: float = 40,
    limit: int = 10_000,
    seed: int = 1,
) -> AsyncIterator[Held]:
    flow = Flow(list(script), seed=seed)
    shown: list[Any] = []

    async def asked(prompt: str, reason: str) -> bool:
        return approve

    async with serving(flow) as url, reached(StateDirectory.visit(home.state)) as broker:
        own = (await broker.tools(ListTools(session=session(home)))).tools if native else ()
        tools = LocalTools(
            broker,
            Presenter(broker, "test", limit),
            clock=anyio.current_time,
            approve=asked,
            session=session(home),
            native=own,
            wait=wait,
        )
        manner = Manner("m", "", "UTC", 0, tools.signatures, tools.names, readable=True)
        conversation = Conversation(manner, now=time.time, new_id=lambda: str(uuid.uuid4()))
        yield Held(Talk(conversation, Transport(owners(room, url)), tools, shown.append), flow, shown, broker)
    assert not flow.refused


@cache
def session(home: Home) -> SessionId:
    (row,) = home.json("sessions")["sessions"]
    return SessionId(row["id"])


def batch(*calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": name, "arguments": arguments} for name, arguments in calls]


def encoded(*calls: tuple[str, dict[str, Any]]) -> str:
    return base64.b64encode(json.dumps(batch(*calls)).encode()).decode()


async def test_a_turn_with_two_calls_one_of_them_a_base64_batch_of_three(home: Home, tmp_path: Path) -> None:
    three = encoded(
        ("write", {"path": "b.txt", "content": "\"größer\" '$x'\n"}),
        ("read", {"path": "b.txt"}),
        ("bash", {"command": "pwd"}),
    )
    script: list[Script] = [
        [Say("I look around.", "commentary", None), Call("sessions", {"online": "true"})],
        [Call("call", {"base64": three})],
        [Say("All done.")],
    ]
    async with holding(home, tmp_path, *script) as held:
        assert await held.say() == Ended(State.FINISHED)
        assert held.text() == "All done."
        assert [call.tool for call in held.calls] == ["sessions", "call"]
        assert session(home) in held.messages[0]
        assert "größer" in held.messages[1]
        assert str(home.work) in held.messages[1]
    assert (home.work / "b.txt").read_text(encoding="utf-8") == "\"größer\" '$x'\n"


async def test_calls_as_json_text_and_the_rest_of_the_tools(home: Home, tmp_path: Path) -> None:
    calls = json.dumps(batch(("read", {"path": "a.txt"})))
    script: list[Script] = [
        [Call("tools", {"names": '["read"]'})],
        [Call("call", {"calls": calls, "wait": "30"})],
        [Call("chat", {"text": "noted", "final": "false"})],
        [Call("history", {"limit": "5"})],
        [Call("call", {"calls": calls, "pth": "x"})],
        [Say("ok")],
    ]
    async with holding(home, tmp_path, *script) as held:
        assert await held.say() == Ended(State.FINISHED)
        assert '"name":"read"' in held.messages[0]
        assert "one" in held.messages[1]
        assert "noted" in held.messages[3]
        assert "Unknown argument `pth`" in held.messages[4]
        assert held.flow.results[4]["isError"] is True


async def test_files_are_offered_and_copied_without_what_needs_the_apps_own_files(
    home: Home, tmp_path: Path
) -> None:
    script: list[Script] = [
        [Call("transfer", {"paths": '["a.txt"]'})],
        [Call("transfer", {"paths": ["a.txt"], "files": "[]"})],
        [Say("ok")],
    ]
    async with holding(home, tmp_path, *script) as held:
        assert await held.say() == Ended(State.FINISHED)
        assert "chappie://" in held.messages[0]
        assert "Unknown argument `files`" in held.messages[1]


async def test_a_sessions_own_tools_are_called_by_their_names(home: Home, tmp_path: Path) -> None:
    script: list[Script] = [
        [Call("read", {"path": "a.txt", "limit": "1"}), Call("bash", {"command": "exit 3"})],
        [],
        [Say("ok")],
    ]
    async with holding(home, tmp_path, *script, native=True) as held:
        assert await held.say() == Ended(State.FINISHED)
        assert {"handoff", "call", "read", "bash", "edit"} <= set(held.flow.declared)
        assert "one" in held.messages[0]
        assert held.flow.results[1]["isError"] is True, "a tool that fails says so"


async def test_an_image_becomes_a_reference(home: Home, tmp_path: Path) -> None:
    async with holding(
        home, tmp_path, [Call("read", {"path": "pixel.png"})], [Say("ok")], native=True
    ) as held:
        assert await held.say() == Ended(State.FINISHED)
        (message,) = held.messages
        assert "image/png" in message
        assert "chappie://" in message
        assert base64.b64encode(PIXEL).decode()[:40] not in message


async def test_fifteen_megabytes_are_trimmed_and_can_be_read_on(home: Home, tmp_path: Path) -> None:
    flood = "head -c 15000000 /dev/zero | tr '\\0' 'x' | fold -w 99"
    async with holding(home, tmp_path, [Call("bash", {"command": flood})], [Say("ok")], native=True) as held:
        assert await held.say() == Ended(State.FINISHED)
        (message,) = held.messages
        assert len(message) < 200_000
        assert '"trimmed":[{' in message


async def test_a_stream_cut_inside_a_character_after_a_whole_call_still_runs_it(
    home: Home, tmp_path: Path
) -> None:
    call = Call("bash", {"command": "echo ran >> once.txt"}, FINISHED)
    cut = Raw('event: delta\ndata: {"v":"é'.encode()[:-1])
    async with holding(home, tmp_path, [call, cut, Cut()], [Say("ok")], native=True) as held:
        assert await held.say() == Ended(State.FINISHED)
    assert (home.work / "once.txt").read_text(encoding="utf-8") == "ran\n"


async def test_a_call_that_was_cut_is_not_run(home: Home, tmp_path: Path) -> None:
    call = Call("bash", {"command": "echo ran > never.txt"})
    async with holding(home, tmp_path, [call, Cut()], native=True) as held:
        held.flow.readable = False
        assert (await held.say()).state is State.FAILED
        assert not held.calls
    assert not (home.work / "never.txt").exists()


async def test_an_unknown_operation_fails_and_runs_nothing(home: Home, tmp_path: Path) -> None:
    drift = Raw(f'{ENCODING}event: delta\ndata: {{"p":"/message","o":"merge","v":{{}}}}\n\n'.encode())
    call = Call("bash", {"command": "echo ran > never.txt"}, FINISHED)
    async with holding(home, tmp_path, [call, drift], native=True) as held:
        ended = await held.say()
        assert ended.state is State.FAILED
        assert "cannot be read" in ended.reason
    assert not (home.work / "never.txt").exists()


@pytest.mark.parametrize("approve", [True, False])
async def test_handoff_opens_the_task_in_the_session_if_the_person_agrees(
    home: Home, tmp_path: Path, approve: bool
) -> None:
    prompt = f"build it {uuid.uuid4()}"
    call = Call("handoff", {"prompt": prompt, "reason": "files"})
    async with holding(home, tmp_path, [call], [Say("ok")], approve=approve) as held:
        assert await held.say() == Ended(State.FINISHED)
        (result,) = held.flow.results
        assert result["accepted"] is approve
        assert result.get("thread_id") == (session(home) if approve else None)
        wanted = FetchHistory(
            caller=Caller(principal="owner", source="shell"),
            session=session(home),
            range=HistoryRange(limit=20, offset=None),
        )
        page = (await held.broker.history(wanted)).page
        assert any(prompt in str(entry.content) for entry in page.entries) is approve


async def test_a_call_that_outlives_its_wait_is_told_later(home: Home, tmp_path: Path) -> None:
    gate = home.work / "gate"
    script: list[Script] = [
        [Call("bash", {"command": "while [ ! -e gate ]; do sleep 0.05; done; echo at last"})],
        [Say("it runs")],
    ]
    async with holding(home, tmp_path, *script, native=True, wait=0.2) as held:
        assert await held.say() == Ended(State.FINISHED)
        (head,) = held.messages
        operation = json.loads(head.splitlines()[0])["operation"]
        assert '"status":"running"' in head
        gate.touch()
        held.flow.script += [[Call("call", {"operation": operation, "wait": "30"})], [Say("done")]]
        assert await held.say() == Ended(State.FINISHED)
        assert "at last" in held.messages[1]


async def test_a_stopped_turn_leaves_the_batch_running(home: Home, tmp_path: Path) -> None:
    command = "touch begun; while [ ! -e go ]; do sleep 0.05; done; echo x > went"
    async with holding(home, tmp_path, [Call("bash", {"command": command})], native=True) as held:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(held.say)
            await until(lambda: bool(held.calls))
            await until((home.work / "begun").exists)
            tasks.cancel_scope.cancel()
        assert held.talk.conversation.state is State.STOPPED
        (home.work / "go").touch()
        await until((home.work / "went").exists)


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not holds():  # noqa: ASYNC110 - no event tells what other processes do
            await anyio.sleep(0.02)
