"""Accepts connections, over TLS with a handshake; who is through is somebody else's.  Reads no byte.

asyncio's own server takes all that wait at one moment before anybody else has a turn, and has no bound on
handshakes that are not finished: each holds a socket and its buffers.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from .guard import neighbourhood

_log = logging.getLogger(__name__)

BACKLOG = 4096
"""Connections that the kernel keeps meanwhile: after a restart of the broker all agents come at once."""

MAX_HALF_OPEN = 256
"""Handshakes at once.  For one more, the oldest of the address that has most of them is cut."""

TURN = 0.002
"""Seconds that a handshake may keep the next one waiting.  It costs a millisecond of processor time, and with
many side by side each message of whoever is in would wait for all of them."""

BREATH = 0.1
"""Seconds before the next try when the process has no file left."""


class Door:
    """`made` gives the protocol of a connection that is through; `within`: seconds of a handshake, where a
    `context` asks for one.  Nobody is let in before `entry` comes to its end; they wait in the kernel."""

    def __init__(
        self,
        made: Callable[[], asyncio.Protocol],
        *,
        within: float,
        context: ssl.SSLContext | None = None,
        entry: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._context, self._made, self._within, self._entry = context, made, within, entry
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._half_open: dict[asyncio.Task[None], str] = {}

    async def open(self, host: str, port: int) -> int:
        """Listen; gives the port.  :raises OSError: it is taken."""
        found = await self._loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listeners: list[socket.socket] = []
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                # Named as TCP, or asyncio would leave Nagle's algorithm on.
                listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
                listeners.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                taken = listeners[0].getsockname()[1] if len(listeners) > 1 else port
                listener.bind((address[0], taken, *address[2:]))
                self.open_at(listener)
        except OSError:
            for listener in listeners:
                listener.close()
            self.close()
            raise
        return int(listeners[0].getsockname()[1])

    def open_at(self, listener: socket.socket) -> None:
        """Listen on a socket that is bound; it is closed with the door.  :raises OSError:"""
        listener.setblocking(False)
        listener.listen(BACKLOG if self._context is None else MAX_HALF_OPEN)
        self._listeners.append(listener)
        self._accepting.add(self._loop.create_task(self._accept(listener)))

    def close(self) -> None:
        for task in (*self._accepting, *self._half_open):
            task.cancel()
        for listener in self._listeners:
            if listener.fileno() >= 0:
                self._loop.remove_reader(listener)
            listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        if self._entry is not None:
            await self._entry()
        while True:
            try:
                connection, address = await self._loop.sock_accept(listener)
            except OSError as error:
                _log.warning("cannot accept: %s", error)
                await asyncio.sleep(BREATH)
                continue
            if self._context is None:
                await self._let_in(connection)  # one after the other: who is in has his turns in between
                continue
            if len(self._half_open) >= MAX_HALF_OPEN:
                crowded = Counter(self._half_open.values()).most_common(1)[0][0]
                next(task for task, where in self._half_open.items() if where == crowded).cancel()
            task = self._loop.create_task(self._let_in(connection))
            self._half_open[task] = neighbourhood(address)
            task.add_done_callback(self._half_open.pop)
            await asyncio.wait((task,), timeout=TURN)

    async def _let_in(self, connection: socket.socket) -> None:
        within = None if self._context is None else self._within
        try:
            await self._loop.connect_accepted_socket(
                self._made, connection, ssl=self._context, ssl_handshake_timeout=within
            )
        except (OSError, TimeoutError) as error:
            _log.debug("a connection without a handshake: %s", error)
            connection.close()
        except asyncio.CancelledError:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
            raise
