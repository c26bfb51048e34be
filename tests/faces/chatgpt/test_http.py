"""The HTTP entry as a client meets it: real servers, real sockets."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import anyio.lowlevel
import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from prometheus_client.parser import text_string_to_metric_families

from chappie_bridge.faces.chatgpt import answers, gate
from chappie_bridge.faces.chatgpt.admission import Credential
from chappie_bridge.faces.chatgpt.server import INSTRUCTIONS, build
from chappie_bridge.faces.chatgpt.tools import TOOLS
from chappie_bridge.wire.blocks import Image, Text
from chappie_bridge.wire.errors import NoFreeSession, SessionOffline
from chappie_bridge.wire.ids import ReceiptId
from chappie_bridge.wire.owner import Measure, Measures, Sample
from chappie_bridge.wire.requests import Chat, OperationView, Submit
from chappie_bridge.wire.values import Companions, ToolResult
from tests.faces.chatgpt.scripted import (
    NOOP,
    SECRET,
    Json,
    Scripted,
    called,
    client,
    error,
    lines,
    request,
    result,
    served,
    settings,
    view,
)
from tests.peer.switchboard import ScriptedSwitchboard

pytestmark = pytest.mark.anyio

MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@asynccontextmanager
async def bridge(
    board: Scripted, http: Literal["h11", "httptools"] = "httptools", **more: Any
) -> AsyncGenerator[httpx2.AsyncClient]:
    async with served(build(board, settings(**more)), http) as url, client(url) as session:
        yield session


def modern(method: str, params: Json | None = None) -> tuple[Json, dict[str, str]]:
    """A request of the era of single requests, and its headers."""
    params = {**(params or {}), "_meta": {**MODERN, **(params or {}).get("_meta", {})}}
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
    if "name" in params:
        headers["Mcp-Name"] = params["name"]
    return {"jsonrpc": "2.0", "id": "a", "method": method, "params": params}, headers


# --- both eras ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28", "auto"])
async def test_the_sdks_own_client_lists_and_calls(mode: Any) -> None:
    """B11: in the handshake era it also probes with GET and takes the 405."""
    board = Scripted()
    async with (
        served(build(board, settings())) as url,
        client(url) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as session,
    ):
        listed = await session.list_tools()
        found = await session.call_tool("call", NOOP, meta={"openai/session": "v1/a"})
    assert [tool.name for tool in listed.tools] == list(TOOLS)
    structured = [tool.name for tool in listed.tools if tool.output_schema is not None]
    assert structured == ["ask", "ask_assert", "answer"]
    assert not found.is_error
    assert found.structured_content is None
    (asked,) = board.asked
    assert isinstance(asked, Submit)
    assert (asked.caller.source, asked.caller.value) == ("openai", "v1/a")


async def test_discovery_handshake_and_results_tell_the_same_story() -> None:
    """B10: app creation fails when they differ."""
    async with bridge(Scripted()) as http:
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "c", "version": "1"},
        }
        opening = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
        shaken = (await http.post("/mcp", json=opening)).json()["result"]
        body, headers = modern("server/discover")
        found = (await http.post("/mcp", json=body, headers=headers)).json()["result"]
        body, headers = modern("tools/list")
        listed = (await http.post("/mcp", json=body, headers=headers)).json()["result"]
    assert shaken["protocolVersion"] == "2025-06-18"
    assert found["supportedVersions"] == ["2026-07-28"]
    assert (
        shaken["capabilities"]
        == found["capabilities"]
        == {
            "tools": {"listChanged": False},
            "resources": {"listChanged": False, "subscribe": False},
        }
    )
    assert shaken["instructions"] == found["instructions"] == INSTRUCTIONS
    stamp = "io.modelcontextprotocol/serverInfo"
    assert shaken["serverInfo"] == found["_meta"][stamp] == listed["_meta"][stamp]
    assert shaken["serverInfo"]["version"] == "9.8"


async def test_a_call_needs_no_initialize_and_no_session() -> None:
    """B08 B06: a respawned tunnel sends the call straight away; a stale session id means nothing here."""
    board = Scripted()
    async with bridge(board) as http:
        for stale in ({}, {"Mcp-Session-Id": "from-before-the-restart"}):
            answer = await http.post("/mcp", json=request("call", NOOP), headers=stale)
            assert answer.status_code == 200
            assert answer.json()["result"]["isError"] is False
            assert "mcp-session-id" not in answer.headers
    assert len(board.asked) == 2


async def test_the_handle_finds_the_work_whatever_the_transport_session_is() -> None:
    """B06 S08: identity is the handle and the principal; the broker judges both."""
    board = Scripted()
    async with bridge(board) as http:
        for transport in ("A", "B"):
            await http.post(
                "/mcp",
                json=request("call", {"operation": "op_1"}, openai__session="v1/a"),
                headers={"Mcp-Session-Id": transport},
            )
    first, second = board.asked
    assert isinstance(first, Submit)
    assert isinstance(second, Submit)
    assert (first.operation, first.caller) == (second.operation, second.caller)


async def test_one_handle_of_two_principals_is_two_requests_to_the_broker() -> None:
    """S08: it can answer the stranger as if the handle did not exist."""
    board = Scripted()
    both = (Credential("one", "first"), Credential("two", "second"))
    async with served(build(board, settings(credentials=both))) as url:
        for key in ("first", "second"):
            async with client(url, {"X-Chappie-Key": key}) as http:
                await called(http, "call", {"operation": "op_1"}, openai__session="v1/a")
    assert [asked.caller.principal for asked in board.asked] == ["one", "two"]


async def test_a_modern_request_with_blanks_around_its_headers_is_served() -> None:
    body, headers = modern("tools/call", {"name": "call", "arguments": NOOP})
    async with served(build(Scripted(), settings())) as url:
        answer = await raw(url, body, {**headers, "Mcp-Name": "   call  ", "X-Chappie-Key": f" {SECRET} "})
    assert answer[0] == 200


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"Mcp-Method": "tools/list"}, -32020),
        ({"Mcp-Name": "chat"}, -32020),
        ({"MCP-Protocol-Version": "2031-01-01"}, -32020),
    ],
)
async def test_a_modern_request_that_contradicts_itself_is_refused(change: dict[str, str], code: int) -> None:
    body, headers = modern("tools/call", {"name": "call", "arguments": NOOP})
    board = Scripted()
    async with bridge(board) as http:
        answer = await http.post("/mcp", json=body, headers={**headers, **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == code
    assert answer.json()["id"] == "a"
    assert board.asked == []


# --- whose answer it is -------------------------------------------------------------------------


async def test_equal_ids_in_flight_never_cross() -> None:
    """B04 B05 S07: fifty calls of two principals, all with the same JSON-RPC id, answered in reverse."""
    board = Scripted()
    waiting: list[anyio.Event] = []

    async def late(asked: Submit) -> OperationView:
        assert asked.calls is not None
        mine = anyio.Event()
        waiting.append(mine)
        if len(waiting) == 50:
            for each in reversed(waiting):
                each.set()
        await mine.wait()
        said = f"{asked.caller.principal} {asked.caller.value} {asked.calls[0].name}"
        receipt = Companions(receipt=ReceiptId(f"r_{asked.calls[0].name}"))
        return view(results=(result((Text(text=said),)),), companions=receipt)

    board.on["call"] = late
    both = (Credential("one", "first"), Credential("two", "second"))

    async def ask(url: str, number: int) -> None:
        key, principal = (("first", "one"), ("second", "two"))[number % 2]
        arguments = {"calls": [{"name": f"t{number}", "arguments": {}}]}
        async with client(url, {"X-Chappie-Key": key}) as http:
            found = await called(http, "call", arguments, openai__session=f"v1/{number}")
        assert found["content"][-1]["text"] == f"{principal} v1/{number} t{number}"

    async with served(build(board, settings(credentials=both))) as url, anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(ask, url, number)
    assert {receipt: [True] for receipt in board.receipts} == board.receipts
    assert len(board.receipts) == 50


async def test_two_thousand_calls_with_one_id_never_cross() -> None:
    """S07: fifty connections that stay open, each with its own credential's answers."""
    board = Scripted()

    async def echo(asked: Submit) -> OperationView:
        assert asked.calls is not None
        await anyio.lowlevel.checkpoint()
        return view(results=(result((Text(text=f"{asked.caller.principal} {asked.calls[0].name}"),)),))

    board.on["call"] = echo
    both = (Credential("one", "first"), Credential("two", "second"))

    async def ask(url: str, number: int) -> None:
        key, principal = (("first", "one"), ("second", "two"))[number % 2]
        reader, writer = await connection(url)
        for turn in range(40):
            name = f"t{number}_{turn}"
            content = json.dumps(request("call", {"calls": [{"name": name, "arguments": {}}]})).encode()
            writer.write(
                f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Chappie-Key: {key}\r\nContent-Type:"
                f" application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
                + content
            )
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            found = json.loads(await reader.readexactly(size))["result"]["content"][-1]["text"]
            assert found == f"{principal} {name}"
        writer.close()

    async with served(build(board, settings(credentials=both))) as url, anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(ask, url, number)
    assert len(board.asked) == 2_000


