"""Binary frames are cut out of a websocket's bytes; the protocol gets all others, unchanged and in order."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from chappie_bridge.binary import Binary, Cutter, binary_frame
from chappie_bridge.websocket import WebSocket

LIMIT = 70_000
APART = 16

payloads = st.one_of(
    st.binary(max_size=300), st.sampled_from([125, 126, 65535, 65536, LIMIT, LIMIT + 1]).map(bytes)
)
messages = st.tuples(st.sampled_from([Opcode.BINARY, Opcode.TEXT, Opcode.PING]), payloads).filter(
    lambda each: each[0] is not Opcode.PING or len(each[1]) <= 125
)


def cut(cutter: Cutter, pieces: list[bytes]) -> list[Binary | bytes]:
    """What came out, with the protocol's bytes put together."""
    found: list[Binary | bytes] = []
    for piece in pieces:
        for part in cutter.feed(piece):
            if isinstance(part, bytes) and found and isinstance(found[-1], bytes):
                found[-1] += part
            else:
                found.append(part)
    return found


def split(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(st.lists(messages, max_size=6), st.lists(st.integers(0, 2**20), max_size=12), st.booleans())
def test_frames_in_any_pieces_come_out_whole_and_in_order(
    given_: list[tuple[Opcode, bytes]], places: list[int], masked: bool
) -> None:
    expected: list[Binary | bytes] = []
    stream = b""
    for opcode, data in given_:
        frame = Frame(opcode, data).serialize(mask=masked)
        stream += frame
        if opcode is Opcode.BINARY and APART <= len(data) <= LIMIT:
            expected.append(Binary(data[:APART], data[APART:]))
        elif expected and isinstance(expected[-1], bytes):
            expected[-1] += frame
        else:
            expected.append(frame)
    assert cut(Cutter(masked=masked, limit=LIMIT, apart=APART), split(stream, places)) == expected


@given(st.binary(max_size=300), st.booleans())
def test_a_frame_that_was_made_here_is_one_for_the_protocol(data: bytes, masked: bool) -> None:
    head = bytes(range(APART))
    made = b"".join(binary_frame(head, data, masked=masked))
    reader = StreamReader()
    reader.feed_data(made)
    with pytest.raises(StopIteration) as ended:
        next(Frame.parse(reader.read_exact, mask=masked))
    assert ended.value.value == Frame(Opcode.BINARY, head + data)


@pytest.mark.parametrize("masked", [True, False])
def test_a_frame_of_the_wrong_side_or_with_reserved_bits_is_left_to_the_protocol(masked: bool) -> None:
    cutter = Cutter(masked=masked, limit=LIMIT, apart=APART)
    wrong = Frame(Opcode.BINARY, bytes(50)).serialize(mask=not masked)
    reserved = Frame(Opcode.BINARY, bytes(50)).serialize(mask=masked)
    reserved = bytes([reserved[0] | 0x40]) + reserved[1:]
    assert cut(cutter, [wrong, reserved]) == [wrong + reserved]


def test_a_message_in_the_middle_of_another_is_left_to_the_protocol() -> None:
    cutter = Cutter(masked=False, limit=LIMIT, apart=APART)
    whole = Frame(Opcode.BINARY, bytes(50)).serialize(mask=False)
    begun = Frame(Opcode.BINARY, bytes(50), fin=False).serialize(mask=False)
    ping = Frame(Opcode.PING, b"").serialize(mask=False)
    last = Frame(Opcode.CONT, bytes(50)).serialize(mask=False)
    found = cut(cutter, [begun, ping, whole, last, whole])
    assert found == [begun + ping + whole + last, Binary(bytes(APART), bytes(50 - APART))]


class Heard(WebSocket):
    """Remembers what it heard."""

    def __init__(self) -> None:
        self.server = ServerProtocol()
        super().__init__(self.server, 10.0)
        self.said: list[object] = []

    def opening(self, event: Request | Response) -> None:
        assert isinstance(event, Request)
        self.server.send_response(self.server.accept(event))
        self.flush()

    def text(self, data: bytes) -> None:
        self.said.append(data)

    def binary(self, head: bytes, data: bytes) -> None:
        self.said.append((head, data))

    def closed(self, codes: frozenset[int]) -> None:
        self.said.append(codes)


class Sink(asyncio.Transport):
    """Takes everything."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass


@pytest.mark.anyio
@pytest.mark.parametrize("step", [1, 3, 50, 10_000])
async def test_frames_that_come_right_behind_the_opening_are_heard(step: int) -> None:
    headers = Headers(
        Host="x",
        Upgrade="websocket",
        Connection="Upgrade",
        **{"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"},
    )
    stream = Request("/", headers).serialize()
    stream += Frame(Opcode.BINARY, bytes(40)).serialize(mask=True)
    stream += Frame(Opcode.TEXT, b"hello").serialize(mask=True)
    stream += Frame(Opcode.BINARY, bytes(4), fin=False).serialize(mask=True)
    stream += Frame(Opcode.CONT, bytes(16)).serialize(mask=True)
    socket = Heard()
    socket.connection_made(Sink())
    for start in range(0, len(stream), step):
        socket.data_received(stream[start : start + step])
    assert socket.said == [(bytes(16), bytes(24)), b"hello", (bytes(16), bytes(4))]
