"""Readers that wait for the same entries share one request to the agent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from chappie_broker.broker import Broker

from chappie_bridge.wire.errors import BridgeError, UnknownEntry
from chappie_bridge.wire.ids import EntryId, SessionId
from chappie_bridge.wire.messages import Failed, History, ReadHistory, RequestOpened, Withdraw
from chappie_bridge.wire.requests import FetchHistory, HistoryView
from chappie_bridge.wire.values import Entry, HistoryRange, ModelRequest
from tests.broker.rig import ScriptedAgent, broker, chat, settle_down

pytestmark = pytest.mark.anyio

ENTRY = Entry(id=EntryId("e2"), at="2026-01-01T00:00:00.000Z", kind="notice", content=())


class Room:
    def __init__(self, board: Broker, agent: ScriptedAgent) -> None:
        self.board, self.agent = board, agent

    async def reads(self, reader: str, wait: float = 30, after: str = "e1") -> HistoryView:
        span = HistoryRange(after=EntryId(after), wait=wait)
        return await self.board.history(FetchHistory(caller=chat(reader), session=SessionId("s"), range=span))

    async def starts(
        self, *readers: str, wait: float = 30, after: str = "e1"
    ) -> list["asyncio.Task[HistoryView]"]:
        tasks = [asyncio.create_task(self.reads(reader, wait, after)) for reader in readers]
        await settle_down()
        return tasks

    def asked(self) -> list[ReadHistory]:
        return [message for message in self.agent.got if isinstance(message, ReadHistory)]

    def withdrawn(self) -> list[int]:
        return [message.request for message in self.agent.got if isinstance(message, Withdraw)]

    def answers(self, number: int, *entries: Entry) -> None:
        self.agent.say(History(request=number, session=SessionId("s"), cwd="/work", entries=entries))


@asynccontextmanager
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        await settle_down()
        yield Room(board, agent)


async def test_all_that_wait_at_one_place_are_told_by_one_answer(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        tasks = await here.starts(*(f"chat {n}" for n in range(50)))
        (asked,) = here.asked()
        here.answers(asked.request, ENTRY)
        assert [(await task).page.entries for task in tasks] == [(ENTRY,)] * 50
        assert here.withdrawn() == []


async def test_another_place_is_another_request(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        first, second = await here.starts("a"), await here.starts("b", after="e0")
        old, new = here.asked()
        here.answers(new.request, ENTRY)
        assert (await second[0]).page.entries == (ENTRY,)
        assert not first[0].done()
        here.answers(old.request)
        assert (await first[0]).page.entries == ()


async def test_who_leaves_takes_nobody_along_and_the_last_withdraws(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        first, second = await here.starts("a", "b")
        first.cancel()
        await settle_down()
        assert here.withdrawn() == []
        second.cancel()
        await settle_down()
        assert here.withdrawn() == [here.asked()[0].request]
        assert len(here.board.dispatch.rpc) == 0


async def test_who_comes_after_the_answer_asks_anew(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        (first,) = await here.starts("a")
        here.answers(here.asked()[0].request, ENTRY)
        (second,) = [asyncio.create_task(here.reads("b"))]  # before `a` has run again
        await settle_down()
        assert (await first).page.entries == (ENTRY,)
        assert not second.done()
        assert len(here.asked()) == 2
        here.answers(here.asked()[1].request)
        assert (await second).page.entries == ()


async def test_who_waits_longer_asks_again_for_the_rest(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        (short,) = await here.starts("a", wait=1)
        (long,) = await here.starts("b", wait=30)
        here.answers(here.asked()[0].request)
        assert (await short).page.entries == ()
        await settle_down()
        again = here.asked()[1]
        assert 0 < again.range.wait <= 30
        here.answers(again.request, ENTRY)
        assert (await long).page.entries == (ENTRY,)


async def test_what_the_agent_refuses_is_told_to_each(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        tasks = await here.starts("a", "b")
        here.agent.say(Failed(request=here.asked()[0].request, failure=UnknownEntry("gone").failure()))
        for task in tasks:
            with pytest.raises(UnknownEntry):
                await task


async def test_a_model_request_ends_all_waits_early_and_empty(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        tasks = await here.starts("a", "b")
        request = ModelRequest(id="r1", kind="summary", instructions="", content=())
        here.agent.say(RequestOpened(session=SessionId("s"), request=request))
        views = [await task for task in tasks]
        assert [(view.page.entries, view.pending.requests) for view in views] == [((), 1)] * 2
        assert len(here.withdrawn()) == 1


async def test_an_agent_that_never_answers_is_given_up(tmp_path: Path) -> None:
    async with broker(tmp_path, ask_seconds=0.01) as board:
        agent = ScriptedAgent(board.dispatch)
        agent.register("s")
        await settle_down()
        here = Room(board, agent)
        with anyio.fail_after(10):
            for task in await here.starts("a", "b", wait=0.01):
                with pytest.raises(BridgeError, match="did not answer"):
                    await task
        assert len(here.withdrawn()) == 1