async def test_two_conversations_in_one_request_are_refused() -> None:
    board = Scripted()
    async with bridge(board) as http:
        body = request("call", NOOP, openai__session="v1/a")
        answer = await http.post("/mcp", json=body, headers={"X-OpenAI-Session": "v1/b"})
    assert error(answer.json()["result"])["code"] == "bad_arguments"
    assert board.asked == []


@pytest.mark.parametrize(
    ("headers", "source", "value"),
    [
        ({"X-OpenAI-Session": "v1/h"}, "openai", "v1/h"),
        ({"X-Chappie-Conversation": "mine"}, "header", "mine"),
        ({}, "none", ""),
    ],
)
async def test_headers_name_the_conversation_where_the_request_does_not(
    headers: dict[str, str], source: str, value: str
) -> None:
    board = Scripted()
    async with bridge(board) as http:
        await http.post("/mcp", json=request("chat", {"text": "hi"}), headers=headers)
    (asked,) = board.asked
    assert isinstance(asked, Chat)
    assert (asked.caller.source, asked.caller.value) == (source, value)


async def test_the_tunnels_request_id_reaches_the_broker() -> None:
    board = Scripted()
    async with bridge(board) as http:
        await called(http, "call", NOOP, otunnel__requestId="wfr_1")
    (asked,) = board.asked
    assert isinstance(asked, Submit)
    assert asked.tunnel_request == "wfr_1"


