"""A connection on real sockets."""

import asyncio
import socket

import anyio
import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol

from chappie_bridge.websocket import MAX_UNSENT, WebSocket

pytestmark = pytest.mark.anyio


class Server(WebSocket):
    """Accepts whoever comes."""

    def __init__(self) -> None:
        self.server = ServerProtocol()
        super().__init__(self.server, 10.0)
        self.ready = asyncio.Event()

    def opening(self, event: object) -> None:
        assert isinstance(event, Request)
        self.server.send_response(self.server.accept(event))
        self.flush()
        self.ready.set()

    def closed(self, codes: frozenset[int]) -> None:
        pass


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="wrong platform: it has no such bound")
async def test_what_a_slow_network_has_not_taken_waits_here_where_messages_overtake_it() -> None:
    loop = asyncio.get_running_loop()
    headers = Headers(
        {
            "Host": "x",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version": "13",
        }
    )
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(listening.getsockname())
        slow.sendall(Request("/", headers).serialize())
        _, server = await loop.connect_accepted_socket(Server, listening.accept()[0])
        await server.ready.wait()
        taken = 0
        with anyio.move_on_after(0.5):  # until it takes no more: it has nothing else to wait for
            while True:
                await server.write_chunk(bytes(16), bytes(64 * 1024))
                taken += 64 * 1024
        assert taken <= 2 * MAX_UNSENT
        server.abort()
