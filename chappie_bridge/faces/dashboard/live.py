"""What happens, as server-sent events.  A page that does not read is told nothing: nothing is kept for it."""

from collections.abc import AsyncGenerator, Callable
from urllib.parse import quote, unquote

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from chappie_bridge.faces.dashboard import shown
from chappie_bridge.faces.dashboard.pages import OWNER, Pages
from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.ids import EntryId, SessionId
from chappie_bridge.wire.overview import AwaitChange
from chappie_bridge.wire.ports import Office

MAX_STREAMS = 64
"""At once, of all pages."""

BEAT = 15.0
"""Seconds after which a stream says that it is there; and within which it ends when its login ended."""

AT_ONCE = 100
"""Entries of a transcript in one event."""

APART = 0.25
"""Seconds between two events: what happens in between is one event."""

AGAIN = 2.0
"""Seconds until a transcript that could not be read is asked for again."""

IDLE = 1.0
"""Seconds until a transcript that had nothing new is asked again."""

_NOTHING = b": \n\n"

Stream = AsyncGenerator[bytes]


class _Events(StreamingResponse):
    """A stream that is among `lives` while it runs; one that is cancelled there ends as a whole response."""

    def __init__(self, stream: Stream, lives: set[anyio.CancelScope]) -> None:
        headers = {"x-accel-buffering": "no"}
        super().__init__(stream, media_type="text/event-stream", headers=headers)
        self._lives = lives

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with anyio.CancelScope() as life:
            self._lives.add(life)
            try:
                await super().__call__(scope, receive, send)
            finally:
                self._lives.discard(life)
        if life.cancelled_caught:
            await send({"type": "http.response.body", "body": b""})


class Live:
    def __init__(self, office: Office, pages: Pages) -> None:
        self._office, self._pages = office, pages
        self._lives: set[anyio.CancelScope] = set()

    def close(self) -> None:
        """End all streams: the server leaves, and waits for what is under way."""
        for life in self._lives:
            life.cancel()

    async def changes(self, request: Request) -> Response:
        """`changed` at once, and whenever what the pages show has changed."""
        return self._response(self._changes(request.scope["logged_in"]))

    async def transcript(self, request: Request) -> Response:
        """`entries` of session `id` after entry `after`, as markup; the browser names the last one it has."""
        last = request.headers.get("last-event-id", "")
        after = unquote(last) or request.query_params.get("after", "")
        session = SessionId(request.query_params.get("id", ""))
        return self._response(self._entries(session, after, request.scope["logged_in"]))

    def _response(self, stream: Stream) -> Response:
        if len(self._lives) >= MAX_STREAMS:
            raise HTTPException(503, "Too many pages are open.")
        return _Events(stream, self._lives)

    async def _changes(self, logged_in: Callable[[], bool]) -> Stream:
        since = 0
        while logged_in():
            number = await self._changed(since)
            yield _NOTHING if number == since else _event("changed", "")
            since = number
            await anyio.sleep(APART)

    async def _entries(self, session: SessionId, after: str, logged_in: Callable[[], bool]) -> Stream:
        last = EntryId(after) if after else None
        problem = False
        while logged_in():
            try:
                wait = BEAT if last else 0
                page = await self._pages.read(session, limit=AT_ONCE, after=last, wait=wait)
            except BridgeError as error:
                yield _NOTHING if problem else _event("problem", shown.path(str(error)))
                problem = True
                await anyio.sleep(AGAIN)
                await self._changed(await self._changed(0))
                continue
            if problem:
                yield _event("problem", "")
                problem = False
            if page.entries:
                last = page.entries[-1].id
                yield _event(
                    "entries", await self._pages.entries(page.entries, session), quote(last, safe="")
                )
                await anyio.sleep(APART)
            else:
                yield _NOTHING
                if last is None:
                    await self._changed(await self._changed(0))
                await anyio.sleep(IDLE)  # a wait ends at once where something else than an entry is pending

    async def _changed(self, since: int) -> int:
        return (await self._office.change(AwaitChange(caller=OWNER, since=since, wait=BEAT))).number


def _event(kind: str, data: str, identifier: str = "") -> bytes:
    lines = [f"event: {kind}", *(f"data: {line}" for line in data.replace("\r", "").split("\n"))]
    if identifier:
        lines.append(f"id: {identifier}")
    return "\n".join([*lines, "", ""]).encode()
