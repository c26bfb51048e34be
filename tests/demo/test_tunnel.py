"""The scripted tunnel and ChatGPT against a server of a few lines: they must be what they are said to be."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

from chappie_bridge.demo.http import Request, Response, post, serve
from tests.peer.chatgpt import ChatGPT, LostAnswer, Refused
from tests.peer.tunnel import ACTIVE, QUEUED, REQUEST_ID, Tunnel

pytestmark = pytest.mark.anyio

SECRET = {"X-Chappie-Key": "a secret"}


class Server:
    """Answers every tool call with its arguments as text, once `gate` is open."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.gate = anyio.Event()
        self.gate.set()
        self.left = 0
        self._changed = anyio.Event()

    async def until_reached(self, count: int) -> None:
        with anyio.fail_after(10):
            while len(self.requests) < count:
                await self._changed.wait()

    async def answer(self, request: Request) -> Response:
        self.requests.append(request)
        self._changed.set()
        self._changed = anyio.Event()
        message = json.loads(request.body)
        if "id" not in message:
            return Response(202, {}, b"")
        await self.gate.wait()
        result: dict[str, Any] = {}
        if message["method"] == "tools/call":
            text = json.dumps(message["params"]["arguments"])
            link = {"type": "resource_link", "name": "a", "uri": "chappie://a"}
            result = {"content": [{"type": "text", "text": text}, link]}
        elif message["method"] == "tools/list":
            result = {"tools": [{"name": "echo"}]}
        elif message["method"] == "resources/read":
            result = {"contents": [{"uri": message["params"]["uri"], "text": "inside"}]}
        elif message["method"] != "initialize":
            error = {"code": -32601, "message": "Method not found"}
            return self._json({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return self._json({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _json(self, message: Any) -> Response:
        headers = {"content-type": "application/json", "x-private": "1", "mcp-session-id": "s"}
        return Response(200, headers, json.dumps(message).encode())

    def metas(self) -> list[dict[str, Any]]:
        return [json.loads(request.body)["params"]["_meta"] for request in self.requests]


@asynccontextmanager
async def through_a_tunnel(server: Server, **options: Any) -> AsyncGenerator[tuple[Tunnel, ChatGPT]]:
    async with serve(server.answer) as port:
        tunnel = Tunnel(f"http://127.0.0.1:{port}/mcp", SECRET, **options)
        async with tunnel.open() as url:
            yield tunnel, ChatGPT(url)


async def test_a_request_keeps_its_meta_and_loses_its_headers() -> None:
    server = Server()
    async with through_a_tunnel(server) as (_, chatgpt):
        chat = chatgpt.new_chat()
        answer = await chat.call("echo", text="a")
    assert answer.head == {"text": "a"}
    (meta,) = server.metas()
    assert meta["openai/session"] == chat.session
    assert meta["openai/subject"].startswith("v1/")
    assert REQUEST_ID in meta
    headers = server.requests[0].headers
    assert headers["x-chappie-key"] == "a secret"
    assert not {"user-agent", "mcp-protocol-version", "x-request-id"} & set(headers)


async def test_a_response_keeps_only_the_headers_of_the_list() -> None:
    server = Server()
    async with through_a_tunnel(server) as (tunnel, _), tunnel.open() as url:
        response = await post(url, {}, b'{"jsonrpc":"2.0","id":0,"method":"initialize"}')
    assert response.headers["mcp-session-id"] == "s"
    assert "x-private" not in response.headers


async def test_the_tunnel_takes_nothing_but_posts() -> None:
    async with through_a_tunnel(Server()) as (tunnel, _), tunnel.open() as url:
        stream = await anyio.connect_tcp("127.0.0.1", urlsplit(url).port or 0)
        async with stream:
            await stream.send(b"GET /mcp HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 405")


async def test_both_clients_introduce_themselves_and_the_tools_are_read_once() -> None:
    server = Server()
    async with serve(server.answer) as port:
        tools = await ChatGPT(f"http://127.0.0.1:{port}/mcp").connect()
    assert tools == [{"name": "echo"}]
    methods = sorted(json.loads(request.body)["method"] for request in server.requests)
    assert methods == ["initialize"] * 2 + ["notifications/initialized"] * 2 + ["tools/list"]
    assert {request.headers["user-agent"] for request in server.requests} == {"openai-mcp/1.0.0 (ChatGPT)"}


async def test_a_resource_is_read_by_its_link_without_naming_the_conversation() -> None:
    server = Server()
    async with through_a_tunnel(server) as (_, chatgpt):
        answer = await chatgpt.new_chat().call("echo")
        (link,) = answer.links
        assert await chatgpt.read(link) == [{"uri": link, "text": "inside"}]
    assert "_meta" not in json.loads(server.requests[1].body)["params"]


async def test_a_protocol_error_is_not_taken_for_a_lost_answer() -> None:
    async with through_a_tunnel(Server()) as (_, chatgpt):
        with pytest.raises(Refused, match="Method not found"):
            await chatgpt.send(chatgpt.request("prompts/list", {}))


async def test_a_late_reply_is_dropped_and_the_server_does_not_hear_of_it() -> None:
    server = Server()
    server.gate = anyio.Event()
    async with through_a_tunnel(server, response_timeout=0.1) as (tunnel, chatgpt):
        chat = chatgpt.new_chat()
        request = chat.request("echo", text="a")
        with pytest.raises(LostAnswer, match=r"within 0\.1 s"):
            await chat.send(request)
        server.gate.set()
        assert (await chat.send(request)).head == {"text": "a"}
    assert tunnel.statistics.dropped == 1
    first, second = server.metas()
    assert first == second


async def test_a_lost_reply_and_a_redelivery_are_scripted() -> None:
    server = Server()
    async with through_a_tunnel(server) as (tunnel, chatgpt):
        chat = chatgpt.new_chat()
        tunnel.script("lose", "redeliver", "twice")
        with pytest.raises(LostAnswer):
            await chat.call("echo", n=1)
        assert (await chat.call("echo", n=2)).head == {"n": 2}
        assert (await chat.call("echo", n=3)).head == {"n": 3}
        assert (await chat.call("echo", n=4)).head == {"n": 4}
    assert [json.loads(request.body)["params"]["arguments"]["n"] for request in server.requests] == [
        1, 2, 2, 3, 3, 4,
    ]  # fmt: skip
    assert tunnel.statistics.delivered == 6
    metas = server.metas()
    assert metas[1] == metas[2]
    assert metas[3] == metas[4]


async def test_ten_run_twenty_wait_and_more_are_refused() -> None:
    server = Server()
    server.gate = anyio.Event()
    answers: list[int] = []
    refusals: list[LostAnswer] = []
    refused = anyio.Event()
    async with through_a_tunnel(server) as (tunnel, chatgpt), anyio.create_task_group() as tasks:
        chat = chatgpt.new_chat()

        async def ask(number: int) -> None:
            try:
                answers.append((await chat.call("echo", n=number)).head["n"])
            except LostAnswer as error:
                refusals.append(error)
                refused.set()

        for number in range(ACTIVE + QUEUED + 1):
            tasks.start_soon(ask, number)
        await server.until_reached(ACTIVE)
        await refused.wait()
        assert len(server.requests) == ACTIVE
        server.gate.set()
    assert len(set(answers)) == ACTIVE + QUEUED
    assert [str(error) for error in refusals] == ["10 commands run and 20 wait already."]
    assert tunnel.statistics.most_active == ACTIVE
    assert tunnel.statistics.refused == 1


async def test_a_command_that_waited_too_long_never_reaches_the_server() -> None:
    server = Server()
    server.gate = anyio.Event()
    async with through_a_tunnel(server, response_timeout=0.2) as (_, chatgpt):
        chat = chatgpt.new_chat()

        async def ask(number: int) -> None:
            with pytest.raises(LostAnswer):
                await chat.call("echo", n=number)

        async with anyio.create_task_group() as tasks:
            for number in range(ACTIVE + 1):
                tasks.start_soon(ask, number)
        server.gate.set()
        with anyio.fail_after(10):
            while True:  # a busy machine may need longer than the tunnel allows
                with suppress(LostAnswer):
                    await chat.call("echo", n=-1)
                    break
    numbers = {json.loads(request.body)["params"]["arguments"]["n"] for request in server.requests}
    assert len(numbers - {-1}) == ACTIVE
