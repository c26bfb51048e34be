"""What callers read of a session: its history, bytes of spilled blocks, and with a capability what was
offered."""

import base64
from typing import Protocol

from chappie_bridge.wire.blocks import Content, Image, Spill
from chappie_bridge.wire.errors import PathMissing
from chappie_bridge.wire.ids import ConversationId, SessionId
from chappie_bridge.wire.messages import History, Pull, Pulled, ReadHistory
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.requests import Bytes, FetchBytes, FetchHistory
from chappie_bridge.wire.values import Companion, Companions, DeferredItem, Entry, Origin

from .capability import Capabilities
from .directory import Session
from .feeds import Streams
from .following import Following
from .limits import Limits
from .operations import Operation
from .rpc import Correspondence


class Renew(Protocol):
    """The conversation takes part in the session: it read something of it."""

    def __call__(self, conversation: ConversationId, session: SessionId, /) -> None: ...


class Reading:
    def __init__(
        self,
        rpc: Correspondence,
        streams: Streams,
        capabilities: Capabilities,
        renew: Renew,
        limits: Limits,
    ) -> None:
        self._rpc, self._streams, self._capabilities = rpc, streams, capabilities
        self._renew, self._limits = renew, limits
        self._following = Following(rpc, limits.ask_seconds)

    async def history(self, session: Session, link: Link, request: FetchHistory) -> History:
        """One page; a wait ends early, empty, when something else than an entry needs the reader."""
        span = request.range
        if not span.wait:
            message = ReadHistory(session=session.info.id, range=span)
            return await self._rpc.ask(link, message, History, self._limits.ask_seconds)
        page = await self._following.page(session, link, span)
        return page or History(session=session.info.id, cwd=session.info.cwd)

    async def fetch(self, request: FetchBytes, link: Link) -> Bytes:
        """:raises PathMissing: no such thing, or not for this caller."""
        if not request.source.startswith("spill:"):
            self._admit(request)
        buffer = bytearray()

        def take(offset: int, data: bytes) -> None:
            if len(buffer) + len(data) <= request.length:
                buffer.extend(data)

        stream = self._streams.open(link, take)
        try:
            message = Pull(
                session=request.session,
                stream=stream,
                source=request.source,
                offset=request.offset,
                length=request.length,
            )
            pulled = await self._rpc.ask(link, message, Pulled, self._limits.ask_seconds)
        finally:
            self._streams.close(stream)
        return Bytes(data=base64.b64encode(buffer).decode("ascii"), size=pulled.size)

    def _admit(self, request: FetchBytes) -> None:
        kind = request.source.partition(":")[0]
        given, caller = request.capability, request.caller
        if kind not in ("file", "image") or not (
            caller.source == "shell" or self._capabilities.holds(given, caller.principal)
        ):
            raise PathMissing("This reference is not known here, or is older than 24 hours.")
        conversation = self._capabilities.conversation(given) if given is not None else None
        if conversation is not None:
            self._renew(conversation, request.session)

    def marked(self, companions: Companions, origin: Origin, operation: Operation | None) -> Companions:
        """With a capability, where the reply that they accompany or they themselves name bytes."""
        named = any(_names(item) for item in companions.items)
        if operation is not None and not named:
            named = bool(operation.files()) or any(
                _images(each.content) for each in operation.results.values()
            )
        if not named:
            return companions
        return companions.model_copy(update={"capability": self.capability(origin)})

    def capability(self, origin: Origin) -> str:
        """For the addresses in an answer to `origin`."""
        conversation = ConversationId(origin.id) if origin.kind == "conversation" else None
        return self._capabilities.give(origin.principal, conversation)

    def capability_of(self, entries: tuple[Entry, ...], origin: Origin) -> str | None:
        """The same where entries show images."""
        return self.capability(origin) if any(_images(entry.content) for entry in entries) else None


def _names(item: Companion) -> bool:
    if not isinstance(item, DeferredItem):
        return False
    return bool(item.files) or any(_images(each.content) for each in item.results)


def _images(content: Content) -> bool:
    return any(
        isinstance(block, Image) or (isinstance(block, Spill) and block.of == "image") for block in content
    )
