"""A file that a client holds, fetched from the address that it gave: over HTTPS, from the open internet,
within bounds.  It streams; nothing is kept here.

The name is resolved once and that address is connected to, so what was checked is what is reached; each
redirect is checked anew.  HTTP is h11's over a plain stream: no cookies, no proxies, no decoding, no pool.
"""

import hashlib
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, NamedTuple
from urllib.parse import urljoin

import anyio
import h11
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.errors import DownloadFailed, SourceChanged, TooLarge
from chappie_bridge.wire.link import CHUNK_BYTES
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.values import Attachment

from .addresses import Allowed, Target, is_open, target
from .feeds import Facts, Room, Whole

REDIRECTS = 5
INFORMATIONAL = 10
"""Replies (1xx) ahead of the one that counts."""
CONNECTING = 15.0
"""Seconds to an open connection."""
MAX_DOCUMENT = 32 * 1024
"""Bytes."""
SILENT = 30.0
"""Seconds without a byte."""


class Bounds(NamedTuple):
    """`seconds` for each of opening, hashing and taking a whole download; `allowed` opens what is closed
    otherwise."""

    max_bytes: int = 2 * 1024**3
    seconds: float = 3600.0
    allowed: Allowed = Allowed()
    tls: ssl.SSLContext | None = None


