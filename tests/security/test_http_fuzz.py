"""Anything at all over HTTP, on each route: answered or cut, in time, and the server goes on.  Raw sockets on
the server as it is run, doorstep included."""

import asyncio
import json
import logging
from typing import Any, cast

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chappie_bridge.cli.doorstep import Doorstep, protocol
from chappie_bridge.faces.chatgpt.server import build
from chappie_bridge.faces.chatgpt.tools import TOOLS
from tests.faces.chatgpt.scripted import SECRET, Scripted, served
from tests.faces.chatgpt.scripted import settings as face_settings

ROUTES = ("/mcp", "/metrics", "/healthz", "/readyz")
"""What the gate serves; a new one belongs here, and `test_each_route_is_fuzzed` says so."""

PATIENCE = 30.0
"""Seconds; an answer that takes longer never comes."""

_TOKEN = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='()<>@,;:\\"/[]?={}'), min_size=1
)
_VALUE = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=200)
_NAMES = st.sampled_from(
    [
        "Host",
        "Origin",
        "Authorization",
        "X-Chappie-Key",
        "Content-Type",
        "Content-Length",
        "Transfer-Encoding",
        "Accept",
        "Expect",
        "Upgrade",
        "Connection",
        "MCP-Protocol-Version",
        "Mcp-Method",
        "Mcp-Name",
        "X-OpenAI-Session",
        "X-Chappie-Conversation",
    ]
)
_PATHS = st.one_of(st.sampled_from(ROUTES), st.text(max_size=50).map(lambda text: f"/{text}"))
_METHODS = st.one_of(
    st.sampled_from(["GET", "POST", "HEAD", "OPTIONS", "DELETE", "PUT", "PRI", "CONNECT"]), _TOKEN
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
_CALLS = st.fixed_dictionaries(
    {
        "jsonrpc": st.sampled_from(["2.0", "1.0"]) | _JSON,
        "id": st.integers() | st.text(max_size=10) | _JSON,
        "method": st.sampled_from(
            [
                "tools/call",
                "tools/list",
                "resources/read",
                "resources/list",
                "initialize",
                "ping",
                "server/discover",
            ]
        )
        | st.text(max_size=20),
        "params": st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(sorted(TOOLS)) | st.text(max_size=10),
                "arguments": st.dictionaries(
                    st.sampled_from(
                        ["calls", "session_id", "paths", "operation", "wait", "text", "range", "base64"]
                    )
                    | st.text(max_size=10),
                    _JSON,
                    max_size=4,
                ),
                "uri": st.text(max_size=60).map(lambda text: f"chappie://session/{text}")
                | st.text(max_size=40),
                "_meta": _JSON,
            },
        )
        | _JSON,
    }
)
_BODIES = st.one_of(
    st.binary(max_size=2_000),
    _CALLS.map(lambda call: json.dumps(call).encode()),
    st.lists(_CALLS, max_size=3).map(lambda calls: json.dumps(calls).encode()),
)


@st.composite
def _requests(draw: st.DrawFn) -> bytes:
    """Mostly well formed, so that it comes far."""
    body = draw(_BODIES)
    headers = {
        "Host": "localhost",
        "X-Chappie-Key": SECRET,
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **draw(st.dictionaries(_NAMES | _TOKEN, _VALUE, max_size=3)),
    }
    path = draw(_PATHS).encode("utf-8", "surrogatepass").replace(b" ", b"%20")
    head = draw(_METHODS).encode() + b" " + path + b" HTTP/1.1\r\n"
    lines = b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items())
    return head + lines + b"\r\n" + body


def test_each_route_is_fuzzed() -> None:
    async def statuses() -> dict[str, bytes]:
        async with served(
            build(Scripted(), face_settings()), cast("Any", protocol(Doorstep(1 << 20)))
        ) as url:
            port = int(url.rpartition(":")[2])
            head = f" HTTP/1.1\r\nHost: localhost\r\nX-Chappie-Key: {SECRET}\r\n\r\n".encode()
            return {path: await _said(port, b"GET " + path.encode() + head) for path in (*ROUTES, "/nothing")}

    found = anyio.run(statuses)
    assert all(b" 404 " not in found[path][:20] for path in ROUTES)
    assert b" 404 " in found["/nothing"][:20]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(_requests(), st.binary(max_size=500)), min_size=20, max_size=40))
def test_whatever_comes_is_answered_or_cut_and_the_server_goes_on(pieces: list[bytes]) -> None:
    """S14 S22: no 500, no fault in the log, and a good request is served right after."""
    logs = _Faults()
    logging.getLogger().addHandler(logs)
    try:
        anyio.run(_storm, pieces)
    finally:
        logging.getLogger().removeHandler(logs)
    assert logs.seen == []


async def _storm(pieces: list[bytes]) -> None:
    async with served(build(Scripted(), face_settings()), cast("Any", protocol(Doorstep(1 << 20)))) as url:
        port = int(url.rpartition(":")[2])
        for piece in pieces:
            answer = await _said(port, piece)
            assert not answer.startswith(b"HTTP/1.1 5"), (piece, answer)
            assert SECRET.encode() not in answer
        good = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert (await _said(port, good)).startswith(b"HTTP/1.1 200")


async def _said(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with anyio.fail_after(PATIENCE):
            writer.write(data)
            writer.write_eof()
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


class _Faults(logging.Handler):
    """Errors in the log, and what a task raised."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(f"{record.getMessage()} {record.exc_info}")
