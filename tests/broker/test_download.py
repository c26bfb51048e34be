"""Downloads: from the open internet only, whole or not at all, each fault with its own words."""

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from chappie_broker.addresses import Allowed, is_open, target
from chappie_broker.download import Bounds, Download
from chappie_broker.relay import Pipe

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import BridgeError, DownloadFailed
from chappie_bridge.wire.requests import Transfer
from chappie_bridge.wire.transfer import Flow
from chappie_bridge.wire.values import Attachment
from tests.peer.authority import certify
from tests.peer.link_rig import room
from tests.peer.transfer_rig import CHAT, world

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\n"
BODY = b"the bytes of the file"


def sized(body: bytes = BODY, *, more: bytes = b"", said: int | None = None) -> bytes:
    length = len(body) if said is None else said
    return OK + more + b"Content-Length: %d\r\n\r\n" % length + body


class Server:
    """Answers each request for a path with bytes, as they stand."""

    def __init__(self, port: int, answers: dict[str, bytes]) -> None:
        self.port, self.answers = port, answers
        self.asked: list[bytes] = []
        self.silent: set[str] = set()
        """Paths after whose answer the connection stays."""

    def url(self, path: str, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    async def serve(self, stream: SocketStream) -> None:
        async with stream:
            request = b""
            while b"\r\n\r\n" not in request:
                try:
                    request += await stream.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return
            self.asked.append(request)
            path = request.split(b" ")[1].decode().partition("?")[0]
            answer = self.answers.get(path, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await stream.send(answer)
            if path in self.silent:
                await anyio.sleep_forever()


async def listening() -> tuple[anyio.abc.Listener[SocketStream], int]:
    end = socket.create_server(("127.0.0.1", 0))
    end.setblocking(False)
    return await anyio.abc.SocketListener.from_socket(end), end.getsockname()[1]


@asynccontextmanager
async def serving(
    answers: dict[str, bytes],
) -> AsyncIterator[Server]:
    listener, port = await listening()
    server = Server(port, answers)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, server.serve)
        yield server
        tasks.cancel_scope.cancel()


def bounds(server: Server, **more: object) -> Bounds:
    return Bounds(allowed=Allowed.of([f"http://127.0.0.1:{server.port}"]), **more)


async def fetched(url: str, given: Bounds, **more: str) -> tuple[bytes, int | None]:
    """All of a download, and its size as it was told at first."""
    feed = Download(Attachment(download_url=url, file_id="f", **more), given)
    try:
        facts = await feed.open(None)
        flow = Flow(0, facts.size)
        taken: list[bytes] = []
        pipe = Pipe(flow, lambda _: None)
        put = pipe.put

        def take(offset: int, data: bytes) -> None:
            put(offset, data)
            taken.append(data)
            flow.forward(len(data))
            pipe.written(offset + len(data))

        pipe.put = take
        with anyio.fail_after(10):
            whole = await feed.run(pipe)
        assert whole.size == sum(map(len, taken))
        return b"".join(taken), facts.size
    finally:
        await feed.close()


async def failing(url: str, given: Bounds, **more: str) -> BridgeError:
    with pytest.raises(BridgeError) as caught:
        await fetched(url, given, **more)
    return caught.value


async def test_a_file_comes_whole_in_each_of_the_ways_http_knows() -> None:
    big = bytes(range(256)) * 20_000
    answers = {
        "/sized": sized(big),
        "/empty": sized(b""),
        "/closed": OK + b"\r\n" + big,
        "/chunked": OK
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"".join(
            b"%x\r\n%s\r\n" % (len(big[i : i + 9999]), big[i : i + 9999]) for i in range(0, len(big), 9999)
        )
        + b"0\r\n\r\n",
        "/moved": b"HTTP/1.1 302 Found\r\nLocation: /sized?sig=1\r\nContent-Length: 0\r\n\r\n",
    }
    async with serving(answers) as server:
        given = bounds(server)
        assert await fetched(server.url("/sized"), given) == (big, len(big))
        assert await fetched(server.url("/empty"), given) == (b"", 0)
        assert await fetched(server.url("/closed"), given) == (big, None)
        assert await fetched(server.url("/chunked"), given) == (big, None)
        assert await fetched(server.url("/moved"), given) == (big, len(big))
        assert all(b"Accept-Encoding: identity" in asked for asked in server.asked)
        assert all(asked.startswith(b"GET /") for asked in server.asked)
        assert len(server.asked) == 6  # one for each, and one more for the redirect


FAULTS = {
    "/missing": "expired",
    "/expired": "expired",
    "/refused": "expired",
    "/broken": "500",
    "/page": "web page",
    "/short": "cut off",
    "/torn": "cut off",
    "/nonsense": "cut off",
    "/nothing": "cut off",
    "/loop": "leads on",
    "/zipped": "coded form",
    "/down": "only https",
    "/inside": "not on the open internet",
    "/mail": "only https",
}


async def test_opening_and_hashing_end_in_time() -> None:
    answers = {"/nothing": OK, "/head": sized(b"", said=9), "/half": sized(said=9999)}
    async with serving(answers) as server:
        server.silent = set(answers)
        given = bounds(server, seconds=0.05)
        with anyio.fail_after(10):
            for path in ("/nothing", "/head"):
                feed = Download(Attachment(download_url=server.url(path), file_id="f"), given)
                with pytest.raises(DownloadFailed, match="took longer"):
                    await feed.open(None)
            feed = Download(Attachment(download_url=server.url("/half"), file_id="f"), given)
            with pytest.raises(DownloadFailed, match="took longer"):
                await feed.digest(9999)


async def test_an_endless_row_of_hints_is_no_answer() -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with serving({"/few": hint * 10 + sized(), "/many": hint * 11 + sized()}) as server:
        assert await fetched(server.url("/few"), bounds(server)) == (BODY, len(BODY))
        assert "gave no answer" in str(await failing(server.url("/many"), bounds(server)))


async def test_each_fault_has_its_own_words() -> None:
    answers = {
        "/expired": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
        "/refused": b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n",
        "/broken": b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
        "/page": sized(b"<html>sign in</html>", more=b"Content-Type: text/html; charset=utf-8\r\n"),
        "/short": sized(said=len(BODY) + 10),
        "/torn": OK + b"Transfer-Encoding: chunked\r\n\r\nff\r\nabc",
        "/nonsense": b"\x00\x01\x02\r\n\r\n",
        "/nothing": b"",
        "/loop": b"HTTP/1.1 302 Found\r\nLocation: /loop\r\nContent-Length: 0\r\n\r\n",
        "/zipped": sized(more=b"Content-Encoding: gzip\r\n"),
        "/down": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.2:1/x\r\nContent-Length: 0\r\n\r\n",
        "/inside": b"HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1:1/x\r\nContent-Length: 0\r\n\r\n",
        "/mail": b"HTTP/1.1 302 Found\r\nLocation: ftp://host/x\r\nContent-Length: 0\r\n\r\n",
    }
    async with serving(answers) as server:
        given = bounds(server)
        for path, words in FAULTS.items():
            error = await failing(server.url(path), given)
            assert error.code == "download_failed", path
            assert words in str(error), (path, str(error))
        assert (await fetched(server.url("/page"), given, mime_type="text/html"))[0].startswith(b"<html>")
        error = await failing(server.url("/short"), given._replace(max_bytes=5))
        assert error.code == "too_large"
        answers["/endless"] = OK + b"\r\n" + BODY * 1000
        error = await failing(server.url("/endless"), given._replace(max_bytes=5000))
        assert error.code == "too_large"
    error = await failing(server.url("/gone"), given)
    assert "cannot be reached" in str(error)


CLOSED = [
    *("127.0.0.1", "127.8.8.8", "0.0.0.1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "100.127.255.255", "192.0.0.8", "198.18.0.1", "224.0.0.1"),
    *("240.0.0.1", "255.255.255.255", "168.63.129.16", "192.0.2.1", "198.51.100.1", "203.0.113.1"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "::ffff:127.0.0.1"),
    *("::ffff:10.0.0.1", "::ffff:100.64.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::"),
    *("2001::1", "2001:db8::1", "fec0::1", "::127.0.0.1", "nonsense"),
]
OPEN = [
    "1.1.1.1",
    "8.8.8.8",
    "100.63.255.255",
    "172.32.0.1",
    "2606:4700::1111",
    "::ffff:1.1.1.1",
    "64:ff9b::101:101",
]


@pytest.mark.parametrize("address", CLOSED)
def test_no_address_of_a_closed_network_is_reached(address: str) -> None:
    """S16: loopback, private, link-local, carriers' own, multicast, and all of them inside IPv6."""
    assert not is_open(address)


@pytest.mark.parametrize("address", OPEN)
def test_the_open_internet_is_reached(address: str) -> None:
    assert is_open(address)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://host/x",
            "ftp://host/x",
            "file:///etc/passwd",
            "data:,x",
            "//host/x",
            "",
            "https://",
            "https://:1/",
        ),
        *(
            "https://user@host/x",
            "https://user:pw@host/x",
            "https://host:99999/",
            "https://ho st/",
            "https://h/\n",
        ),
        *("https://host/" + "x" * 9000, "https://ex\u00e4mple/"),
    ],
)
def test_what_is_no_plain_https_address_is_refused(url: str) -> None:
    with pytest.raises(DownloadFailed):
        target(url, Allowed())


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"]
)
async def test_a_name_that_leads_inside_is_not_connected_to(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S16: however it is written."""
    reached: list[str] = []

    async def connect(host: str, port: int) -> object:
        reached.append(host)
        raise OSError("nobody listens")

    monkeypatch.setattr("chappie_broker.download.anyio.connect_tcp", connect)
    assert "open internet" in str(await failing(f"https://{host}/x", Bounds()))
    assert reached == []


async def test_what_was_checked_is_what_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """S16: one look-up for each request; a name that means two things is not asked twice, and one closed
    address among several is enough to refuse."""
    asked: list[str] = []
    reached: list[str] = []

    async def lookup(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        addresses = ["1.1.1.1"] if len(asked) == 1 else ["127.0.0.1"]
        if host == "both":
            addresses = ["1.1.1.1", "10.0.0.1"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    async def connect(host: str, port: int) -> object:
        reached.append(host)
        raise OSError("not from here")

    monkeypatch.setattr("chappie_broker.download.anyio.getaddrinfo", lookup)
    monkeypatch.setattr("chappie_broker.download.anyio.connect_tcp", connect)
    await failing("https://rebinding/x", Bounds())
    assert (asked, reached) == (["rebinding"], ["1.1.1.1"])
    assert "open internet" in str(await failing("https://rebinding/x", Bounds()))
    assert "open internet" in str(await failing("https://both/x", Bounds()))
    assert reached == ["1.1.1.1"]


def contexts(directory: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's and a client's, that trust one another about `name`."""
    made = certify(directory, name)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*made)
    return server, ssl.create_default_context(cafile=str(made.certificate))


