"""A whole bridge behind the scripted tunnel: replies are lost, requests come again, nothing runs twice."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from chappie_bridge.demo.bridge import Ready, bridge
from tests.peer.chatgpt import Answer, Chat, ChatGPT, LostAnswer, Request
from tests.peer.tunnel import ACTIVE, QUEUED, Tunnel

pytestmark = pytest.mark.anyio

SOON = 0.2
"""A `response_timeout` that a command which waits for its gate exceeds."""

PERSON = "v1/one"
"""The bridge takes one person for each credential."""

BOUND = 30.0
"""Seconds after which a test is broken."""


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    room = tmp_path_factory.mktemp("tunnelled")
    work = room / "work"
    work.mkdir()
    config = room / "config.toml"
    config.write_text("cooldown = 0\n", encoding="utf-8")  # every chat here joins to work
    with bridge(room / "state", work, "--config", str(config)) as told:
        yield told


@asynccontextmanager
async def tunnelled(ready: Ready, **options: Any) -> AsyncGenerator[tuple[Tunnel, ChatGPT]]:
    tunnel = Tunnel(ready.mcp, ready.headers, **options)
    with anyio.fail_after(BOUND):
        async with tunnel.open() as url:
            yield tunnel, ChatGPT(url, subject=PERSON)


class Gated:
    """A command that says that it ran, then waits until it is let go."""

    def __init__(self, room: Path) -> None:
        self._runs, self._go = room / "runs", room / "go"
        command = f"echo ran >> {self._runs}; until [ -e {self._go} ]; do sleep 0.02; done; echo through"
        self.call = {"name": "bash", "arguments": {"command": command}}

    def let_go(self) -> None:
        self._go.touch()

    @property
    def runs(self) -> int:
        return self._runs.read_text(encoding="utf-8").count("ran") if self._runs.exists() else 0


async def until_answered(chat: Chat, request: Request) -> Answer:
    """The same request again, as often as the tunnel needs."""
    while True:
        try:
            return await chat.send(request)
        except LostAnswer:
            continue


async def lost(chat: Chat, request: Request, gated: Gated) -> None:
    """Its reply does not come in time, and its command runs by then, however slow the machine is."""
    while True:
        with pytest.raises(LostAnswer, match=r"No reply within 0\.2 s"):
            await chat.send(request)
        if gated.runs:
            return


async def all_seen(ready: Ready) -> None:
    """The server has seen what was sent to it, or that a client left: it took requests after that, and each
    went to the agent and back."""
    chat = ChatGPT(ready.mcp, ready.headers, subject=PERSON).new_chat()
    for _ in range(3):
        await chat.call("tools", sessionId=ready.session, names=["bash"])


async def test_a_redelivery_gets_the_reply_that_was_dropped(ready: Ready, tmp_path: Path) -> None:
    """B48: the reply left the server and was dropped; the tunnel's request id makes it the same request."""
    gated = Gated(tmp_path)
    async with tunnelled(ready, response_timeout=SOON) as (tunnel, chatgpt):
        chat = chatgpt.new_chat()
        request = chat.request("call", sessionId=ready.session, calls=[gated.call])
        await lost(chat, request, gated)
        gated.let_go()
        await tunnel.idle()
        answer = await until_answered(chat, request)
    assert answer.head["again"] is True
    assert answer.head["status"] == "done"
    assert "through\n" in answer.texts
    assert gated.runs == 1


async def test_a_key_does_the_same_where_the_tunnel_names_no_request(ready: Ready, tmp_path: Path) -> None:
    """B48: nothing but the key tells that it is the same request."""
    gated = Gated(tmp_path)
    async with tunnelled(ready, response_timeout=SOON, request_ids=False) as (tunnel, chatgpt):
        chat = chatgpt.new_chat()
        request = chat.request("call", sessionId=ready.session, calls=[gated.call], key="gated")
        await lost(chat, request, gated)
        gated.let_go()
        await tunnel.idle()
        answer = await until_answered(chat, request)
    assert answer.head["again"] is True
    assert "through\n" in answer.texts
    assert gated.runs == 1


