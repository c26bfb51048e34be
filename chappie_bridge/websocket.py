"""One websocket connection on an asyncio loop, of either side; knows no link, no broker and no agent.

The parsing is `websockets`' own Sans-I/O protocol.  Its asyncio layer is not used: it wakes a task for
each message and keeps two tasks for each connection.
"""

import asyncio
import logging
import socket
from collections import deque
from contextlib import suppress
from typing import cast

from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import CLIENT, CONNECTING, OPEN
from websockets.server import ServerProtocol

from .binary import Cutter, binary_frame
from .wire.errors import Lost
from .wire.link import CHUNK_HEADER
from .wire.messages import MAX_MESSAGE

MAX_FRAME = MAX_MESSAGE + 256
"""Bytes of one websocket message: a message of ours and its numbers."""

MAX_FRAGMENTS = 1024
"""Fragments of one message, should something on the way cut it up."""

BURST = 64 * 1024
"""Bytes of text frames that are written together at most."""

MAX_WAITING = 20_000
"""Frames that wait for a slow socket.  A link's window lets half as many wait; acknowledgements come on
top for a peer that sends and never reads."""

MAX_UNREAD = 4 * 1024 * 1024
"""Bytes that the socket has not taken.  Our own frames stop at its first refusal; only answers to
somebody's pings go on."""

MAX_UNSENT = 128 * 1024
"""Bytes that the system may hold before they are on their way.  Left alone, it takes megabytes of chunks for
a slow network, and a message waits behind them for seconds."""

BEAT = 0.85
DOUBT = 0.25
"""Parts of `ping` between two looks, and before a last one: twice the first and the second are below 2."""

CLOSE_AFTER = 1.0
"""Seconds that the peer has to answer a close; then the connection is cut."""

QUIET = logging.getLogger("chappie_bridge.websocket")
"""The protocol's own logger.  It never goes below WARNING: at DEBUG it would write tokens down."""
QUIET.setLevel(logging.WARNING)