# --- errors -------------------------------------------------------------------------------------


async def test_an_unknown_tool_is_told_what_to_refresh() -> None:
    """B21: ChatGPT calls what its frozen list holds, months later."""
    async with bridge(Scripted()) as http:
        said = error(await called(http, "rea\x1bd_file"))
    assert said["code"] == "unsupported"
    assert "\x1b" not in said["message"]
    assert all(f"`{name}`" in said["message"] for name in TOOLS)
    assert "refresh the connector" in said["hint"]


async def test_an_argument_of_an_older_or_a_misspelt_set_is_named() -> None:
    """B21: a misspelt target must never fall back to a default."""
    board = Scripted()
    async with bridge(board) as http:
        said = error(await called(http, "call", {**NOOP, "sesionId": "s_1"}))
    assert said["code"] == "bad_arguments"
    assert "`sesionId`" in said["message"]
    assert "`sessionId`" in said["message"]
    assert said["executed"] == "no"
    assert board.asked == []


@pytest.mark.parametrize(
    ("tool", "arguments", "word"),
    [
        ("call", {}, "exactly one"),
        ("call", {**NOOP, "operation": "op_1"}, "exactly one"),
        ("call", {**NOOP, "cancel": True}, "operation"),
        ("call", {"operation": "op_1", "key": "k"}, "key"),
        ("call", {"calls": []}, "1 to 64"),
        ("call", {"calls": [{"name": "x"}]}, "calls[0].arguments"),
        ("call", {**NOOP, "wait": "10"}, "wait"),
        ("call", {**NOOP, "wait": 51}, "wait"),
        ("chat", {"text": ""}, "text"),
        ("history", {"limit": 201}, "limit"),
        ("history", {"limit": True}, "limit"),
        ("history", {"offset": 5}, "entry"),
        ("init", {"create": True}, "directory"),
        ("sessions", {"sessionId": ""}, "sessionId"),
    ],
)
async def test_arguments_that_do_not_fit_never_reach_the_broker(
    tool: str, arguments: Json, word: str
) -> None:
    board = Scripted()
    async with bridge(board) as http:
        said = error(await called(http, tool, arguments))
    assert said["code"] == "bad_arguments"
    assert word in said["message"]
    assert board.asked == []