class _Body:
    """A response whose head is read: its bytes, and no more of them than it promised."""

    def __init__(self, stream: ByteStream, connection: h11.Connection, head: h11.Response) -> None:
        self._stream, self._connection = stream, connection
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        self.status = head.status_code
        self._rest = b""

    @property
    def size(self) -> int | None:
        """As it was promised; None when the end will tell."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isdecimal() and len(text) < 20 else None

    async def begun(self) -> bool:
        """Is there a first byte?"""
        first = await self.read(CHUNK_BYTES)
        self._rest = first + self._rest
        return bool(first)

    async def read(self, most: int) -> bytes:
        """At most so many bytes; none at the end.  :raises DownloadFailed: it was cut off."""
        while not self._rest:
            event = await _next(self._stream, self._connection)
            if isinstance(event, h11.Data):
                self._rest = bytes(event.data)
            else:
                return b""
        data, self._rest = self._rest[:most], self._rest[most:]
        return data


class Download:
    """One attachment; implements `feeds.Feed`."""

    def __init__(self, attachment: Attachment, bounds: Bounds) -> None:
        self._attachment, self._bounds = attachment, bounds
        self._size: int | None = None
        self._held: tuple[AsyncExitStack, _Body] | None = None

    @property
    def session(self) -> None:
        return None

    async def open(self, link: Link | None) -> Facts:
        """:raises DownloadFailed: :raises TooLarge: before anything is written.  The response stays open:
        some addresses are good for one request."""
        await self.close()
        async with AsyncExitStack() as stack:
            with self._in_time():
                body = await stack.enter_async_context(self._response())
                begun = await body.begun()
            self._size = body.size if begun else 0
            if body.size:
                self._size = body.size
            self._held = stack.pop_all(), body
        name = display(self._attachment.file_name or "file", 255)
        tag = body.headers.get("etag", "")[:128]
        return Facts(name, self._size, f"{self._attachment.file_id[:128]}:{self._size}:{tag}")

    async def digest(self, length: int) -> str:
        """Reads them again: an address gives bytes from the beginning only.  :raises DownloadFailed:"""
        digest = hashlib.sha256()
        with self._in_time():
            async with self._response() as body:
                while length and (data := await body.read(min(CHUNK_BYTES, length))):
                    digest.update(data)
                    length -= len(data)
        return digest.hexdigest()

    async def run(self, room: Room) -> Whole:
        with self._in_time():
            async with AsyncExitStack() as stack:
                held, self._held = self._held, None
                if held is not None:
                    stack.push_async_callback(held[0].aclose)
                if held is not None and room.flow.arrived == 0:
                    body = held[1]
                else:
                    body = await stack.enter_async_context(self._response())
                return await self._copied(body, room)

    @contextmanager
    def _in_time(self) -> Generator[None]:
        """:raises DownloadFailed: what is in here took too long."""
        try:
            with anyio.fail_after(self._bounds.seconds):
                yield
        except TimeoutError as error:
            raise DownloadFailed(f"The download took longer than {self._bounds.seconds:g} s.") from error

    async def _copied(self, body: _Body, room: Room) -> Whole:
        digest = hashlib.sha256()
        at, start = 0, room.flow.arrived
        while at < start:
            data = await body.read(min(CHUNK_BYTES, start - at))
            if not data:
                raise SourceChanged("The file to download became shorter.")
            digest.update(data)
            at += len(data)
        while True:
            if room.flow.asked == room.flow.arrived and await room.span() is None:
                break
            data = await body.read(min(CHUNK_BYTES, room.flow.asked - room.flow.arrived))
            if not data:
                break
            digest.update(data)
            at += len(data)
            if at > self._bounds.max_bytes:
                raise TooLarge(f"The file to download has more than {self._bounds.max_bytes} bytes.")
            room.put(room.flow.arrived, data)
        if self._size is not None and at != self._size:
            raise DownloadFailed(f"The download ended after {at} of {self._size} bytes.")
        return Whole(at, digest.hexdigest())

    async def close(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held[0].aclose()

    @asynccontextmanager
    async def _response(self) -> AsyncGenerator[_Body]:
        """The file's own response, after redirects.  :raises DownloadFailed: :raises TooLarge:"""
        url = self._attachment.download_url
        for _ in range(REDIRECTS + 1):
            to = target(url, self._bounds.allowed)
            async with _connected(to, self._bounds) as stream:
                body = await _asked(stream, to)
                if body.status in (301, 302, 303, 307, 308):
                    url = urljoin(url, body.headers.get("location", ""))
                    continue
                self._check(body)
                yield body
                return
        raise DownloadFailed(f"The address leads on more than {REDIRECTS} times.")

    def _check(self, body: _Body) -> None:
        if body.status != 200:
            word = {
                401: "refuses",
                403: "refuses (it may have expired)",
                404: "knows no such file (it may have expired)",
                410: "has expired",
            }.get(body.status, f"answered {body.status}")
            raise DownloadFailed(
                f"The download address {word}.", hint="Attach the file again, then send this again at once."
            )
        given = body.headers.get("content-type", "").partition(";")[0].strip().lower()
        named = (self._attachment.mime_type or "").lower()
        name = (self._attachment.file_name or "").lower()
        page = given in ("text/html", "application/xhtml+xml")
        if page and "html" not in named and not name.endswith((".html", ".htm", ".xhtml")):
            raise DownloadFailed(
                "The download address gave a web page instead of the file: it may have expired.",
                hint="Attach the file again, then send this again at once.",
            )
        if body.headers.get("content-encoding", "identity").lower() != "identity":
            raise DownloadFailed("The download address gave the file in a coded form that was not asked for.")
        if body.size is not None and body.size > self._bounds.max_bytes:
            raise TooLarge(
                f"The file has {body.size} bytes; at most {self._bounds.max_bytes} are downloaded."
            )


async def document(url: str, bounds: Bounds, most: int = MAX_DOCUMENT) -> bytes:
    """The whole of a small JSON document at exactly this address; it is not led on.

    :raises DownloadFailed: :raises TooLarge: it has more than `most` bytes."""
    found = bytearray()
    try:
        with anyio.fail_after(CONNECTING):
            to = target(url, bounds.allowed)
            async with _connected(to, bounds) as stream:
                body = await _asked(stream, to)
                if body.status != 200:
                    raise DownloadFailed(f"The address of the document answered {body.status}.")
                kind = body.headers.get("content-type", "").partition(";")[0].strip().lower()
                if not re.fullmatch(r"application/([a-z0-9.-]+\+)?json", kind):
                    raise DownloadFailed("The address of the document gave something else than JSON.")
                while data := await body.read(most + 1 - len(found)):
                    found += data
                    if len(found) > most:
                        raise TooLarge(f"The document has more than {most} bytes.")
    except TimeoutError as error:
        raise DownloadFailed(f"The document did not come within {CONNECTING:g} s.") from error
    return bytes(found)


