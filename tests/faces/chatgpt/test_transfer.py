"""The tool `transfer` and the resources that it names, as a client sees them."""

import base64
import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from chappie_bridge.faces.chatgpt import progress
from chappie_bridge.faces.chatgpt.naming import image_addresses
from chappie_bridge.faces.chatgpt.resources import RESOURCE_MAX
from chappie_bridge.faces.chatgpt.server import build
from chappie_bridge.faces.chatgpt.tools import TOOLS
from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.blocks import Image, ResourceLink, Spill
from chappie_bridge.wire.errors import Cancelled, Executed, PathMissing
from chappie_bridge.wire.ids import OperationId, ReceiptId
from chappie_bridge.wire.reference import TEMPLATE, Reference, parse
from chappie_bridge.wire.requests import Bytes, FetchBytes, OperationView, SessionList, Transfer
from chappie_bridge.wire.transfer import Move
from chappie_bridge.wire.values import Companions, FileReport, Moving
from tests.faces.chatgpt.scripted import (
    ROW,
    SESSION,
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

pytestmark = pytest.mark.anyio

CAPABILITY = "cap_ability-1"


@asynccontextmanager
async def bridge(board: Scripted) -> AsyncGenerator[httpx2.AsyncClient]:
    async with served(build(board, settings())) as url, client(url) as session:
        yield session


async def asked(http: httpx2.AsyncClient, method: str, params: Json | None = None) -> Json:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
    found: Json = (await http.post("/mcp", json=body)).json()
    return found


def test_the_file_parameter_is_exactly_what_chatgpt_takes() -> None:
    """Written out by hand from facts/chatgpt.md §3.1: any other shape is rejected at Scan Tools."""
    definition: Any = TOOLS["transfer"].definition()
    assert definition["_meta"] == {"openai/fileParams": ["files"]}
    files = definition["inputSchema"]["properties"]["files"]
    assert files["type"] == "array"
    item = files["items"]
    assert item["type"] == "object"
    assert set(item["properties"]) == {"download_url", "file_id", "mime_type", "file_name"}
    assert all(each == {"type": "string"} for each in item["properties"].values())
    assert item["required"] == ["download_url", "file_id"]
    assert definition["inputSchema"]["required"] == ["paths"]


async def test_all_that_was_asked_reaches_the_broker() -> None:
    board = Scripted()
    file = {"download_url": "https://files/x", "file_id": "file_1", "file_name": "x.pdf", "later": 1}
    async with bridge(board) as http:
        await called(http, "transfer", {"paths": ["a/b.pdf"], "files": [file], "overwrite": True})
        remote = {"sessionId": "s_two", "paths": ["x", "y"]}
        await called(http, "transfer", {"paths": ["a", "b"], "from": remote})
        await called(http, "transfer", {"paths": ["a", "b"], "to": remote, "sessionId": "s_one"})
        await called(http, "transfer", {"paths": ["a"]})
    given = [each for each in board.asked if isinstance(each, Transfer)]
    assert given[0].attachments is not None
    assert given[0].attachments[0].model_dump() == {
        "download_url": "https://files/x",
        "file_id": "file_1",
        "file_name": "x.pdf",
        "mime_type": None,
    }
    assert given[0].overwrite
    assert given[1].source is not None
    assert (given[1].source.session, given[1].source.paths) == ("s_two", ("x", "y"))
    assert given[2].sink is not None
    assert (given[2].session, given[2].sink.paths) == ("s_one", ("x", "y"))
    assert given[3].limit == RESOURCE_MAX
    assert (given[3].attachments, given[3].source, given[3].sink) == (None, None, None)


async def test_a_file_that_the_client_did_not_hand_over_is_named() -> None:
    """B80: a bare string in the place of the object; nothing is asked of anybody."""
    board = Scripted()
    async with bridge(board) as http:
        arguments: Json = {"paths": ["x.png"], "files": ["chat_upload://image_0"]}
        told = error(await called(http, "transfer", arguments))
        assert told["code"] == "bad_arguments"
        assert "`files`" in told["message"]
        assert "download_url" in told["message"]
        for wrong in ([{"file_id": "f"}], [{"download_url": 1, "file_id": "f"}], "x", [], [None]):
            told = error(await called(http, "transfer", {"paths": ["x.png"], "files": wrong}))
            assert told["code"] == "bad_arguments"
    assert board.asked == []


async def test_each_file_has_a_line_and_what_can_be_read_a_link() -> None:
    """B72: in order, and the address carries the capability."""
    board = Scripted()
    link = ResourceLink(
        uri="chappie://session/s_one/file/u-1/a%20b.zip", name="a b.zip", mime_type="application/zip", size=3
    )

    async def moved(request: Transfer) -> OperationView:
        files = (
            FileReport(path="a b.zip", status=Move.DONE, moved=3, size=3, sha256="0" * 64, link=link),
            FileReport(path="no\x1b[2J", status=Move.REFUSED, error=PathMissing().failure()),
            FileReport(path="half", status=Move.FAILED, moved=5, size=9, error=Cancelled().failure()),
        )
        return view(
            kind="transfer",
            status=Status.FAILED,
            results=(),
            files=files,
            companions=Companions(receipt=ReceiptId("r"), capability=CAPABILITY),
        )

    board.on["transfer"] = moved
    async with bridge(board) as http:
        found = await called(http, "transfer", {"paths": ["a b.zip", "no", "half"]})
    assert found["isError"] is True
    head, first, second, third = lines(found)
    assert head["status"] == "failed"
    assert (first["path"], first["bytes"], first["sha256"]) == ("a b.zip", 3, "0" * 64)
    assert second["error"]["code"] == "path_missing"
    assert "\x1b" not in second["path"]
    assert (third["bytes"], third["of"], third["error"]["code"]) == (5, 9, "cancelled")
    (resource,) = [block for block in found["content"] if block["type"] == "resource_link"]
    assert found["content"].index(resource) == 2
    assert parse(resource["uri"]).capability == CAPABILITY


async def test_native_images_are_named_where_they_are_shown() -> None:
    board = Scripted()
    data = b"\x89PNG\r\n\x1a\nbytes"
    shown = (Image(data=base64.b64encode(data).decode(), mime_type="image/png"),)

    async def seen(request: Any) -> OperationView:
        companions = Companions(receipt=ReceiptId("r"), capability=CAPABILITY)
        return view(results=(result(shown),), executed=Executed.YES, companions=companions)

    board.on["call"] = seen
    async with bridge(board) as http:
        found = await called(http, "call", {"calls": [{"name": "read", "arguments": {}}]})
    (named,) = lines(found)[1]["images"]
    digest = hashlib.sha256(data).hexdigest()
    assert parse(named) == Reference(SESSION, "image", digest, "image.png", CAPABILITY)
    spill = Spill(of="image", size=9, sha256="1" * 64, path="/spool/x", mime_type="image/jpeg")
    (named,) = image_addresses(SESSION, (spill,), CAPABILITY)["images"]
    assert parse(named).id == "1" * 64
    assert image_addresses(SESSION, (spill,), None) == {}


def stored(data: bytes, at_once: list[int] | None = None) -> Any:
    """A `fetch` that has these bytes."""
    under_way = 0

    async def fetch(request: FetchBytes) -> Bytes:
        nonlocal under_way
        assert request.capability == CAPABILITY
        under_way += 1
        if at_once is not None:
            at_once.append(under_way)
        await anyio.lowlevel.checkpoint()
        under_way -= 1
        piece = data[request.offset : request.offset + request.length]
        return Bytes(data=base64.b64encode(piece).decode(), size=len(data))

    return fetch


@pytest.mark.parametrize("size", [0, 1, 524_287, 524_288, 2_000_001])
async def test_a_resource_is_read_whole(size: int) -> None:
    """B73: binary stays binary."""
    board = Scripted()
    data = bytes(range(256)) * (size // 256 + 1)
    board.on["fetch"] = stored(data[:size])
    uri = str(Reference(SESSION, "file", "u-1", "a b.pdf", CAPABILITY))
    async with bridge(board) as http:
        found = (await asked(http, "resources/read", {"uri": uri}))["result"]["contents"]
        assert [(each["uri"], each["mimeType"]) for each in found] == [(uri, "application/pdf")]
        assert base64.b64decode(found[0]["blob"]) == data[:size]


async def test_two_resources_are_read_at_a_time_and_none_above_the_bound() -> None:
    board = Scripted()
    at_once: list[int] = []
    board.on["fetch"] = stored(b"x" * 3_000_000, at_once)
    uri = str(Reference(SESSION, "file", "u-1", "x", CAPABILITY))
    async with bridge(board) as http:
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(asked, http, "resources/read", {"uri": uri})
        assert max(at_once) == 2

        async def large(request: FetchBytes) -> Bytes:
            return Bytes(data="AAAA", size=RESOURCE_MAX + 1)

        board.on["fetch"] = large
        told = (await asked(http, "resources/read", {"uri": uri}))["error"]
        assert told["data"]["code"] == "too_large"


async def test_what_is_not_known_here_is_not_found() -> None:
    board = Scripted()

    async def nothing(request: FetchBytes) -> Bytes:
        raise PathMissing

    board.on["fetch"] = nothing
    good = str(Reference(SESSION, "file", "u-1", "x", CAPABILITY))
    async with bridge(board) as http:
        for uri in (good, "chappie://session/s", "file:///etc/passwd", "chappie://x/s/file/u/n", "x" * 9999):
            told = (await asked(http, "resources/read", {"uri": uri}))["error"]
            assert told["code"] == -32002, uri
        listed = (await asked(http, "resources/templates/list"))["result"]["resourceTemplates"]
        assert [each["uriTemplate"] for each in listed] == [TEMPLATE]
        listed = (await asked(http, "resources/list"))["result"]["resources"]
        assert [each["name"] for each in listed] == ["question"], "no file is listed"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_that_asks_for_progress_is_told_of_it_ahead_of_the_answer(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.001)
    board = Scripted()
    heard: list[tuple[float, float | None]] = []
    enough = anyio.Event()
    moved = 0

    async def begin(request: Transfer) -> OperationView:
        companions = Companions(receipt=ReceiptId("r_first"))
        return view(kind="transfer", status=Status.RUNNING, results=(), companions=companions)

    async def rows(request: Any) -> SessionList:
        nonlocal moved
        moved += 10
        moving = Moving(operation=OperationId("op_1"), files=1, moved=moved, size=1000)
        return SessionList(sessions=(ROW.model_copy(update={"transfers": (moving,)}),), has_more=False)

    async def end(request: Any) -> OperationView:
        await enough.wait()
        files = (FileReport(path="x", status=Move.DONE, moved=1000, size=1000),)
        return view(kind="transfer", results=(), files=files)

    async def listen(done: float, total: float | None, message: str | None) -> None:
        heard.append((done, total))
        if len(heard) == 3:
            enough.set()

    board.on |= {"transfer": begin, "sessions": rows, "call": end}
    async with (
        served(build(board, settings())) as url,
        client(url) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as session,
    ):
        result = await session.call_tool("transfer", {"paths": ["x"]}, progress_callback=listen)
        assert result.is_error is False
        assert heard[:3] == [(10, 1000), (20, 1000), (30, 1000)]
        assert await board.until_told("r_first") is False
        assert await board.until_told("r_1") is True


async def test_without_a_token_the_answer_is_plain_json() -> None:
    board = Scripted()
    async with bridge(board) as http:
        answer = await http.post("/mcp", json=request("transfer", {"paths": ["x"]}))
        assert answer.headers["content-type"] == "application/json"