class WebSocket(asyncio.Protocol):
    """Subclasses say what an opening, a frame and the end mean; nothing here waits for them.

    `ping` in seconds: at most so long between two pings, and a peer silent for twice that is dead.
    """

    def __init__(self, protocol: ServerProtocol | ClientProtocol, ping: float) -> None:
        self.protocol = protocol
        self._ping = ping
        self._loop = asyncio.get_running_loop()
        self._heard = 0  # reads, ever
        self._heard_before = 0
        self._doubted = False
        self._gathering = False
        self._gathered = 0
        self._paused = False
        self._waiting: deque[bytes] = deque()
        self._parts: list[bytes] = []
        self._http: bytes | None = b""  # the last bytes of an opening that is not over
        self._cutter = Cutter(masked=protocol.side is not CLIENT, limit=MAX_FRAME, apart=CHUNK_HEADER)
        self._one_chunk = asyncio.Lock()
        self._drained = asyncio.Event()
        self._drained.set()
        self._timer: asyncio.TimerHandle | None = None
        self._close: asyncio.TimerHandle | None = None

    # --- what happens, for subclasses ---

    def opening(self, event: Request | Response) -> None:
        """The HTTP half of the handshake arrived."""
        raise NotImplementedError

    def text(self, data: bytes) -> None:
        raise NotImplementedError

    def binary(self, head: bytes, data: bytes) -> None:
        """`head` has the first `CHUNK_HEADER` bytes, as far as there are so many."""
        raise NotImplementedError

    def closed(self, codes: frozenset[int]) -> None:
        """The connection is gone; `codes` are the close codes that either side sent."""
        raise NotImplementedError

    # --- what can be done ---

    @property
    def is_open(self) -> bool:
        return self.protocol.state is OPEN

    def write(self, frame: str) -> None:
        """Send a text frame.  The first of an iteration of the loop leaves at once, more go together;
        while the socket takes nothing they wait here (the link's window bounds them)."""
        if self.protocol.state is not OPEN:
            return
        data = frame.encode("utf-8")
        if self._paused:
            self._waiting.append(data)
            if len(self._waiting) > MAX_WAITING:
                self.abort()
            return
        self.protocol.send_text(data)
        self._gathered += len(data)
        if not self._gathering:
            self._gathering = True
            self._loop.call_soon(self._release)
            self.flush()
        elif self._gathered > BURST:
            self.flush()

    async def write_chunk(self, head: bytes, data: bytes) -> None:
        """Send both as one binary frame when the socket is empty; text frames overtake it until then.

        :raises Lost: when the connection is closed, now or while waiting."""
        async with self._one_chunk:
            await self.drain()
            self.flush()
            self._transport.writelines(binary_frame(head, data, masked=self.protocol.side is CLIENT))
            await self.drain()

    async def drain(self) -> None:
        """Wait until the socket has taken all that was written.  :raises Lost: when it is closed."""
        await self._drained.wait()
        if not self.is_open:
            raise Lost("The link went down.")

    def close(self, code: int, reason: str = "") -> None:
        """Start the closing handshake; cut the connection if the peer does not join in."""
        if self.protocol.state is OPEN:
            self.protocol.send_close(code, reason.encode("utf-8")[:120].decode("utf-8", "ignore"))
            self.flush()
        elif self.protocol.state is CONNECTING:
            self.abort()
        self._expect_the_end()

    def abort(self) -> None:
        """Cut the connection now."""
        self._transport.abort()

    def start_pings(self) -> None:
        self._timer = self._loop.call_later(self._ping * BEAT, self._tick)

    def flush(self) -> None:
        """Write what the protocol wants to send."""
        self._gathered = 0
        writes = self.protocol.data_to_send()
        if not writes or self._transport.is_closing():
            return
        ends = writes[-1] == b""
        self._transport.write(b"".join(writes) if len(writes) > 1 else writes[0])
        if ends:
            self._expect_the_end()
            if self._transport.can_write_eof():
                self._transport.write_eof()
            elif self._is_strange():
                self._transport.pause_reading()  # TLS would decipher all that comes until it is cut
            else:
                self._transport.close()
        elif self._paused and self._transport.get_write_buffer_size() > MAX_UNREAD:
            self.abort()

    # --- asyncio's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # Paused whenever the kernel takes no more: a frame waits behind one chunk at most.
        # One, not zero: asyncio's TLS transport pauses at `high`, not above it.
        self._transport.set_write_buffer_limits(high=1, low=0)
        _bound_unsent(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self._heard += 1
        self._gathering = True  # the answers to what came together go together
        if self._http is not None:
            data = self._opened(self._http, data)
        for part in self._cutter.feed(data):
            if isinstance(part, bytes):
                self._parse(part)
            elif self.protocol.state is OPEN:
                self.binary(part.head, part.data)
        self._release()

    def eof_received(self) -> None:
        self._ended()
        self.flush()

    def pause_writing(self) -> None:
        self._paused = True
        self._drained.clear()

    def resume_writing(self) -> None:
        self._paused = False
        while self._waiting and not self._paused:
            while self._waiting and self._gathered < BURST:
                data = self._waiting.popleft()
                if self.is_open:
                    self.protocol.send_text(data)
                self._gathered += len(data)
            self.flush()
        if not self._paused:
            self._drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
        self.protocol.parser.close()  # it and the protocol would keep one another
        for timer in (self._timer, self._close):
            if timer is not None:
                timer.cancel()
        self._waiting.clear()
        self._drained.set()
        closes = (self.protocol.close_rcvd, self.protocol.close_sent)
        self.closed(frozenset(close.code for close in closes if close is not None))

    # --- the rest ---

    def _ended(self) -> None:
        """Of an opening that is not over the protocol would only make an error that nobody reads, and that
        keeps itself in memory until the collector comes."""
        if self.protocol.state is not CONNECTING:
            self.protocol.receive_eof()

    def _is_strange(self) -> bool:
        """Whoever dialled us sent what is no websocket: of one like that nothing more is of use."""
        wrong = self.protocol.parser_exc or self.protocol.handshake_exc
        return wrong is not None and self.protocol.side is not CLIENT

    def _opened(self, before: bytes, data: bytes) -> bytes:
        """What came after the opening; of one that did not end well the protocol gets all."""
        end = (before + data).find(b"\r\n\r\n") - len(before) + 4
        if end < 4 - len(before):
            self._http = (before + data)[-3:]
            end = len(data)
        self._parse(data[:end])
        if self.protocol.state is OPEN:
            self._http = None
            return data[end:]
        self._parse(data[end:])
        return b""

    def _parse(self, data: bytes) -> None:
        self.protocol.receive_data(data)
        for event in self.protocol.events_received():
            if not isinstance(event, Frame):
                self.opening(event)
            elif self.protocol.close_sent is None or self.protocol.close_rcvd_then_sent:
                self._take(event)

    def _take(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if not frame.fin or frame.opcode is Opcode.CONT:
            self._gather(frame)
        elif frame.opcode is Opcode.TEXT:
            self.text(bytes(frame.data))
        else:
            self._binary(bytes(frame.data))

    def _gather(self, frame: Frame) -> None:
        if frame.opcode is not Opcode.CONT:
            self._parts_are_text = frame.opcode is Opcode.TEXT
        self._parts.append(bytes(frame.data))
        if len(self._parts) > MAX_FRAGMENTS:
            self.close(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
        elif frame.fin:
            data = b"".join(self._parts)
            self._parts.clear()
            (self.text if self._parts_are_text else self._binary)(data)

    def _binary(self, data: bytes) -> None:
        self.binary(data[:CHUNK_HEADER], data[CHUNK_HEADER:])

    def _release(self) -> None:
        self._gathering = False
        self.flush()

    def _expect_the_end(self) -> None:
        if self._close is None:
            self._close = self._loop.call_later(CLOSE_AFTER, self.abort)

    def _tick(self) -> None:
        heard, self._heard_before = self._heard != self._heard_before, self._heard
        if not heard and self._doubted:
            self.abort()
            return
        # The dialling side pings all the time; the other side asks back only when it hears nothing.
        if self.is_open and (not heard or self.protocol.side is CLIENT):
            self.protocol.send_ping(b"")
            self.flush()
        # A second look before the verdict: it may be this loop that was held up, not the peer.
        self._doubted = not heard
        self._timer = self._loop.call_later(self._ping * (BEAT if heard else DOUBT), self._tick)


def _bound_unsent(connection: socket.socket | None) -> None:
    """Only TCP can; a unix socket holds no more than about so much anyway."""
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, AttributeError):  # not every system knows it
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT)
