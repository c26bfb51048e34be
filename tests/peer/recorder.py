"""An attendant that writes down what it hears, for tests to wait on."""

from collections.abc import Callable

import anyio

from chappie_bridge.wire.messages import Message
from chappie_bridge.wire.ports import Link


class Recorder:
    """`events` are ("up" | "back" | "down" | "gone", link); `answer` is called for each message."""

    def __init__(self, answer: Callable[[Link, Message], None] | None = None) -> None:
        self.events: list[tuple[str, Link]] = []
        self.messages: list[Message] = []
        self.chunks: list[tuple[int, int, bytes]] = []
        self._answer = answer
        self._changed = anyio.Event()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    @property
    def link(self) -> Link:
        """The link heard of last."""
        return self.events[-1][1]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to be heard; 10 seconds are for a broken test only."""
        with anyio.fail_after(10):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()

    async def until_events(self, *names: str) -> None:
        await self.until(lambda: len(self.events) >= len(names))
        assert self.names == list(names)

    def link_up(self, link: Link) -> None:
        self._event("up", link)

    def link_back(self, link: Link) -> None:
        self._event("back", link)

    def link_down(self, link: Link) -> None:
        self._event("down", link)

    def link_gone(self, link: Link) -> None:
        self._event("gone", link)

    def received(self, link: Link, message: Message) -> None:
        self.messages.append(message)
        if self._answer is not None:
            self._answer(link, message)
        self._changed.set()

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> None:
        self.chunks.append((stream, offset, data))
        self._changed.set()

    def _event(self, name: str, link: Link) -> None:
        self.events.append((name, link))
        self._changed.set()
