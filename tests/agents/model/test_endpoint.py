"""The endpoint's front: who may come in, what it answers by itself, how it keeps a request alive."""

import gc
import json
import tracemalloc
from pathlib import Path

import anyio
import pytest
from chappie_agents.hosts.model import endpoint
from chappie_agents.hosts.model.knowledge import Settings

from chappie_bridge.wire.errors import Executed
from chappie_bridge.wire.messages import Asking, Register, RequestOpened, SessionChanged
from tests.agents.model.rig import KEY, Program, stage
from tests.codec.host_requests import host_requests

pytestmark = pytest.mark.anyio

S = "0199-session"


@pytest.mark.parametrize(
    ("headers", "word"),
    [
        ({"authorization": "Bearer wrong"}, "Authorization"),
        ({"authorization": ""}, "Authorization"),
        ({"host": "evil.example"}, "Host"),
        ({"host": "127.0.0.1.evil.example:24275"}, "Host"),
        ({"origin": "http://127.0.0.1:24275"}, "Web pages"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_who_has_no_business_here_is_refused_in_the_protocols_own_shape(
    tmp_path: Path, path: str, headers: dict[str, str], word: str
) -> None:
    async with stage(tmp_path) as on:
        reply = await Program(on, S).posts(path, {"messages": [], "input": []}, **headers).until_end()
        assert reply.status == 403
        error = json.loads(reply.body)["error"]
        assert word in error["message"]
        assert not on.link.registered()


async def test_the_key_may_come_as_x_api_key(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        headers = {"authorization": "", "x-api-key": KEY}
        reply = await Program(on, S).posts("/v1/models", {}, "GET", **headers).until_end()
        assert json.loads(reply.body)["data"][0]["id"] == "chappie"


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"messages": 3}', b"[" * 100_000])
async def test_a_body_that_cannot_be_read_is_refused(tmp_path: Path, body: bytes) -> None:
    async with stage(tmp_path) as on:
        reply = await Program(on, S).posts("/v1/chat/completions", body).until_end()
        assert reply.status == 400
        assert json.loads(reply.body)["error"]["type"] == "invalid_request_error"


async def test_a_body_beyond_the_bound_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "BODY_MAX", 1000)
    async with stage(tmp_path) as on:
        reply = await Program(on, S).posts("/v1/chat/completions", b" " * 1001).until_end()
        assert reply.status == 413
        told = {"content-length": "1001"}
        reply = await Program(on, S).posts("/v1/chat/completions", b"{}", **told).until_end()
        assert reply.status == 413


async def test_a_lone_surrogate_does_no_harm(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S).says("broken \ud83d here")
        reply = program.asks()
        await on.link.until(lambda: on.link.typed() == ["broken \ufffd here"])
        assert not reply.ended


async def test_the_small_routes_answer(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S)
        assert (await program.posts("/api/hello", {}, "HEAD").until_end()).status == 200
        counted = await program.posts("/v1/messages/count_tokens", {"messages": []}).until_end()
        assert json.loads(counted.body)["input_tokens"] > 0
        assert (await program.posts("/nowhere", {}).until_end()).status == 400


async def test_a_held_request_begins_at_once_and_has_a_real_event_every_ten_seconds(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        reply = await Program(on, S).says("hello").asks().begun()
        assert reply.status == 200
        await anyio.sleep(35)
        assert len(reply.parts) == 1 + 3
        assert all(part.startswith(b"data: {") for part in reply.parts)


async def test_how_often_a_program_hears_that_it_is_heard_is_its_owners_choice(tmp_path: Path) -> None:
    async with stage(tmp_path, Settings(keep_alive=3)) as on:
        reply = await Program(on, S).says("hello").asks().begun()
        await anyio.sleep(10)
        assert len(reply.parts) == 1 + 3


async def test_an_hour_of_holding_costs_little_and_grows_nothing(tmp_path: Path) -> None:
    """At most 60 KiB for one hold, whatever the program's history is, and 100 KiB with its session."""
    async with stage(tmp_path) as on:
        programs = [Program(on, f"s-{number}") for number in range(8)]
        for program in programs:
            program.history += [{"role": "assistant", "content": "x" * 500_000}]
            program.says("hello")
        first = await Program(on, "warm-up").says("hello").asks().begun()
        await anyio.sleep(100)
        first.leave()
        tracemalloc.start()
        try:
            fresh = _traced()
            for program in programs:
                reply = await program.asks().begun()
                on.chat(program.session or "", "Done.")
                await reply.until_end()
                program.history.append(reply.message())
                program.says("more")
            await anyio.sleep(100)
            idle = _traced()
            replies = [await program.asks().begun() for program in programs]
            await anyio.sleep(20)
            begun = _traced()
            await anyio.sleep(3600)
            for reply in replies:
                assert len(reply.parts) >= 360
                reply.parts.clear()
                reply.body = b""
            held = _traced()
        finally:
            tracemalloc.stop()
        assert (held - idle) / 8 <= 60 * 1024
        assert (held - fresh) / 8 <= 100 * 1024
        assert (held - begun) / 8 <= 4 * 1024


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def test_titles_are_answered_here_and_name_the_session(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        program = Program(on, S, **{"user-agent": "opencode/1.18.33", "x-session-id": S, "session_id": ""})
        program.says("Mend the parser, please").asks()
        await on.link.until(lambda: on.link.registered())
        system = {"role": "system", "content": "You are a title generator. You output ONLY a title."}
        body = {"stream": True, "messages": [system, *program.history]}
        title = await program.posts("/v1/chat/completions", body).until_end()
        assert title.message()["content"] == "Mend the parser, please"
        await on.link.until(lambda: on.link.all(SessionChanged))
        assert on.link.all(SessionChanged)[-1].session.name == "Mend the parser, please"


async def test_a_title_is_chatgpts_work_where_the_owner_wants_that(tmp_path: Path) -> None:
    async with stage(tmp_path, Settings(titles=True)) as on:
        program = Program(on, S, **{"user-agent": "opencode/1.18.33", "x-session-id": S, "session_id": ""})
        program.says("Mend the parser, please").asks()
        await on.link.until(lambda: on.link.registered())
        system = {"role": "system", "content": "You are a title generator. You output ONLY a title."}
        title = program.posts(
            "/v1/chat/completions", {"stream": True, "messages": [system, *program.history]}
        )
        opened = await on.link.one(RequestOpened)
        assert opened.request.kind == "title"
        on.chat(S, "A better title", reply_to=opened.request.id)
        assert (await title.until_end()).message()["content"] == "A better title"


async def test_a_security_classifier_is_never_answered_with_permission(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        seen = 0
        for request in host_requests().values():
            body = request.body
            if isinstance(body, dict) and "security monitor" in json.dumps(body.get("system", "")):
                headers = {**request.headers, "host": "127.0.0.1", "authorization": f"Bearer {KEY}"}
                reply = await Program(on, S).posts(request.path, body, **headers).until_end()
                assert b"<block>yes" in reply.body
                seen += 1
        assert seen
        assert not on.link.registered()


async def test_a_sub_agent_is_a_session_under_its_parent_and_its_parents_call_says_so(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        parent = Program(on, None, **{"user-agent": "claude-cli/2.1.332", "x-claude-code-session-id": S})
        reply = parent.says("hello").asks()
        await on.link.until(lambda: on.link.registered() == [S])
        await anyio.sleep(1)
        batch = on.batch(S, ("say", {"text": "spawn"}))
        await reply.until_end()
        child = Program(on, None, **{**parent.headers, "x-claude-code-agent-id": "a1"})
        work = child.says("look around").asks()
        asking = await on.link.one(Asking)
        assert asking.operation == batch.operation
        assert [(need.kind, need.session) for need in asking.needs] == [("subagent", f"{S}/a1")]
        registered = on.house.sessions[f"{S}/a1"].info
        assert (registered.parent, registered.agent) == (S, "claude")
        on.chat(f"{S}/a1", "Found it.")
        await work.until_end()
        await on.link.until(lambda: not on.link.all(Asking)[-1].needs)
        parent.ran(reply, "Found it.")
        parent.asks()
        finished = await on.link.finished(batch.operation)
        assert (finished.status, finished.executed) == ("done", Executed.YES)


async def test_tools_that_start_sub_agents_are_hidden_unless_they_are_wanted(tmp_path: Path) -> None:
    for subagents in (False, True):
        async with stage(tmp_path / str(subagents), Settings(subagents=subagents)) as on:
            headers = {"user-agent": "opencode/1.18.33", "x-session-id": S, "session_id": ""}
            program = Program(on, S, **headers).says("hello")
            task = {"type": "function", "function": {"name": "task", "description": "", "parameters": {}}}
            program.tools = [*program.tools, task]
            program.asks()
            await on.link.one(Register)
            await anyio.sleep(1)
            names = {tool.name for tool in on.house.sessions[S].tools}
            assert ("task" in names) is subagents


@pytest.mark.parametrize("name", sorted(host_requests()))
async def test_every_recorded_request_is_answered_held_or_refused_in_its_own_shape(
    tmp_path: Path, name: str
) -> None:
    request = host_requests()[name]
    async with stage(tmp_path) as on:
        headers = {**request.headers, "host": "127.0.0.1", "authorization": f"Bearer {KEY}"}
        headers.pop("content-length", None)
        reply = Program(on, None).posts(request.path, request.body, request.method, **headers)
        await reply.begun()
        assert reply.status == 200
        if not reply.ended:
            assert len(on.link.registered()) == 1