@asynccontextmanager
async def _connected(to: Target, bounds: Bounds) -> AsyncGenerator[ByteStream]:
    """A connection to the one address that was checked.  :raises DownloadFailed:"""
    stream: ByteStream | None = None
    try:
        with anyio.fail_after(CONNECTING):
            address = await _resolved(to, bounds.allowed)
            stream = await anyio.connect_tcp(address, to.port)
            if to.secure:
                context = bounds.tls or ssl.create_default_context()
                stream = await TLSStream.wrap(
                    stream, hostname=to.host, ssl_context=context, standard_compatible=False
                )
    except ssl.SSLError as error:
        if stream is not None:
            await anyio.aclose_forcefully(stream)
        reason = getattr(error, "verify_message", None) or error.reason
        raise DownloadFailed(f"{to.host} cannot be trusted: {reason}.") from error
    except (OSError, TimeoutError) as error:
        if stream is not None:
            await anyio.aclose_forcefully(stream)
        raise DownloadFailed(f"{to.host} cannot be reached.") from error
    try:
        yield stream
    finally:
        await anyio.aclose_forcefully(stream)


async def _resolved(to: Target, allowed: Allowed) -> str:
    """:raises DownloadFailed: the name leads into a closed network, or nowhere."""
    try:
        found = await anyio.getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM)
    except OSError:
        raise DownloadFailed(f"There is no host {display(to.host, 100)}.") from None
    addresses = [str(each[4][0]) for each in found]
    if not addresses:
        raise DownloadFailed(f"There is no host {display(to.host, 100)}.")
    if not allowed.anywhere(to) and not all(is_open(address) for address in addresses):
        raise DownloadFailed(f"{display(to.host, 100)} is not on the open internet; nothing was fetched.")
    return addresses[0]


async def _asked(stream: ByteStream, to: Target) -> _Body:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=64 * 1024)
    headers: list[Any] = [
        ("Host", to.authority),
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
        ("User-Agent", "chappie-bridge"),
        ("Connection", "close"),
    ]
    sent = connection.send(h11.Request(method="GET", target=to.path, headers=headers)) or b""
    sent += connection.send(h11.EndOfMessage()) or b""
    try:
        with anyio.fail_after(SILENT):
            await stream.send(sent)
    except (OSError, TimeoutError, anyio.BrokenResourceError) as error:
        raise DownloadFailed(f"{to.host} closed the connection.") from error
    for _ in range(INFORMATIONAL + 1):
        event = await _next(stream, connection)
        if isinstance(event, h11.Response):
            return _Body(stream, connection, event)
        if not isinstance(event, h11.InformationalResponse):
            break
    raise DownloadFailed(f"{to.host} gave no answer.")


async def _next(stream: ByteStream, connection: h11.Connection) -> object:
    """The next event of the response.  :raises DownloadFailed: it was cut off, or is no HTTP."""
    try:
        while True:
            event = connection.next_event()
            if event is not h11.NEED_DATA:
                return event
            try:
                with anyio.fail_after(SILENT):
                    connection.receive_data(await stream.receive(256 * 1024))
            except anyio.EndOfStream:
                connection.receive_data(b"")
    except h11.RemoteProtocolError as error:
        raise DownloadFailed(
            f"The download was cut off or is damaged: {display(str(error), 200)}."
        ) from error
    except (OSError, TimeoutError, anyio.BrokenResourceError) as error:
        raise DownloadFailed("The download stopped in the middle.") from error