async def test_bad_base64_says_where() -> None:
    async with bridge(Scripted()) as http:
        said = error(await called(http, "call", {"base64": "W3s*"}))
    assert said["code"] == "bad_base64"
    assert (said["position"], said["of"]) == (3, "base64")


async def test_a_number_that_json_cannot_write_back_is_refused() -> None:
    body = json.dumps(request("call", {"calls": [{"name": "n", "arguments": {"a": 7.5}}]})).replace(
        "7.5", "1e999"
    )
    async with bridge(Scripted()) as http:
        answer = await http.post("/mcp", content=body, headers={"Content-Type": "application/json"})
    said = error(answer.json()["result"])
    assert (said["code"], "calls[0].arguments" in said["message"]) == ("bad_arguments", True)


async def test_an_error_of_the_broker_arrives_whole() -> None:
    board = Scripted()

    async def busy(_: Any) -> Any:
        raise NoFreeSession(data={"sessions": [{"id": "s_1", "name": "\u202eevil\x1b"}], "code": "mine"})

    board.on["init"] = busy
    async with bridge(board) as http:
        said = error(await called(http, "init"))
    assert said["code"] == "no_free_session"
    assert said["retryable"] is False
    assert said["executed"] == "no"
    assert said["sessions"] == [{"id": "s_1", "name": "\\u202eevil\\x1b"}]


async def test_a_bug_shows_an_id_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    board = Scripted()

    async def broken(_: Any) -> Any:
        raise RuntimeError("inner secret")

    board.on["call"] = broken
    with caplog.at_level(logging.ERROR):
        async with bridge(board) as http:
            answer = await http.post("/mcp", json=request("call", NOOP))
    said = error(answer.json()["result"])
    assert said["code"] == "internal"
    assert "secret" not in answer.text
    (logged,) = [record for record in caplog.records if "err_" in record.getMessage()]
    assert logged.getMessage().split(":")[0] in said["message"]
    assert "inner secret" in caplog.text


async def test_an_answer_that_cannot_be_written_is_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    """B63: what it was to tell is told again."""
    board = Scripted()

    async def halves(_: Any) -> Any:
        bad = result().model_copy(update={"content": (Text.model_construct(type="text", text="\ud83d"),)})
        return view(results=()).model_copy(update={"results": (bad,)})

    board.on["call"] = halves
    async with bridge(board) as http:
        answer = await http.post("/mcp", json=request("call", NOOP))
        assert answer.status_code == 200
        assert await board.until_told("r_1") is False
        assert (await called(http, "sessions"))["isError"] is False
    assert "err_" in answer.text
    assert "err_" in caplog.text


async def test_lone_surrogates_are_replaced_and_noted() -> None:
    """B63: alone U+FFFD; a legal pair stays the one character."""
    board = Scripted()
    body = json.dumps(request("call", {"calls": [{"name": "w", "arguments": {"a": "\ud83d!", "b": "😀"}}]}))
    assert "\\ud83d!" in body
    async with bridge(board) as http:
        answer = await http.post("/mcp", content=body.encode(), headers={"Content-Type": "application/json"})
    (asked,) = board.asked
    assert isinstance(asked, Submit)
    assert asked.calls is not None
    assert asked.calls[0].arguments == {"a": "\ufffd!", "b": "😀"}
    assert lines(answer.json()["result"])[0]["replaced"] == 1


