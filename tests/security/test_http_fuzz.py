"""Anything at all over HTTP, on each route: answered or cut, at a bounded cost, and the server goes on.

Raw sockets on the server as it is run, doorstep included; in process where no answer may be lost."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlencode

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chappie_bridge.cli.doorstep import Doorstep, protocol
from chappie_bridge.faces.chatgpt.tools import TOOLS
from tests.faces.chatgpt.oauth_rig import BACK, CHALLENGE, CIMD, VERIFIER
from tests.faces.chatgpt.scripted import SECRET, served
from tests.security.front_door import BASE, BODY_MAX, ROUTES, House, front_door, no_fault_is_logged

PATIENCE = 30.0
"""Seconds; an answer that takes longer never comes."""

STREAMS = ("/dashboard/events", "/dashboard/transcript")
"""What has no end while the client is there."""

MEGABYTE = 1 << 20

TAKEN = 3 * BODY_MAX
"""Bytes of a body that a route may take before it answers: twice of what `/mcp` takes, and a part."""

PART = 32 * 1024

_QUIET = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])

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
        "Cookie",
        "Sec-Fetch-Site",
        "Access-Control-Request-Method",
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

_WORDS = {
    "grant_type": ["authorization_code", "refresh_token", "client_credentials"],
    "client_id": ["{client}", CIMD, "https://a.example/x.json"],
    "redirect_uri": [BACK, f"{BACK}/", "http://127.0.0.1/x", "javascript:x"],
    "response_type": ["code", "token"],
    "code_challenge": [CHALLENGE, VERIFIER, "x"],
    "code_challenge_method": ["S256", "plain"],
    "code_verifier": [VERIFIER, CHALLENGE],
    "code": ["{code}"],
    "resource": [f"{BASE}/mcp", "https://a.example/mcp"],
    "refresh_token": ["{refresh}", "{access}"],
    "token": ["{refresh}", "{access}"],
    "request": ["{request}"],
    "decision": ["allow", "deny"],
    **{name: ["1"] for name in ("id", "session", "operation", "approval", "question", "device", "sha256")},
    **{name: ["1"] for name in ("text", "answer", "choice", "revision", "before", "after", "find", "state")},
}
"""Fields of the forms and queries.  What is in braces the running bridge knows."""


def _field(name: str) -> st.SearchStrategy[tuple[str, str]]:
    values = st.sampled_from(_WORDS[name]) | st.text(st.characters(codec="utf-8"), max_size=30)
    return values.map(lambda value: (name, value))


_FIELDS = st.lists(st.sampled_from(sorted(_WORDS)).flatmap(_field), max_size=9)
_FORMS = st.sampled_from(
    [
        "response_type client_id redirect_uri code_challenge code_challenge_method resource state",
        "grant_type client_id code redirect_uri code_verifier resource",
        "grant_type client_id refresh_token",
        "client_id token",
        "request code decision",
        "request",
        "session before after find",
    ]
).flatmap(lambda names: st.tuples(*map(_field, names.split())).map(list))
_REGISTRATIONS = st.fixed_dictionaries(
    {"redirect_uris": st.lists(st.sampled_from([BACK, "http://127.0.0.1/x"]) | _JSON, max_size=12) | _JSON},
    optional={
        "client_id": st.just(CIMD) | _JSON,
        "client_name": st.text(max_size=30) | _JSON,
        **dict.fromkeys(("token_endpoint_auth_method", "grant_types", "scope", "logo_uri", "jwks"), _JSON),
    },
)
_DOCUMENTS = st.one_of(
    st.binary(max_size=200),
    _REGISTRATIONS.map(lambda app: json.dumps(app).encode()),
    _REGISTRATIONS.map(lambda app: json.dumps({**app, "client_id": CIMD, "redirect_uris": [BACK]}).encode()),
)
_BODIES = st.one_of(
    st.binary(max_size=2_000),
    _CALLS.map(lambda call: json.dumps(call).encode()),
    st.lists(_CALLS, max_size=3).map(lambda calls: json.dumps(calls).encode()),
    _DOCUMENTS,
)


class Sent(NamedTuple):
    """One request, mostly well formed, so that it comes far."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes | list[tuple[str, str]]

    def filled(self, known: Mapping[str, str]) -> tuple[str, dict[str, str], bytes]:
        """Target, headers, body."""
        body = _encoded(self.body, known).encode() if isinstance(self.body, list) else self.body
        kind = "application/x-www-form-urlencoded" if isinstance(self.body, list) else "application/json"
        target = quote(self.path.encode("utf-8", "surrogatepass"), safe="/.~-_%")
        headers = {
            "Host": "localhost",
            "X-Chappie-Key": SECRET,
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cookie": known["{cookie}"],
            **{name: known.get(value, value) for name, value in self.headers.items()},
        }
        return f"{target}?{_encoded(self.query, known)}" if self.query else target, headers, body

    def said(self, known: Mapping[str, str]) -> bytes:
        """What an answer may repeat."""
        target, _, body = self.filled(known)
        return target.encode() + body

    def as_bytes(self, known: Mapping[str, str]) -> bytes:
        target, headers, body = self.filled(known)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{self.method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def _encoded(fields: list[tuple[str, str]], known: Mapping[str, str]) -> str:
    return urlencode([(name, known.get(value, value)) for name, value in fields])


_REQUESTS = st.builds(
    Sent,
    st.sampled_from(["GET", "POST"]) | _METHODS,
    _PATHS,
    st.just([]) | _FIELDS | _FORMS,
    st.just({"Authorization": "{bearer}"}) | st.dictionaries(_NAMES | _TOKEN, _VALUE, max_size=3),
    _BODIES | _FIELDS | _FORMS,
)
_WELL = st.builds(
    Sent,
    st.sampled_from(["GET", "POST", "HEAD"]),
    st.sampled_from([path for path in ROUTES if path not in STREAMS]),
    st.just([]) | _FORMS,
    st.sampled_from([{}, {"Authorization": "{bearer}", "X-Chappie-Key": ""}, {"Origin": BASE}]),
    _BODIES | _FORMS,
)


@asynccontextmanager
async def _listening(house: House) -> AsyncGenerator[int]:
    """The port of the server as it is run."""
    async with served(house.face, cast("Any", protocol(Doorstep(MEGABYTE)))) as url:
        yield int(url.rpartition(":")[2])


def test_each_route_is_fuzzed() -> None:
    """The routes are those of the application's own tables."""

    async def statuses() -> dict[str, int]:
        async with front_door() as house, house.browser() as http:
            headers = {"X-Chappie-Key": SECRET, "Cookie": house.known["{cookie}"]}
            paths = (*ROUTES, "/nothing", "/dashboard/nothing")
            return {path: (await http.put(path, headers=headers)).status_code for path in paths}

    found = anyio.run(statuses)
    assert {path for path, status in found.items() if status == 404} == {"/nothing", "/dashboard/nothing"}
    assert {"/mcp", "/readyz", "/token", "/consent", "/dashboard", "/dashboard/login"} <= set(ROUTES)


@_QUIET
@given(st.lists(st.one_of(_REQUESTS, st.binary(max_size=500)), min_size=20, max_size=40))
def test_whatever_comes_is_answered_or_cut_and_the_server_goes_on(pieces: list[Sent | bytes]) -> None:
    """S14 S22: no 500, no fault in the log, and a good request is served right after."""

    async def storm() -> None:
        async with front_door() as house, _listening(house) as port:
            for piece in pieces:
                answer = await _said(port, piece if isinstance(piece, bytes) else piece.as_bytes(house.known))
                assert not answer.startswith(b"HTTP/1.1 5"), (piece, answer)
                assert not house.tells(answer, b"" if isinstance(piece, bytes) else piece.said(house.known))
            await _serves(port)

    with no_fault_is_logged():
        anyio.run(storm)


@_QUIET
@given(_DOCUMENTS, st.lists(_WELL, min_size=20, max_size=40))
def test_no_well_formed_request_makes_a_route_fail(document: bytes, requests: list[Sent]) -> None:
    """S14: in process, so that each answer is seen; `document` is what an app's address holds."""

    async def asked() -> None:
        async with front_door(document) as house, house.browser() as http:
            for each in requests:
                target, headers, body = each.filled(house.known)
                with anyio.fail_after(PATIENCE):
                    answer = await http.request(each.method, target, headers=headers, content=body)
                assert answer.status_code < 500, (each, answer.text)
                assert not house.tells(answer.content, each.said(house.known))

    with no_fault_is_logged():
        anyio.run(asked)


def _repeated(piece: bytes) -> bytes:
    return (piece * (MEGABYTE // len(piece) + 1))[:MEGABYTE]


HOSTILE = {
    "long": _repeated(b"a"),
    "one escaped value": b"a=" + _repeated(b"%41"),
    "many fields": _repeated(b"a&"),
    "many values": _repeated(b"a=%ff&"),
    "deep lists": _repeated(b"["),
    "deep objects": _repeated(b'{"redirect_uris":'),
    "half characters": b'["' + _repeated(b"\\ud800"),
    "no text": _repeated(b"\xff"),
    "many calls": b"[" + _repeated(b'{"jsonrpc":"2.0"},'),
}


@pytest.mark.anyio
@pytest.mark.parametrize("shape", HOSTILE)
@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded"])
async def test_a_hostile_megabyte_costs_each_route_no_more_than_its_bound(shape: str, kind: str) -> None:
    """S14 S22: what counts is how much of it is taken before there is an answer.  Each shape also comes at a
    size that is taken whole."""
    with no_fault_is_logged():
        async with front_door() as house:
            for path in ROUTES:
                for method in () if path in STREAMS else ("GET", "POST"):
                    for size in (MEGABYTE, PART - 100):
                        status, taken = await _taken(house, method, path, kind, HOSTILE[shape][:size])
                        assert 200 <= status < 500, (method, path, status)
                        assert taken <= TAKEN, (method, path, taken)


@pytest.mark.anyio
@pytest.mark.parametrize("where", ["query", "header", "path", "cookie"])
async def test_a_hostile_megabyte_before_a_body_is_cut(where: str) -> None:
    """S14 S22"""
    with no_fault_is_logged():
        async with front_door() as house, _listening(house) as port:
            for path in ROUTES:
                for shape in ("long", "one escaped value", "many values"):
                    text = HOSTILE[shape].decode()
                    target = {"query": f"{path}?{text}", "path": f"{path}/{text}"}.get(where, path)
                    name = {"header": "Authorization", "cookie": "Cookie"}.get(where, "X-None")
                    value = text if where in ("header", "cookie") else "1"
                    head = f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{name}: {value}\r\n\r\n"
                    answer = await _said(port, head.encode())
                    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), (path, answer[:100])
            await _serves(port)


async def _taken(house: House, method: str, path: str, kind: str, body: bytes) -> tuple[int, int]:
    """The status, and how many bytes of the body were taken before it."""
    parts = [body[at : at + PART] for at in range(0, len(body), PART)]
    taken = 0
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        nonlocal taken
        if not parts:
            await anyio.sleep_forever()
        part = parts.pop(0)
        taken += len(part)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = {"host": "localhost", "x-chappie-key": SECRET, "content-type": kind, "origin": BASE}
    headers["cookie"] = house.known["{cookie}"]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    with anyio.fail_after(PATIENCE):
        await house.face(scope, receive, send)
    return statuses[0], taken


async def _serves(port: int) -> None:
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
