"""Every answer of a real bridge in these tests is short enough for who reads it."""

from collections.abc import AsyncIterator, Iterator, Mapping

import httpx2
import pytest

from chappie_bridge.demo import tunnel
from chappie_bridge.demo.http import Response, post
from tests.peer.budget import Budget


class Heard(httpx2.AsyncByteStream):
    """A body that is looked at once it has been read to its end."""

    def __init__(self, stream: httpx2.AsyncByteStream, budget: Budget) -> None:
        self._stream, self._budget = stream, budget

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async for part in self._stream:
            body += part
            yield part
        self._budget.look(bytes(body))

    async def aclose(self) -> None:
        await self._stream.aclose()


@pytest.fixture(autouse=True)
def budget(monkeypatch: pytest.MonkeyPatch) -> Iterator[Budget]:
    """Looks where answers arrive, at the clients' HTTP and at the tunnel's: the bridge is another process."""
    budget = Budget()
    send = httpx2.AsyncHTTPTransport.handle_async_request

    async def handle(self: httpx2.AsyncHTTPTransport, request: httpx2.Request) -> httpx2.Response:
        response = await send(self, request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = Heard(response.stream, budget)
        return response

    async def posted(url: str, headers: Mapping[str, str], body: bytes) -> Response:
        response = await post(url, headers, body)
        budget.look(response.body)
        return response

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", handle)
    monkeypatch.setattr(tunnel, "post", posted)
    yield budget
    assert not budget.over
