"""The files of one session, towards the broker: what gives them, what takes them, what is kept of them.  Any
host's session may have one."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from anyio import to_thread

from chappie_agents.sinks import Permit, Sinks
from chappie_agents.sources import Sources
from chappie_bridge.wire.blocks import Content, Image, Spill
from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.files import (
    CloseSink,
    CloseSource,
    DropSink,
    HashSource,
    OpenSink,
    OpenSource,
)
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.messages import Message, Pull, Request
from chappie_bridge.wire.ports import Link

log = logging.getLogger("chappie.agent")

KEEP = 24 * 3600.0
"""Seconds that a part waits to be gone on with, and that a reference can be read."""


class Work(Protocol):
    """Answers a request from a task of the session; what fails is told."""

    def __call__(self, link: Link, message: Request, answer: Callable[[], Awaitable[Message]], /) -> None: ...


class Files:
    """`takes` says what it does with which message."""

    def __init__(
        self,
        session: SessionId,
        home: Path,
        *,
        directory: Path,
        permit: Permit,
        work: Work,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        now: Callable[[], float],
    ) -> None:
        """`home` (made if need be) keeps parts' records, offers and images; relative paths are those of
        `directory`.  `now`: seconds since the epoch.  Raises `OSError`."""
        home.mkdir(mode=0o700, exist_ok=True)
        self._sources = Sources(home, permit, directory, now)
        self._sinks = Sinks(session, home / "parts", permit, start, now)
        self._work, self._start = work, start
        self.takes: dict[type[Message], Callable[[Link, Any], None]] = {
            OpenSource: self._open_source,
            HashSource: self._hash_source,
            CloseSource: self._close_source,
            OpenSink: self._open_sink,
            CloseSink: self._close_sink,
            DropSink: self._drop_sink,
        }

    def pull(self, link: Link, message: Pull) -> None:
        """Bytes of an open source, an offered file, an image."""

        async def answer() -> Message:
            pulled = await self._sources.pull(link, message)
            return pulled.model_copy(update={"request": message.request})

        self._work(link, message, answer)

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> bool:
        """False: nobody here waits for this stream."""
        return self._sinks.received(link, stream, offset, data)

    def keep(self, content: Content) -> None:
        """Native blocks are about to be told: their images can be asked for from now on."""
        if any(
            isinstance(block, Image) or (isinstance(block, Spill) and block.of == "image")
            for block in content
        ):
            try:
                self._sources.keep(content)
            except (OSError, ValueError) as error:
                log.warning("an image cannot be read by reference: %s", error)

    async def tidy(self, now: float) -> None:
        """`now` in seconds since the epoch."""
        try:
            self._sources.expire(now - KEEP)
            await to_thread.run_sync(self._sources.tidy, now - KEEP)
            await self._sinks.tidy(now - KEEP)
        except OSError as error:
            log.error("what transfers left could not be tidied: %s", error)

    def shut(self) -> None:
        """The process ends; parts stay, to be gone on with.  Blocks."""
        self._sources.shut()
        self._sinks.shut()

    # -- inside ----------------------------------------------------------------------------------

    def _open_source(self, link: Link, message: OpenSource) -> None:
        self._answer(link, message, partial(self._sources.open, message))

    def _hash_source(self, link: Link, message: HashSource) -> None:
        self._answer(link, message, partial(self._sources.digest, message))

    def _close_source(self, link: Link, message: CloseSource) -> None:
        self._start(partial(self._sources.close, message.source))

    def _open_sink(self, link: Link, message: OpenSink) -> None:
        self._answer(link, message, partial(self._sinks.open, link, message))

    def _close_sink(self, link: Link, message: CloseSink) -> None:
        self._answer(link, message, partial(self._sinks.close, message))

    def _drop_sink(self, link: Link, message: DropSink) -> None:
        async def drop() -> None:
            try:
                await self._sinks.drop(message)
            except BridgeError as error:
                log.warning("a part could not be dropped: %s", error)

        self._start(drop)

    def _answer(self, link: Link, message: Request, answer: Callable[[], Awaitable[Request]]) -> None:
        async def told() -> Message:
            return (await answer()).model_copy(update={"request": message.request})

        self._work(link, message, told)
