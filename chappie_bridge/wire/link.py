"""The link's numbering, acknowledgement and replay, and its encoding.  No socket, no clock.

Text frames are JSON: `{"hello":…}`, `{"welcome":…}`, `{"a":ack}` or `{"n":number,"a":ack,"m":message}`.
Binary frames are chunks: `[stream u64 | offset u64 | bytes]`, outside the replay buffer.
"""

import struct
from collections import deque
from typing import Literal, NamedTuple

import pydantic
import pydantic_core
from pydantic import Field, TypeAdapter

from .blocks import Value
from .errors import BridgeError, Failure, Overloaded, TooLarge, Unsupported, VersionMismatch
from .ids import DeviceId, InstanceId
from .messages import MAX_MESSAGE, Message
from .table import MESSAGES

PROTOCOL = 1
"""Version of the union.  Peers that differ in it still talk while each knows the other's messages."""

SUBPROTOCOL = "chappie.v1"

REPLAY_MESSAGES = 10_000
REPLAY_BYTES = 64 * 1024 * 1024
"""Bounds of what is kept for replay; above either, `send` is Overloaded."""

ACK_EVERY = 32
"""Messages received after which an acknowledgement goes out even if nothing else does."""

_CHUNK = struct.Struct(">QQ")
CHUNK_HEADER = _CHUNK.size
CHUNK_BYTES = 128 * 1024
"""Bytes of one chunk.  Fewer cost more CPU at each of three processes; a message may wait behind one."""


class Hello(Value):
    """The first frame of whoever dials.  `received` is the last number it has from this peer's
    instance `of`; both are empty at the first contact.  `token` never appears here: it is a header."""

    protocol: int
    role: Literal["agent", "caller"]
    instance: InstanceId
    of: InstanceId | None = None
    received: int = 0
    version: str = ""
    name: str = Field(default="", max_length=256)


class Welcome(Value):
    """The answer.  `resumed`: both sides know one another and replay; else both start from nothing."""

    protocol: int
    instance: InstanceId
    device: DeviceId
    resumed: bool
    received: int = 0
    version: str = ""


class Numbered(NamedTuple):
    number: int
    ack: int
    message: Message


class Ack(NamedTuple):
    ack: int


class Unknown(NamedTuple):
    """A numbered message of a type this version does not know, or that does not fit its type.
    `request` is set when the sender waits for an answer."""

    number: int
    ack: int
    type: str
    request: int | None


class LinkFault(Exception):
    """The peer sent what no peer of ours sends; the connection must be closed.  The text says what."""


ALL_TYPES = frozenset(MESSAGES)

_BY_TYPE = {name: row.model.__pydantic_validator__ for name, row in MESSAGES.items()}
_HELLO = TypeAdapter(Hello)
_WELCOME = TypeAdapter(Welcome)


def encode(message: Message) -> str:
    """The JSON of a message.  :raises TooLarge: above MAX_MESSAGE bytes."""
    text = message.model_dump_json(exclude_none=True)
    if len(text) > MAX_MESSAGE // 4 and len(text.encode("utf-8")) > MAX_MESSAGE:
        raise TooLarge(f"A message of {len(text)} characters does not fit the link.")
    return text


def frame(number: int, ack: int, encoded: str) -> str:
    return f'{{"n":{number},"a":{ack},"m":{encoded}}}'


def frame_ack(ack: int) -> str:
    return f'{{"a":{ack}}}'


def frame_hello(hello: Hello) -> str:
    return f'{{"hello":{hello.model_dump_json()}}}'


def frame_welcome(welcome: Welcome) -> str:
    return f'{{"welcome":{welcome.model_dump_json()}}}'


def frame_refused(error: BridgeError) -> str:
    return f'{{"refused":{error.failure().model_dump_json(exclude_none=True)}}}'