async def test_surrogates_inside_base64_are_noted_too() -> None:
    board = Scripted()
    inner = b'[{"name":"w","arguments":{"a":"\\ud83d"}}]'
    async with bridge(board) as http:
        found = await called(http, "call", {"base64": base64.b64encode(inner).decode()})
    assert lines(found)[0]["replaced"] == 1


# --- the door -----------------------------------------------------------------------------------


async def test_get_is_answered_with_what_is_allowed() -> None:
    """B11: a probe that gets 404 makes app creation fail."""
    async with bridge(Scripted()) as http:
        for method in ("GET", "DELETE", "OPTIONS", "PUT", "HEAD"):
            answer = await http.request(method, "/mcp", headers={"Accept": "text/event-stream"})
            assert answer.status_code == 405
            assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_nothing_is_served_without_a_credential(method: str) -> None:
    board = Scripted()
    async with served(build(board, settings())) as url, client(url, {"X-Chappie-Key": "wrong"}) as http:
        answer = await http.request(method, "/mcp", json=request("call", NOOP))
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "Authorization: Bearer" in answer.json()["error"]["message"]
    assert answer.json()["error"]["data"]["code"] == "forbidden"
    assert "doctor" in answer.json()["error"]["data"]["hint"]
    assert SECRET not in answer.text
    assert board.asked == []


def test_a_server_is_open_only_when_it_says_so() -> None:
    with pytest.raises(ValueError, match="no credential"):
        build(Scripted(), settings(credentials=()))


async def test_an_open_server_serves_everybody() -> None:
    async with (
        served(build(Scripted(), settings(auth="none"))) as url,
        client(url, {"X-Chappie-Key": ""}) as http,
    ):
        assert (await called(http, "call", NOOP))["isError"] is False


@pytest.mark.parametrize(
    "path", ["/mcp", "/metrics", "/healthz", "/readyz", "/.well-known/oauth-protected-resource"]
)
@pytest.mark.parametrize(
    ("headers", "status", "setting"),
    [
        ({"Host": "evil.test"}, 421, "allowed_hosts"),
        ({"Host": ".".join("0000")}, 421, "allowed_hosts"),
        ({"Origin": "https://evil.test"}, 403, "allowed_origins"),
        ({"Origin": "null"}, 403, "allowed_origins"),
    ],
)
async def test_foreign_hosts_and_pages_are_refused_on_every_route(
    path: str, headers: dict[str, str], status: int, setting: str
) -> None:
    """B13 B14 S02 S03 S09: before the credential is looked at, and naming the setting."""
    board = Scripted()
    async with bridge(board) as http:
        answer = await http.post(path, json=request("call", NOOP), headers=headers)
    assert answer.status_code == status
    assert setting in answer.json()["error"]["data"]["hint"]
    assert board.asked == []


async def test_the_public_name_is_served() -> None:
    """B13: behind a tunnel or a proxy."""
    async with bridge(Scripted(), public_url="https://bridge.example") as http:
        headers = {"Host": "bridge.example", "Origin": "https://bridge.example"}
        answer = await http.post("/mcp", json=request("call", NOOP), headers=headers)
    assert answer.status_code == 200


async def test_a_page_may_not_open_a_websocket() -> None:
    """S09: none is spoken here, whatever the Origin."""
    async with served(build(Scripted(), settings())) as url:
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            "Origin": "https://evil.test",
        }
        status, _ = await raw(url, None, upgrade, method="GET")
    assert status == 403


@pytest.mark.parametrize(
    "path",
    [
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-authorization-server",
        "/.well-known/openid-configuration",
        "/",
        "/mcp/",
        "/register",
    ],
)
async def test_nothing_else_is_there(path: str) -> None:
    """B17: a well-known page that answers for the whole origin breaks connectors without OAuth."""
    async with bridge(Scripted()) as http:
        assert (await http.get(path)).status_code == 404


