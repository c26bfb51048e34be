"""What our extensions inside the programs ask: to be woken, and to say that they left."""

import json
from pathlib import Path

import anyio
import pytest
from chappie_agents.hosts.model.endpoint import Endpoint
from chappie_agents.hosts.model.extensions import Extensions
from chappie_agents.hosts.model.habits import Plain
from chappie_agents.hosts.model.knowledge import WAKE

from chappie_bridge.wire.messages import SessionEnded
from tests.agents.model.rig import KEY, Program, Stage, now_of, stage

pytestmark = pytest.mark.anyio

S = "0199-pi-session"


def _extended(on: Stage) -> Extensions:
    extensions = Extensions(on.house)
    on.endpoint = Endpoint(on.house, KEY, now=now_of(), extensions=extensions)
    on.house.make_habits = lambda info, program: Plain(program, extensions.wake)
    return extensions


async def test_an_idle_program_is_woken_by_words_that_are_not_the_persons(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as on:
        _extended(on)
        program = Program(on, S).says("hello")
        reply = program.asks()
        await on.link.until(lambda: on.link.registered())
        waiting = program.posts("/chappie/wait", {"session": S})
        await anyio.sleep(1)
        on.chat(S, "Done.")
        await reply.until_end()
        program.history.append(reply.message())
        batch = on.batch(S, ("say", {"text": "one"}))
        told = json.loads((await waiting.until_end()).body)
        assert told["text"] == WAKE
        again = await program.says(told["text"]).asks().until_end()
        assert again.call_ids == [batch.calls[0].id]
        assert on.link.typed() == ["hello"]


async def test_a_wait_ends_after_a_while_and_keeps_its_session(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        _extended(on)
        program = Program(on, S).says("hello")
        reply = program.asks()
        await on.link.until(lambda: on.link.registered())
        await anyio.sleep(1)
        on.chat(S, "Done.")
        await reply.until_end()
        for _ in range(60):
            waited = await program.posts("/chappie/wait", {"session": S}).until_end(30)
            assert json.loads(waited.body) == {"text": None}
        assert not on.link.all(SessionEnded)


async def test_a_program_that_selected_another_model_is_gone_at_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        _extended(on)
        program = Program(on, S).says("hello")
        reply = program.asks()
        await on.link.until(lambda: on.link.registered())
        await anyio.sleep(1)
        on.chat(S, "Done.")
        await reply.until_end()
        await program.posts("/chappie/left", {"session": S}).until_end()
        assert (await on.link.one(SessionEnded)).session == S


async def test_what_no_extension_asks_is_refused(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        _extended(on)
        for path, body in (("/chappie/wait", {}), ("/chappie/rule", {"session": S}), ("/chappie/left", [])):
            assert (await Program(on, S).posts(path, body).until_end()).status == 400
