"""Metadata documents of apps: strangers name their addresses, so little is read there, and nowhere inside."""

from typing import Any, cast

import pytest
from chappie_broker.apps import Apps
from chappie_broker.download import MAX_DOCUMENT, Bounds, document

from chappie_bridge.wire.errors import BridgeError
from tests.broker.test_download import OK, bounds, serving, sized

pytestmark = pytest.mark.anyio

JSON = b"Content-Type: application/json\r\n"


async def refused(url: str, given: Bounds) -> BridgeError:
    with pytest.raises(BridgeError) as caught:
        await document(url, given)
    return caught.value


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "127.0.0.1", "127.1", "0x7f.1", "0.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1"),
        *("169.254.169.254", "100.64.0.1", "[::1]", "[::ffff:127.0.0.1]", "[fd00::1]", "[fe80::1]"),
    ],
)
async def test_no_document_is_read_in_a_closed_network(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """S16: however it is written, nothing is connected to."""
    reached: list[str] = []

    async def connect(host: str, port: int) -> object:
        reached.append(host)
        raise OSError("not from here")

    monkeypatch.setattr("chappie_broker.download.anyio.connect_tcp", connect)
    error = await refused(f"https://{host}/client.json", Bounds())
    assert (error.code, reached) == ("download_failed", [])


async def test_what_the_owner_opened_for_files_is_closed_to_documents() -> None:
    """S16: anybody who reaches `/authorize` names a document."""
    async with serving({"/client.json": sized(b"{}", more=JSON)}) as server:
        url, given = server.url("/client.json"), bounds(server)
        assert await document(url, given) == b"{}"
        nothing = cast("Any", None)
        apps = Apps(nothing, nothing, nothing, now=lambda: 0.0, bounds=given)
        with pytest.raises(BridgeError):
            await apps.document(url)
        assert len(server.asked) == 1


@pytest.mark.parametrize("status", [b"301 Moved", b"302 Found", b"307 Temporary", b"308 Permanent"])
async def test_a_document_is_not_led_on(status: bytes) -> None:
    """S16: it lies at the address that is the app's name, or nowhere."""
    on = b"HTTP/1.1 " + status + b"\r\nLocation: /other\r\n" + JSON + b"Content-Length: 2\r\n\r\n{}"
    async with serving({"/client.json": on, "/other": sized(b"{}", more=JSON)}) as server:
        error = await refused(server.url("/client.json"), bounds(server))
        assert (error.code, len(server.asked)) == ("download_failed", 1)


async def test_a_document_is_small() -> None:
    """S16 S22: whatever it says of its own size."""
    fits, more = b"x" * MAX_DOCUMENT, b"x" * (MAX_DOCUMENT + 1)
    answers = {
        "/fits": sized(fits, more=JSON),
        "/said": sized(more, more=JSON),
        "/unsaid": OK + JSON + b"\r\n" + more * 40,
    }
    async with serving(answers) as server:
        assert await document(server.url("/fits"), bounds(server)) == fits
        for path in ("/said", "/unsaid"):
            assert (await refused(server.url(path), bounds(server))).code == "too_large"


@pytest.mark.parametrize(
    "kind",
    [None, "text/html", "text/plain", "application/jsonx", "image/png", "json", "application/x json"],
)
async def test_a_document_is_json_and_says_so(kind: str | None) -> None:
    """S16: a page that happens to hold such text registers nobody."""
    more = b"" if kind is None else f"Content-Type: {kind}\r\n".encode()
    async with serving({"/client.json": sized(b"{}", more=more)}) as server:
        assert (await refused(server.url("/client.json"), bounds(server))).code == "download_failed"


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "Application/JSON", "application/cimd+json"]
)
async def test_each_kind_of_json_is_taken(kind: str) -> None:
    answer = sized(b"{}", more=f"Content-Type: {kind}\r\n".encode())
    async with serving({"/client.json": answer}) as server:
        assert await document(server.url("/client.json"), bounds(server)) == b"{}"
