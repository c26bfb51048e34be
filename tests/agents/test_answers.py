"""What a broker asks of a session: its description, its transcript, old outcomes, bytes."""

import asyncio
from pathlib import Path

import pytest
from chappie_agents.answers import Surroundings

from chappie_bridge.wire.ids import EntryId, OperationId
from chappie_bridge.wire.link import CHUNK_BYTES
from chappie_bridge.wire.messages import (
    CallResult,
    Describe,
    Description,
    Done,
    Failed,
    Finished,
    History,
    Pull,
    Pulled,
    Recall,
    Settled,
    Withdraw,
)
from chappie_bridge.wire.values import Skill
from tests.agents.stage import SESSION, FakeLink, Gate, batch, call, chat, history, read, stage, texts

pytestmark = pytest.mark.anyio


async def test_the_description_lists_tools_skills_and_unknown_names(tmp_path: Path) -> None:
    around = Surroundings((Skill(name="s", description="d"),), "/home/AGENTS.md")
    async with stage(tmp_path, Gate().tools(), surroundings=lambda: around) as on:
        link = await on.link()
        on.host.received(link, Describe(request=1, session=SESSION))
        whole = await link.reply(Description, 1)
        assert [each.name for each in whole.tools] == ["wait", "meet", "say"]
        assert (whole.skills, whole.global_agents) == around
        on.host.received(link, Describe(request=2, session=SESSION, names=("say", "shout", "wait")))
        part = await link.reply(Description, 2)
        assert [each.name for each in part.tools] == ["wait", "say"]
        assert part.unknown == ("shout",)


async def test_a_reader_that_waits_is_answered_when_an_entry_comes(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        on.host.received(link, chat("first"))
        newest = (await read(on, link)).entries[-1].id
        waiting = [history(after=newest, wait=30) for _ in range(3)]
        for message in waiting:
            on.host.received(link, message)
        assert on.transcript.waiting == 3
        on.host.received(link, Withdraw(request=waiting[1].request))
        assert on.transcript.waiting == 2
        on.host.received(link, chat("second"))
        for message in (waiting[0], waiting[2]):
            page = await link.reply(History, message.request)
            assert [texts(each.content) for each in page.entries] == ["second"]
        assert not [each for each in link.all(History) if each.request == waiting[1].request]


async def test_readers_of_a_broker_that_is_gone_leave_nothing(tmp_path: Path) -> None:
    """B59 B60: a thousand waits dropped; the entry is there for whoever reads next."""
    async with stage(tmp_path, ()) as on:
        first = await on.link()
        on.host.received(first, chat("first"))
        newest = (await read(on, first)).entries[-1].id
        before = len(asyncio.all_tasks())
        for _ in range(1000):
            on.host.received(first, history(after=newest, wait=30))
        assert on.transcript.waiting == 1000
        on.host.link_gone(first)
        assert (on.transcript.waiting, len(asyncio.all_tasks())) == (0, before)
        on.host.received(FakeLink(), chat("second"))
        second = await on.link()
        page = await read(on, second, after=newest, wait=30)
        assert [texts(each.content) for each in page.entries] == ["second"]


async def test_history_answers_with_errors_in_their_place(tmp_path: Path) -> None:
    async with stage(tmp_path, ()) as on:
        link = await on.link()
        on.host.received(link, chat("only"))
        message = history(after=EntryId("nobody"))
        on.host.received(link, message)
        failure = (await link.reply(Failed, message.request)).failure
        newest = (await read(on, link)).entries[0].id
        assert (failure.code, failure.data) == ("unknown_entry", {"newest": newest})


async def test_an_outcome_is_recalled_from_the_journal(tmp_path: Path) -> None:
    gate = Gate()
    async with stage(tmp_path, gate.tools()) as on:
        link = await on.link()
        message, running = batch(call("say", text="x")), batch(call("wait"))
        on.host.received(link, message)
        finished = await link.finished(message.operation)
        on.host.received(link, running)
        on.host.received(link, Settled(session=SESSION, operations=(message.operation,)))
        del link.sent[:]
        on.host.received(link, Recall(request=1, session=SESSION, operation=message.operation))
        await link.reply(Done, 1)
        assert [type(each) for each in link.sent] == [CallResult, Finished, Done]
        assert link.all(Finished) == [finished]
        for number, unknown in ((2, OperationId("op_nobody")), (3, running.operation)):
            on.host.received(link, Recall(request=number, session=SESSION, operation=unknown))
            assert (await link.reply(Failed, number)).failure.code == "unknown_operation"


async def test_bytes_of_a_spilled_block_are_pulled_in_chunks(tmp_path: Path) -> None:
    data = bytes(range(256)) * 2000
    async with stage(tmp_path, ()) as on:
        link = await on.link()
        path = on.directory / "spool" / ("0" * 32 + ".bin")
        path.write_bytes(data)
        ask = Pull(request=1, session=SESSION, stream=9, source=f"spill:{path}", offset=1000, length=300_000)
        on.host.received(link, ask)
        pulled = await link.reply(Pulled, 1)
        assert (pulled.stream, pulled.end, pulled.size) == (9, 301_000, len(data))
        assert b"".join(chunk for _, _, chunk in link.chunks) == data[1000:301_000]
        assert all(len(chunk) <= CHUNK_BYTES for _, _, chunk in link.chunks)
        offsets = [offset for _, offset, _ in link.chunks]
        assert offsets[0] == 1000
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("source", ["spill:/etc/passwd", "spill:", "file:/etc/passwd", "spill:../index.db"])
async def test_nothing_but_spilled_blocks_is_pulled(tmp_path: Path, source: str) -> None:
    async with stage(tmp_path, ()) as on:
        link = await on.link()
        on.host.received(link, Pull(request=1, session=SESSION, stream=9, source=source, offset=0, length=10))
        assert (await link.reply(Failed, 1)).failure.code in ("path_missing", "unsupported")
        assert link.chunks == []