async def test_the_certificate_must_be_that_of_the_name_although_an_address_is_dialled(
    tmp_path: Path,
) -> None:
    theirs, ours = contexts(tmp_path, "localhost")
    listener, port = await listening()
    server = Server(port, {"/x": sized()})
    secure = anyio.streams.tls.TLSListener(listener, theirs, standard_compatible=False)
    given = Bounds(allowed=Allowed.of([f"localhost:{port}", f"127.0.0.1:{port}"]), tls=ours)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(secure.serve, server.serve)
        assert await fetched(server.url("/x", "localhost", "https"), given) == (BODY, len(BODY))
        error = await failing(server.url("/x", "127.0.0.1", "https"), given)
        assert "cannot be trusted" in str(error)
        error = await failing(server.url("/x", "localhost", "https"), given._replace(tls=None))
        assert "cannot be trusted" in str(error)
        tasks.cancel_scope.cancel()


async def test_an_attachment_lies_in_the_project_or_nothing_does(tmp_path: Path) -> None:
    """B81: also when the bytes end too early, the old file is whole and there is no new one."""
    answers = {
        "/good": sized(BODY * 9999),
        "/short": sized(said=10**6),
        "/page": sized(more=b"Content-Type: text/html\r\n"),
    }
    with room() as here:
        async with serving(answers) as server, world(tmp_path, here, bounds(server)) as w:
            a = await w.agent("a")
            (a.directory / "old").write_bytes(b"old")

            def send(**names: str) -> Transfer:
                return Transfer(
                    caller=CHAT,
                    session=a.id,
                    paths=tuple(names),
                    attachments=tuple(
                        Attachment(download_url=server.url(path), file_id=path) for path in names.values()
                    ),
                    overwrite="old" in names,
                )

            view = await w.move(send(new="/good", torn="/short", page="/page"))
            assert view.status is Status.FAILED
            codes = [each.error.code if each.error else None for each in view.files]
            assert codes == [None, "download_failed", "download_failed"]
            assert (a.directory / "new").read_bytes() == BODY * 9999
            with anyio.fail_after(10):
                while a.leftovers():  # noqa: ASYNC110 - the disk tells nobody
                    await anyio.sleep(0.001)
            assert sorted(path.name for path in a.directory.iterdir() if path.is_file()) == ["new", "old"]
            view = await w.move(send(old="/short"))
            assert view.status is Status.FAILED
            assert (a.directory / "old").read_bytes() == b"old"
            assert (await w.move(send(old="/good"))).status is Status.DONE
            assert (a.directory / "old").read_bytes() == BODY * 9999
