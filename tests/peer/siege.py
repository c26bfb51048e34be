"""Strangers, and a device that means ill, at the link's TLS port: many, slow, large.  This machine only."""

import asyncio
import itertools
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Literal

import anyio

from chappie_bridge.wire.ids import InstanceId
from chappie_bridge.wire.link import SUBPROTOCOL, Hello, frame_hello
from chappie_bridge.wire.table import MESSAGES

PIECE = 256 * 1024

PER_ADDRESS = 10
"""Wrong tokens of one address before it has to wait; then the next address goes on."""

UNSEEN = 30
"""Seconds after which a silent connection was none: the kernel had no room for it, and told nobody."""

Stage = Literal["tcp", "tls", "websocket"]

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def opening(token: str) -> bytes:
    lines = (
        "GET / HTTP/1.1",
        "Host: 127.0.0.1",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Protocol: {SUBPROTOCOL}",
        f"Authorization: Bearer {token}",
    )
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


def masked(opcode: int, data: bytes, length: int | None = None) -> bytes:
    """A frame with a mask of nothing; `length`: what it says of itself."""
    said = len(data) if length is None else length
    return bytes([0x80 | opcode, 0xFF]) + said.to_bytes(8, "big") + bytes(4) + data


def _fragment(data: bytes) -> bytes:
    """Of a message that goes on."""
    return bytes([0x00]) + masked(0, data)[1:]


def addresses() -> Iterator[str]:
    """Each of the loopback's, `PER_ADDRESS` times."""
    for high, low in itertools.product(range(1, 255), range(1, 255)):
        yield from itertools.repeat(f"127.2.{high}.{low}", PER_ADDRESS)


@asynccontextmanager
async def connected(
    port: int, stage: Stage, token: str = "", source: str = "127.0.0.1"
) -> AsyncIterator[Stream]:
    """As far as `stage`; a websocket that was refused is one whose answer was read."""
    context = None if stage == "tcp" else _context()
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, local_addr=(source, 0), limit=PIECE
    )
    try:
        if stage == "websocket":
            writer.write(opening(token))
            await reader.readuntil(b"\r\n\r\n")
        yield reader, writer
    finally:
        writer.transport.abort()


async def wrong_tokens(port: int, count: int, *, at_once: int = 16) -> Counter[bytes]:
    """The statuses that were answered; `cut` where there was none."""
    seen: Counter[bytes] = Counter()
    sources = itertools.islice(addresses(), count)

    async def some() -> None:
        for source in sources:
            try:
                async with connected(port, "tls", source=source) as (reader, writer):
                    writer.write(opening("wrong"))
                    seen[(await reader.readline())[9:12]] += 1
            except (OSError, asyncio.IncompleteReadError):
                seen[b"cut"] += 1

    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(some)
    return seen


async def half_open(port: int, count: int, stage: Stage, token: str = "") -> int:
    """All at once, and silent until they are cut; how many were."""
    ended = 0

    async def one() -> None:
        nonlocal ended
        with anyio.move_on_after(UNSEEN) as patience, suppress(OSError, asyncio.IncompleteReadError):
            async with connected(port, stage, token) as (reader, _):
                await reader.read()
        ended += not patience.cancelled_caught

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(one)
    return ended


async def endless(port: int, size: int, token: str = "") -> list[int]:
    """Bytes taken of: a line before the upgrade, a text frame and fragments of a known device, one frame that
    says its size, and a binary frame."""
    hello = frame_hello(Hello(protocol=1, role="agent", instance=InstanceId("i_endless"))).encode()
    begins: list[tuple[Stage, bytes, bytes]] = [
        ("tls", b"GET /", b"x" * PIECE),
        ("tls", opening("x").removesuffix(b"\r\n") + b"X: ", b"x" * PIECE),
    ]
    if token:
        begins += [
            ("websocket", masked(1, hello) + masked(1, b"", size), b"x" * PIECE),
            ("websocket", masked(1, hello) + masked(2, b"", size), b"x" * PIECE),
            ("websocket", masked(1, hello) + b"\x01\x80" + bytes(4), _fragment(b"x" * PIECE)),
        ]
    return [await _poured(port, stage, token, begin, piece, size) for stage, begin, piece in begins]


async def _poured(port: int, stage: Stage, token: str, begin: bytes, piece: bytes, size: int) -> int:
    taken = 0
    with suppress(OSError):
        async with connected(port, stage, token) as (_, writer):
            writer.write(begin)
            while taken < size:
                writer.write(piece)
                await writer.drain()
                if writer.is_closing():
                    break
                taken += len(piece)
    return taken


def megabyte(item: str) -> str:
    """As many as fit, one after another."""
    return ",".join([item] * (1_000_000 // (len(item) + 1)))


def megabytes() -> Iterator[str]:
    """Text frames that are refused, or taken: lists of what does not fit, deep, long and wrong."""
    for kind, row in MESSAGES.items():
        lists = [name for name, field in row.model.model_fields.items() if "tuple" in str(field.annotation)]
        for name in lists:
            for item in ("{}", "[]"):
                yield f'{{"n":1,"a":0,"m":{{"type":"{kind}","request":1,"{name}":[{megabyte(item)}]}}}}'
    for text in (
        "9" * 1_000_000,
        "[" * 1_000_000,
        '{"a":' * 200_000,
        '"' + "\\u00e9" * 160_000,
        "\ufffd" * 330_000,
    ):
        for shape in ("{}", '{{"n":{},"a":0,"m":{{}}}}', '{{"a":{}}}', '{{"hello":{{"protocol":{}}}}}'):
            yield shape.format(text)
    for name in ("hello", "welcome", "refused"):
        yield f'{{"{name}":[{megabyte("{}")}]}}'
        yield f'{{"{name}":{{{",".join(f"{json.dumps(str(n))}:0" for n in range(90_000))}}}}}'
