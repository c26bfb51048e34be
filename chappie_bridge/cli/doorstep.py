"""What a connection may cost before its request has come whole.  Bounds uvicorn's HTTP; reads no request.

uvicorn waits for the end of a head for ever and keeps whatever was sent of it, so that a client that
begins many requests and ends none would take all descriptors and all memory.
"""

import asyncio
import resource
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10.0
"""From the connection, or from the first byte of a further request, until its head has come whole; the same
for the rest of a body whose request was answered already."""

HEAD_BYTES = 32 * 1024

MAX_WAITING = 512
"""Connections whose head or rest is waited for; above it whoever has waited for longer than `BURST` goes, the
longest first.  A crowd of good clients that comes at one moment has sent its heads by then."""

BURST = 5.0
"""Seconds."""

MAX_BURST = 4096
"""Above it the one that waits for longest goes, however short that is."""

MAX_CONNECTIONS = 12_000
"""All of them, where there are descriptors for so many.  Above it the one goes that has been silent for
longest between two requests; where more than half are still to send a head, the first of those."""


A_TURN = 2
"""Connections whose first words are read, or whose end is dealt with, in one turn of the loop.  The others of
a crowd that comes or goes at one moment are for its next turns: who is served already gets his in between."""


class _Cycle(Protocol):
    response_complete: bool


class Doorstep:
    """All connections of one server.  `message_max`: bytes of one request, however it is encoded."""

    def __init__(self, message_max: int) -> None:
        self.message_max = message_max
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(MAX_CONNECTIONS, descriptors * 3 // 4)  # the broker needs some for itself
        self._all: set[Any] = set()
        self._new: set[Any] = set()
        """Those that have said nothing yet."""
        self._waiting: OrderedDict[Any, asyncio.TimerHandle] = OrderedDict()
        self._silent: OrderedDict[Any, None] = OrderedDict()
        self._line: deque[Callable[[], None]] = deque()
        """At most two for each connection: its first words and its end."""
        self._taken = 0

    def in_turn(self, step: Callable[[], None]) -> bool:
        """Make a connection's first or last `step`; False: only in a later turn of the loop."""
        now = not self._line and self._taken < A_TURN
        if not self._taken:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._taken += 1
        if now:
            step()
        else:
            self._line.append(step)
        return now

    def _next_turn(self) -> None:
        self._taken = min(len(self._line), A_TURN)
        if self._taken:
            asyncio.get_running_loop().call_soon(self._next_turn)
        for _ in range(self._taken):
            self._line.popleft()()

    def came(self, connection: Any) -> None:
        self._all.add(connection)
        self._new.add(connection)
        if len(self._all) > self._most:
            crowded = self._waiting if len(self._waiting) > self._most // 2 else self._silent
            next(iter(crowded), connection).transport.abort()
        self.expect(connection)

    def went(self, connection: Any) -> None:
        self._all.discard(connection)
        self._new.discard(connection)
        self.served(connection)

    def hear(self, connection: Any, data: bytes, read: Callable[[bytes], None]) -> None:
        """What a connection says; its first words are read in its turn, and until then it sends no more."""
        if connection not in self._new:
            read(data)
            return
        self._new.discard(connection)

        def proceed() -> None:
            if not connection.transport.is_closing():
                connection.transport.resume_reading()
                read(data)

        if not self.in_turn(proceed):
            self.served(connection)  # it sent something; that it waits is our affair
            connection.transport.pause_reading()

    def silent(self, connection: Any) -> None:
        """Its answer is out, and nothing of another request has come."""
        self._silent[connection] = None
        self._silent.move_to_end(connection)

    def expect(self, connection: Any) -> None:
        """More has to come soon.  Asking twice gives no more time."""
        self._silent.pop(connection, None)
        if connection in self._waiting:
            return
        loop = asyncio.get_running_loop()
        self._waiting[connection] = loop.call_later(HEAD_SECONDS, connection.transport.abort)
        while len(self._waiting) > MAX_WAITING:
            oldest, timer = next(iter(self._waiting.items()))
            waited = loop.time() - (timer.when() - HEAD_SECONDS)
            if waited < BURST and len(self._waiting) <= MAX_BURST:
                break
            self.served(oldest)
            oldest.transport.abort()

    def served(self, connection: Any) -> None:
        """What was expected has come."""
        self._silent.pop(connection, None)
        timer = self._waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()


def protocol(doorstep: Doorstep) -> Callable[..., asyncio.Protocol]:
    """For `uvicorn.Config(http=…)`: its fastest protocol that is installed, with bounds."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return partial(_over_h11(), doorstep)
    return partial(_over_httptools(HttpToolsProtocol), doorstep)


def _over_httptools(base: "type[HttpToolsProtocol]") -> Callable[..., asyncio.Protocol]:
    class Bounded(base):  # type: ignore[misc,valid-type] # its base is whichever is installed
        """Its parser keeps a head's pieces without a bound."""

        def __init__(self, doorstep: Doorstep, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            self._doorstep = doorstep
            self._in_head = True
            self._bytes = 0
            self._whole = False
            """The last piece brought the end of a message."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._doorstep.came(self)

        def connection_lost(self, exc: Exception | None) -> None:
            self._doorstep.went(self)
            self._doorstep.in_turn(partial(super().connection_lost, exc))

        def data_received(self, data: bytes) -> None:
            self._doorstep.hear(self, data, self._read)

        def _read(self, data: bytes) -> None:
            self._bytes += len(data)
            limit = HEAD_BYTES if self._in_head else self._doorstep.message_max
            # A piece that ends one message may begin the next; what it leaves over is counted with the next.
            if self._bytes > limit + len(data):
                self.transport.abort()
                return
            self._whole = False
            super().data_received(data)
            if self._in_head:
                if not self._whole:
                    self._doorstep.expect(self)
            elif _done(self.cycle):
                self._doorstep.expect(self)

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._doorstep.served(self)
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._in_head = self._whole = True
            self._bytes = 0
            self._doorstep.served(self)
            super().on_message_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                return
            if self._in_head and not self._bytes:
                self._doorstep.silent(self)
            elif not self._in_head and self.cycle.response_complete:
                self._doorstep.expect(self)

    return Bounded


def _over_h11() -> Callable[..., asyncio.Protocol]:
    class Bounded(H11Protocol):
        """Its parser has bounds of its own for a head; time it has none."""

        def __init__(self, doorstep: Doorstep, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            self._doorstep = doorstep

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # a concrete transport
            super().connection_made(transport)
            self._doorstep.came(self)

        def connection_lost(self, exc: Exception | None) -> None:
            self._doorstep.went(self)
            self._doorstep.in_turn(partial(super().connection_lost, exc))

        def data_received(self, data: bytes) -> None:
            self._doorstep.hear(self, data, self._read)

        def _read(self, data: bytes) -> None:
            super().data_received(data)
            self._look(came=True)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._look(came=False)

        def _look(self, *, came: bool) -> None:
            if self.transport.is_closing():
                return
            if self.cycle and not _done(self.cycle):
                self._doorstep.served(self)
            elif came or self.conn.their_state is h11.SEND_BODY:
                self._doorstep.expect(self)
            else:
                self._doorstep.served(self)
                self._doorstep.silent(self)

    return Bounded


def _done(cycle: "_Cycle | None") -> bool:
    """Is the newest request answered?  uvicorn has None before the first, whatever it declares."""
    return cycle is not None and cycle.response_complete