async def test_the_server_starts_and_stops_without_a_word() -> None:
    incoming = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[str] = []

    async def receive() -> Any:
        return next(incoming)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await build(Scripted(), settings())({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_health_is_told_without_a_credential_and_readiness_asks_the_broker() -> None:
    board = Scripted()

    async def down(_: Any) -> Any:
        raise SessionOffline

    async with served(build(board, settings())) as url, client(url, {"X-Chappie-Key": ""}) as http:
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 200
        board.on["status"] = down
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.post("/healthz")).status_code == 405


async def test_readiness_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "READY_SECONDS", 0.01)
    board = Scripted()

    async def stuck(_: Any) -> Any:
        await anyio.sleep_forever()

    board.on["status"] = stuck
    async with bridge(board) as http:
        assert (await http.get("/readyz")).status_code == 503


async def test_metrics_are_what_prometheus_reads_and_need_the_credential() -> None:
    """S02 S25: how busy somebody is, is told to nobody else; a label's values are ours."""
    office = ScriptedSwitchboard()
    hostile = Measure(
        name="chappie_x", kind="gauge", about="a\\b\nc", samples=(Sample(value=0.5, labels={"k": 'a"b\\\n'}),)
    )

    async def answer(_: Any) -> Measures:
        return Measures(measures=(hostile,))

    office._given = answer
    async with served(build(Scripted(), settings(), office)) as url, client(url) as http:
        await http.post("/mcp", json=request("call", NOOP))
        assert (await http.get("/metrics", headers={"X-Chappie-Key": "wrong"})).status_code == 401
        assert (await http.post("/metrics")).status_code == 405
        told = await http.get("/metrics")
    assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (each.name, *each.labels.values()): each.value
        for family in text_string_to_metric_families(told.text)
        for each in family.samples
    }
    assert samples["chappie_x", 'a"b\\\n'] == 0.5
    assert samples["chappie_http_requests_total",] == 1
    assert samples["chappie_http_refused_total", "credential"] == 1


async def test_answers_are_json_that_nobody_keeps_or_buffers() -> None:
    async with bridge(Scripted()) as http:
        answer = await http.post("/mcp", json=request("call", NOOP, progressToken=1))
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"[]", {}, 400, -32600),
        (json.dumps([request("call", NOOP)] * 2).encode(), {}, 400, -32600),
        (b"{", {}, 400, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}\xff', {}, 400, -32700),
        (b"\xef\xbb\xbf{}", {}, 400, -32700),
        (b'{"a":' * 100_000, {}, 400, -32700),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', {}, 400, -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', {}, 400, -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', {}, 400, -32600),
        (b'"text"', {}, 400, -32600),
        (b"{}", {"Content-Type": "text/plain"}, 415, -32600),
        (b"{}", {"Accept": "text/html"}, 406, -32600),
    ],
)
async def test_what_is_no_request_is_refused_with_a_reason(
    body: bytes, headers: dict[str, str], status: int, code: int
) -> None:
    async with bridge(Scripted()) as http:
        answer = await http.post(
            "/mcp", content=body, headers={"Content-Type": "application/json", **headers}
        )
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert answer.json()["id"] is None


@pytest.mark.parametrize("header", ["Host", "X-Chappie-Key", "X-OpenAI-Session", "MCP-Protocol-Version"])
async def test_a_header_that_decides_may_come_once(header: str) -> None:
    async with served(build(Scripted(), settings())) as url:
        status, body = await raw(url, request("call", NOOP), {}, repeated=header)
    assert status == 400
    assert header.lower() in body["error"]["message"]


async def test_notifications_are_taken_in_both_eras() -> None:
    async with bridge(Scripted()) as http:
        for headers in ({}, {"MCP-Protocol-Version": "2025-11-25"}, {"MCP-Protocol-Version": "2026-07-28"}):
            body = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            answer = await http.post("/mcp", json=body, headers=headers)
            assert (answer.status_code, answer.content) == (202, b"")


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_a_body_above_the_bound_is_refused_and_the_next_request_served(
    http: Literal["h11", "httptools"],
) -> None:
    """B61 S22: a typed error for that request alone."""
    board = Scripted()
    limit = 64 * 1024
    async with bridge(board, http, body_max=limit) as session:
        large = request("chat", {"text": "x" * limit})
        for content in (json.dumps(large).encode(), _in_pieces(json.dumps(large).encode())):
            answer = await session.post("/mcp", content=content, headers={"Content-Type": "application/json"})
            assert answer.status_code == 413
            assert answer.json()["error"]["data"]["code"] == "too_large"
        fits = request("chat", {"text": "x" * (limit - 200)})
        assert (await session.post("/mcp", json=fits)).status_code == 200
    assert len(board.asked) == 1


