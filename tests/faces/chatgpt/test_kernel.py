"""Our own entry beside the SDK's: the same request gets the same answer."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import mcp_types as types
import pytest
import starlette.applications
from mcp.server.lowlevel import Server

from chappie_bridge.faces.chatgpt.admission import Admission
from chappie_bridge.faces.chatgpt.exchange import Exchange
from chappie_bridge.faces.chatgpt.gate import Gate
from chappie_bridge.faces.chatgpt.kernel import Kernel, decode
from tests.faces.chatgpt.scripted import Scripted

pytestmark = pytest.mark.anyio

ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}


def server() -> Server[Any]:
    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        schema = {"type": "object", "properties": {"a": {"type": "string"}}}
        return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema=schema)])

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        text = json.dumps([params.name, params.arguments, (ctx.meta or {}).get("openai/session")])
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    return Server("same", version="1", instructions="i", on_list_tools=list_tools, on_call_tool=call_tool)


@asynccontextmanager
async def both() -> AsyncGenerator[tuple[httpx2.AsyncClient, httpx2.AsyncClient]]:
    """The SDK's stateless application and ours, around the same server."""
    theirs = server().streamable_http_app(json_response=True, stateless_http=True)
    assert isinstance(theirs, starlette.applications.Starlette)
    ours = Gate(Kernel(server()), Scripted(), Admission([]), 4 * 2**20)
    async with (
        theirs.router.lifespan_context(theirs),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(theirs), base_url="http://127.0.0.1:1") as one,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(ours), base_url="http://127.0.0.1:1") as two,
    ):
        yield one, two


def message(method: str, params: Any = None, **more: Any) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, **more}
    return body if params is None else {**body, "params": params}


CALL = {"name": "echo", "arguments": {"a": "ü😀"}, "_meta": {"openai/session": "v1/a"}}
HANDSHAKE = [
    message("initialize", HELLO),
    message("initialize", {**HELLO, "protocolVersion": "2026-07-28"}),
    message("initialize", {**HELLO, "protocolVersion": "1999-01-01"}),
    message("initialize", {}),
    message("ping"),
    message("tools/list"),
    message("tools/list", {"cursor": 7}),
    message("tools/call", CALL),
    message("tools/call", CALL, id="text"),
    message("tools/call", CALL, id="7"),
    message("tools/call", {"arguments": {}}),
    message("tools/call", {"name": "echo", "arguments": []}),
    message("tools/call", {"name": "echo", "_meta": {"progressToken": 5}}),
    message("server/discover"),
    message("resources/list"),
    message("no/such"),
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
    {"jsonrpc": "2.0", "id": 4, "result": {}},
    {"jsonrpc": "2.0", "id": 4, "error": {"code": 1, "message": "m"}},
]
MODERN = [
    message("server/discover", {"_meta": ENVELOPE}),
    message("tools/list", {"_meta": ENVELOPE}),
    message("tools/call", {**CALL, "_meta": {**CALL["_meta"], **ENVELOPE}}),
    message("tools/call", CALL),
    message(
        "tools/call", {"name": "echo", "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}
    ),
    message("ping", {"_meta": ENVELOPE}),
    message("initialize", {**HELLO, "_meta": ENVELOPE}),
    message("resources/list", {"_meta": ENVELOPE}),
    message("no/such", {"_meta": ENVELOPE}),
    message("tools/call", {"arguments": {}, "_meta": ENVELOPE}),
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "method": 5},
    {"jsonrpc": "2.0", "id": 4, "result": {}},
]


@pytest.mark.parametrize("version", [None, "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
@pytest.mark.parametrize("body", HANDSHAKE, ids=lambda body: str(body.get("method", "response")))
async def test_a_handshake_request_is_answered_as_the_sdk_does(
    body: dict[str, Any], version: str | None
) -> None:
    headers = {"Accept": "application/json, text/event-stream"}
    if version:
        headers["MCP-Protocol-Version"] = version
    await same(body, headers)


@pytest.mark.parametrize("version", ["2026-07-28", "2031-01-01"])
@pytest.mark.parametrize("body", MODERN, ids=lambda body: str(body.get("method", "response")))
async def test_a_single_request_is_answered_as_the_sdk_does(body: dict[str, Any], version: str) -> None:
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": version,
        "Mcp-Method": str(body.get("method")),
    }
    if "name" in body.get("params", {}):
        headers["Mcp-Name"] = body["params"]["name"]
    await same(body, headers)


async def same(body: dict[str, Any], headers: dict[str, str]) -> None:
    async with both() as (one, two):
        theirs = await one.post("/mcp", json=body, headers=headers)
        ours = await two.post("/mcp", json=body, headers=headers)
    assert ours.status_code == theirs.status_code
    if not theirs.content:
        assert not ours.content
        return
    expected, found = theirs.json(), ours.json()
    if "error" in expected:  # the words are ours
        assert found["id"] == expected["id"]
        assert found["error"]["code"] == expected["error"]["code"]
        assert found["error"].get("data") == expected["error"].get("data")
    else:
        assert found == expected


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"",
        b"NaN",
        b'{"a":Infinity}',
        b'"\xff"',
        b"[" * 10_000,
        b"\xff\xfe{\x00}\x00",
        b"{}}",
    ],
)
def test_only_json_in_utf8_is_read(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(text)


async def test_a_failure_below_the_tools_shows_an_id_only(caplog: pytest.LogCaptureFixture) -> None:
    broken = server()

    async def fail(ctx: Any, params: Any) -> types.EmptyResult:
        raise RuntimeError("inner secret")

    broken.add_request_handler("tools/call", types.CallToolRequestParams, fail)
    for version in ("2025-11-25", "2026-07-28"):
        meta = {"_meta": ENVELOPE} if version == "2026-07-28" else {}
        asked = message("tools/call", {"name": "echo", **meta})
        answer = await Kernel(broken).answer(asked, Exchange("owner", lambda: 0.0), version=version)
        assert b"secret" not in answer.body
        assert b"err_" in answer.body
    assert "inner secret" in caplog.text