def decode(
    text: str | bytes, sendable: frozenset[str] = ALL_TYPES
) -> Numbered | Ack | Unknown | Hello | Welcome | Failure:
    """One text frame.  A message of a type that its sender may not send is as good as unknown.

    :raises LinkFault: when it is none of ours."""
    try:
        raw = pydantic_core.from_json(text)
    except ValueError as error:
        raise LinkFault(f"not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise LinkFault("a frame is a JSON object")
    try:
        if "m" in raw:
            return _decode_numbered(raw, sendable)
        if "hello" in raw:
            return _HELLO.validate_python(raw["hello"])
        if "welcome" in raw:
            return _WELCOME.validate_python(raw["welcome"])
        if "refused" in raw:
            return Failure.model_validate(raw["refused"])
        return Ack(_count(raw.get("a")))
    except pydantic.ValidationError as error:
        raise LinkFault(f"malformed frame: {error.error_count()} faults") from None


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise LinkFault("a frame's number is a natural number")
    return value


def _decode_numbered(raw: dict[str, object], sendable: frozenset[str]) -> Numbered | Unknown:
    number, ack, body = _count(raw.get("n")), _count(raw.get("a")), raw["m"]
    if not isinstance(body, dict):
        raise LinkFault("a message is a JSON object")
    kind = body.get("type")
    if isinstance(kind, str) and kind in sendable:
        try:
            return Numbered(number, ack, _BY_TYPE[kind].validate_python(body))
        except pydantic.ValidationError:
            pass  # a newer peer's form of a known type: answered like an unknown one
    request = body.get("request")
    return Unknown(number, ack, str(kind)[:64], request if type(request) is int else None)


def unsupported(unknown: Unknown) -> Unsupported:
    return Unsupported(f"This version of the bridge does not know the message {unknown.type!r}.")


def chunk_head(stream: int, offset: int) -> bytes:
    """What precedes the bytes of a chunk in its frame.  Apart from them: they are copied nowhere."""
    return _CHUNK.pack(stream, offset)


def unpack_head(head: bytes) -> tuple[int, int]:
    """Stream and offset.  :raises LinkFault: when it is not `CHUNK_HEADER` bytes long."""
    if len(head) != CHUNK_HEADER:
        raise LinkFault("a chunk is shorter than its header")
    stream, offset = _CHUNK.unpack(head)
    return stream, offset


class Window:
    """One direction each way of a link between two instances: numbers what goes out, keeps it until it
    is acknowledged, drops what came twice."""

    def __init__(self, max_messages: int = REPLAY_MESSAGES, max_bytes: int = REPLAY_BYTES) -> None:
        self.received = 0
        """Number of the last message taken in."""
        self._acked_out = 0
        self._sent = 0
        self._kept: deque[tuple[int, str]] = deque()
        self._kept_bytes = 0
        self._max_messages, self._max_bytes = max_messages, max_bytes

    def number(self, encoded: str) -> str:
        """The next frame to send for an encoded message.  :raises Overloaded: when the buffer is full."""
        if len(self._kept) >= self._max_messages or self._kept_bytes + len(encoded) > self._max_bytes:
            raise Overloaded("The peer has not acknowledged for too long.")
        self._sent += 1
        self._kept.append((self._sent, encoded))
        self._kept_bytes += len(encoded)
        return frame(self._sent, self.acknowledge(), encoded)

    def take(self, item: Numbered | Unknown | Ack) -> bool:
        """True when the message is new and must be acted on.  :raises LinkFault: on a gap, or when the
        peer acknowledges what was never sent."""
        self._drop(item.ack)
        if isinstance(item, Ack):
            return False
        if item.number <= self.received:
            return False
        if item.number != self.received + 1:
            raise LinkFault(f"message {item.number} after {self.received}")
        self.received = item.number
        return True

    def owes_ack(self) -> bool:
        """Has enough come in that an acknowledgement should go out on its own?"""
        return self.received - self._acked_out >= ACK_EVERY

    def acknowledge(self) -> int:
        """The number to acknowledge now; noted as told."""
        self._acked_out = self.received
        return self.received

    def replay(self, peer_received: int) -> list[str]:
        """The frames the peer lacks, in order.  :raises LinkFault: when it claims more than was sent."""
        self._drop(peer_received)
        return [frame(number, self.received, encoded) for number, encoded in self._kept]

    @property
    def unacknowledged(self) -> int:
        return len(self._kept)

    def _drop(self, ack: int) -> None:
        if ack > self._sent:
            raise LinkFault(f"acknowledged {ack}, sent {self._sent}")
        while self._kept and self._kept[0][0] <= ack:
            self._kept_bytes -= len(self._kept.popleft()[1])


def check_protocol(theirs: int) -> None:
    """:raises VersionMismatch: when the peer's protocol is older than the oldest we speak."""
    if theirs < 1:
        raise VersionMismatch(f"The other end speaks link protocol {theirs}; this one needs {PROTOCOL}.")