async def test_an_endless_body_is_cut_off() -> None:
    """S22: a hundred megabytes are neither kept nor read."""
    async with served(build(Scripted(), settings(body_max=64 * 1024))) as url:
        reader, writer = await connection(url)
        head = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Chappie-Key: {SECRET}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 104857600\r\n\r\n"
        writer.write(head.encode())
        with anyio.fail_after(5):
            assert b" 413 " in await reader.readline()
            rest = await reader.read()
        assert b"too_large" in rest
        writer.close()


async def test_too_many_requests_at_once_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """S22: waits are bounded."""
    monkeypatch.setattr(gate, "MAX_REQUESTS", 2)
    board = Scripted()
    parked, go = anyio.Event(), anyio.Event()

    async def park(_: Any) -> OperationView:
        if len(board.asked) == 2:
            parked.set()
        await go.wait()
        return view()

    board.on["call"] = park
    async with bridge(board) as http, anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(called, http, "call", NOOP)
        await parked.wait()
        answer = await http.post("/mcp", json=request("call", NOOP))
        assert answer.status_code == 503
        assert answer.json()["error"]["data"]["retryable"] is True
        go.set()
    async with bridge(board) as http:
        assert (await called(http, "call", NOOP))["isError"] is False


async def test_a_request_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "OVERDUE", 0.05)
    board = Scripted()

    async def stuck(_: Any) -> Any:
        await anyio.sleep_forever()

    board.on["call"] = stuck
    async with served(build(board, settings())) as url:
        async with client(url) as http:
            answer = await http.post("/mcp", json=request("call", NOOP))
        assert answer.status_code == 504
        assert answer.json()["error"]["data"]["executed"] == "unknown"
        reader, writer = await connection(url)
        writer.write(
            f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Chappie-Key: {SECRET}\r\n"
            "Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{".encode()
        )
        with anyio.fail_after(5):
            assert b" 408 " in await reader.readline()
        writer.close()


# --- sent or not --------------------------------------------------------------------------------


async def test_an_answer_that_arrives_is_sent() -> None:
    board = Scripted()
    async with bridge(board) as http:
        await called(http, "init")
        await called(http, "call", NOOP)
        await called(http, "chat", {"text": "hi"})
        assert await board.until_told("r_init") is True
    assert board.receipts == {"r_init": [True], "r_1": [True, True]}


@pytest.mark.parametrize("http", ["h11", "httptools"])
@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_a_client_that_leaves_withdraws_its_request(
    http: Literal["h11", "httptools"], era: str
) -> None:
    board = Scripted()
    begun, withdrawn = anyio.Event(), anyio.Event()

    async def wait(_: Any) -> OperationView:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            withdrawn.set()
        raise AssertionError

    board.on["call"] = wait
    body, headers = modern("tools/call", {"name": "call", "arguments": NOOP})
    if era == "2025-11-25":
        body, headers = request("call", NOOP), {}
    async with served(build(board, settings()), http) as url:
        _, writer = await post(url, body, headers)
        with anyio.fail_after(5):
            await begun.wait()
            writer.close()
            await withdrawn.wait()
    assert board.receipts == {}