@pytest.mark.parametrize("hang_up", [False, True], ids=["the reply is read", "the tunnel hangs up"])
@pytest.mark.parametrize("request_ids", [False, True], ids=["without ids", "with ids"])
async def test_an_equal_request_joins_what_still_runs(
    ready: Ready, tmp_path: Path, request_ids: bool, hang_up: bool
) -> None:
    """B48: no reply ever left; neither a key nor an id is needed while the batch runs."""
    gated = Gated(tmp_path)
    options = {"request_ids": request_ids, "hang_up": hang_up}
    async with (
        tunnelled(ready, response_timeout=SOON, **options) as (_, hasty),
        tunnelled(ready, **options) as (_, patient),
    ):
        chat, answers = patient.new_chat(), list[Answer]()
        request = chat.request("call", sessionId=ready.session, calls=[gated.call])
        await lost(hasty.new_chat(), request, gated)
        await lost(hasty.new_chat(), request, gated)

        async def again() -> None:
            answers.append(await chat.send(request))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(again)
            await all_seen(ready)
            gated.let_go()
    assert answers[0].head["joined"] is True
    assert "through\n" in answers[0].texts
    assert gated.runs == 1


async def test_two_clients_with_the_same_request_run_it_once(ready: Ready, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    call = {"name": "bash", "arguments": {"command": f"echo ran >> {runs}; cat {runs}"}}
    async with tunnelled(ready) as (_, chatgpt):
        chat = chatgpt.new_chat()
        await chat.call("init", sessionId=ready.session)
        both = await chat.twice(chat.request("call", calls=[call]))
    assert runs.read_text(encoding="utf-8") == "ran\n"
    assert both[0].head["operation"] == both[1].head["operation"]
    assert all("ran\n" in answer.texts for answer in both)


async def test_a_result_that_nobody_fetched_comes_with_the_next_response(
    ready: Ready, tmp_path: Path
) -> None:
    gated = Gated(tmp_path)
    async with tunnelled(ready, response_timeout=SOON, hang_up=True) as (_, chatgpt):
        chat = chatgpt.new_chat()
        first = chat.request("call", sessionId=ready.session, calls=[gated.call])
        await lost(chat, first, gated)
        await all_seen(ready)
        gated.let_go()
        later = chat.request("call", calls=[{"name": "bash", "arguments": {"command": "echo later"}}])
        answer = await until_answered(chat, later)
    assert "later\n" in answer.texts
    assert [note["status"] for note in answer.notes("deferredResult")] == ["done"], answer.texts
    assert answer.texts.index("later\n") < answer.texts.index("through\n")
    assert gated.runs == 1


async def test_thirty_at_once_keep_their_answers_and_their_order(ready: Ready, tmp_path: Path) -> None:
    """B04: three chats, all their requests at the same time; each answer is its own, each chat's in order."""
    log = tmp_path / "log"
    ran: dict[int, list[tuple[int, str]]] = defaultdict(list)
    async with tunnelled(ready) as (tunnel, chatgpt), anyio.create_task_group() as tasks:
        chats = [chatgpt.new_chat() for _ in range(3)]

        async def ask(number: int) -> None:
            mine = number % len(chats)
            word = f"{mine}:{number}"
            call = {"name": "bash", "arguments": {"command": f"echo {word} >> {log}; echo {word}"}}
            answer = await chats[mine].call("call", sessionId=ready.session, calls=[call])
            assert f"{word}\n" in answer.texts, answer.texts
            ran[mine].append((answer.head["seq"], word))

        for number in range(ACTIVE + QUEUED):
            tasks.start_soon(ask, number)
    assert tunnel.statistics.most_active == ACTIVE
    assert tunnel.statistics.refused == tunnel.statistics.dropped == 0
    lines = log.read_text(encoding="utf-8").split()
    assert len(lines) == ACTIVE + QUEUED
    for mine in range(len(chats)):
        accepted = [word for _, word in sorted(ran[mine])]
        assert [line for line in lines if line.startswith(f"{mine}:")] == accepted