@pytest.mark.parametrize("http", ["h11", "httptools"])
async def test_a_reply_whose_client_left_meanwhile_is_not_sent(http: Literal["h11", "httptools"]) -> None:
    """B26: the server's own `send` would have succeeded; others go on unharmed."""
    board = Scripted()
    begun = anyio.Event()

    async def stubborn(_: Any) -> OperationView:
        begun.set()
        with anyio.CancelScope(shield=True):
            await gone.wait()
        return view()

    gone = anyio.Event()
    board.on["call"] = stubborn
    async with served(build(board, settings()), http) as url, client(url) as other:
        _, writer = await post(url, request("call", NOOP))
        with anyio.fail_after(5):
            await begun.wait()
            writer.close()
            await writer.wait_closed()
            assert (await called(other, "sessions"))["isError"] is False
            gone.set()
        assert await board.until_told("r_1") is False
        assert (await called(other, "sessions"))["isError"] is False


async def test_a_client_that_sent_and_left_at_once_was_not_told() -> None:
    board = Scripted()
    async with served(build(board, settings())) as url:
        _, writer = await post(url, request("call", NOOP), end=True)
        writer.close()
        assert await board.until_told("r_1") is False


async def test_an_answer_that_is_not_read_to_its_end_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """B26: the client reads nothing of an answer that does not fit the buffers."""
    monkeypatch.setattr(answers, "SEND_SECONDS", 0.2)
    board = Scripted()

    async def large(_: Any) -> OperationView:
        return view(results=(_with_image("A" * 4_000_000),))

    board.on["call"] = large
    async with served(build(board, settings())) as url, client(url) as other:
        _, writer = await post(url, request("call", NOOP))
        assert await board.until_told("r_1") is False
        writer.transport.abort()
        assert (await called(other, "sessions"))["isError"] is False


async def test_a_large_answer_that_is_read_was_sent() -> None:
    board = Scripted()

    async def large(_: Any) -> OperationView:
        return view(results=(_with_image("A" * 4_000_000),))

    board.on["call"] = large
    async with bridge(board) as http:
        found = await called(http, "call", NOOP)
        assert await board.until_told("r_1") is True
    assert len(found["content"][-1]["data"]) == 4_000_000


async def test_an_answer_that_begins_after_50_seconds_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tunnel has dropped the request by then, whatever the socket says."""
    board = Scripted()

    async def late(_: Any) -> OperationView:
        monkeypatch.setattr(gate.Exchange, "in_time", property(lambda self: False))
        return view()

    board.on["call"] = late
    async with bridge(board) as http:
        assert (await called(http, "call", NOOP))["isError"] is False
        assert await board.until_told("r_1") is False


# --- by hand ------------------------------------------------------------------------------------


async def connection(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))


async def post(
    url: str, body: Json, headers: dict[str, str] | None = None, *, end: bool = False
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connection(url)
    content = json.dumps(body).encode()
    every = {
        "Host": "localhost",
        "X-Chappie-Key": SECRET,
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in every.items())
    writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + content)
    if end:
        writer.write_eof()
    await writer.drain()
    return reader, writer


async def raw(
    url: str, body: Json | None, headers: dict[str, str], *, method: str = "POST", repeated: str = ""
) -> tuple[int, Json]:
    reader, writer = await connection(url)
    content = b"" if body is None else json.dumps(body).encode()
    every = {
        "Host": "localhost",
        "X-Chappie-Key": SECRET,
        "X-OpenAI-Session": "v1/a",
        "MCP-Protocol-Version": "2025-11-25",
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in every.items())
    if repeated:
        head += f"{repeated}: {every[repeated]}\r\n"
    if "Connection" not in headers:
        head += "Connection: close\r\n"
    writer.write(f"{method} /mcp HTTP/1.1\r\n{head}\r\n".encode() + content)
    with anyio.fail_after(5):
        answer = await reader.read()
    writer.close()
    found = answer.partition(b"\r\n\r\n")[2]
    return int(answer.split(b" ", 2)[1]), json.loads(found) if found.startswith(b"{") else {}


def _in_pieces(content: bytes) -> Any:
    """A body without a declared length."""

    async def pieces() -> AsyncGenerator[bytes]:
        for start in range(0, len(content), 10_000):
            yield content[start : start + 10_000]

    return pieces()


def _with_image(data: str) -> ToolResult:
    return result((Image(data=data, mime_type="image/png"),))
