"""A response while it is put together: heads, texts, images, links in their order; then fetched, trimmed, and
written as MCP content blocks.  Asks the Switchboard for spilled images and for nothing else."""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import anyio
from pydantic import JsonValue

from chappie_bridge.codec.parts import Call, Part, Pointer, compact
from chappie_bridge.codec.trim import MAX_IMAGE_DATA, MAX_IMAGES
from chappie_bridge.codec.unicode import display
from chappie_bridge.faces.chatgpt.exchange import Exchange
from chappie_bridge.faces.chatgpt.tokens import Tokenizer
from chappie_bridge.wire.blocks import Block, Content, Image, ResourceLink, Spill, Text
from chappie_bridge.wire.errors import BridgeError, Failure
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.ports import Switchboard
from chappie_bridge.wire.requests import FetchBytes
from chappie_bridge.wire.values import Caller

Json = dict[str, Any]

COMPANION_TOKENS = 3_000
"""Tokens of everything that accompanies a result, images apart."""

FETCH_PART = 512 * 1024 // 3 * 3
"""Bytes of an image asked for at once: whole Base64 groups, so that the parts join as text."""

FETCH_SECONDS = 10.0
"""How long the images of one response may take, within the request's own time."""

NAME, PATH, MESSAGE = 100, 300, 2_000
"""Characters shown of names, of paths, of an error's text."""


class Source(NamedTuple):
    """Where a block's whole text can be read again: `entry` of `session`'s transcript (an entry's id, or the
    id of the call whose result it is).  `call` says in the head whose text it is."""

    session: SessionId
    entry: str | None
    call: Call = None


class Sheet:
    """Blocks in the order in which they are added; the first is the head."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._blocks: dict[int, Json] = {}
        """What an image or a link is sent as, by the index of its part."""
        self._spilled: dict[int, tuple[Spill, SessionId]] = {}
        self._companions: int | None = None
        self._more = 0

    @property
    def texts(self) -> list[str]:
        """All the text that is here, of spills both ends."""
        return [text for part in self._parts for text in (part.text, part.tail or "")]

    def head(self, value: Mapping[str, JsonValue]) -> None:
        """A line of JSON that is never cut and tells what was."""
        self._parts.append(Part("head", compact(value)))

    def line(self, value: Mapping[str, JsonValue]) -> None:
        """A line of JSON that is never cut."""
        self._parts.append(Part("header", compact(value)))

    def whole(self, text: str) -> None:
        """A text that is never cut."""
        self._parts.append(Part("header", text))

    def text(self, text: str, source: Source, start: int = 0) -> None:
        """A text that may lose its middle; `start` is its first byte in what `source` reads."""
        self._parts.append(Part("text", text, source.call, _pointer(source, start)))

    def content(self, content: Content, source: Source) -> None:
        """Native blocks.  What `source` reads is their texts, one directly after the other."""
        start = 0
        for block in content:
            self._block(block, source, start)
            if isinstance(block, Text):
                start += len(block.text.encode())
            elif isinstance(block, Spill) and block.of == "text":
                start += block.size

    def append(self, other: "Sheet") -> None:
        """What `other` holds, at the end."""
        start = len(self._parts)
        self._parts += other._parts
        self._blocks |= {start + at: block for at, block in other._blocks.items()}
        self._spilled |= {start + at: spill for at, spill in other._spilled.items()}

    def companions_follow(self, more: int) -> None:
        """All that is added from now on accompanies the result and has a bound of its own; `more` wait."""
        self._companions, self._more = len(self._parts), more

    async def finish(
        self, tokenizer: Tokenizer, limit: int, switchboard: Switchboard, exchange: Exchange
    ) -> list[Json]:
        """The blocks as they are sent: at most `limit` tokens, 8 images, 4 MiB of Base64."""
        if self._spilled:
            await self._fetch(switchboard, exchange)
        if self._companions is not None:
            await self._bound_companions(tokenizer, self._companions)
        parts = (await tokenizer.trim(self._parts, limit)).parts
        return [self._written(index, part) for index, part in enumerate(parts)]

    def _written(self, index: int, part: Part) -> Json:
        if part.kind == "image":
            return self._blocks[index]
        if part.kind == "link":
            block: Json = json.loads(part.text)
            return block
        return {"type": "text", "text": part.text}

    def _block(self, block: Block, source: Source, start: int) -> None:
        match block:
            case Text(text=text):
                self.text(text, source, start)
            case Image(data=data, mime_type=kind):
                size = len(data) * 3 // 4 - data[-2:].count("=")
                self._image(data, kind, _reference(kind, size, _read(source)))
            case ResourceLink():
                self._parts.append(Part("link", compact(_link(block)), source.call))
            case Spill(of="text"):
                self._parts.append(
                    Part(
                        "text",
                        block.head,
                        source.call,
                        _pointer(source, start),
                        tail=block.tail,
                        size=block.size,
                        lossy=block.lossy,
                    )
                )
            case Spill():
                self._spilled[len(self._parts)] = (block, source.session)
                kind = block.mime_type or "application/octet-stream"
                self._parts.append(Part("link", _reference(kind, block.size, _read(source), block.path)))

    def _image(self, data: str, kind: str, reference: str, index: int | None = None) -> None:
        part = Part("image", reference, size=len(data))
        if index is None:
            index = len(self._parts)
            self._parts.append(part)
        else:
            self._parts[index] = part
        self._blocks[index] = {"type": "image", "data": data, "mimeType": kind}

    async def _fetch(self, switchboard: Switchboard, exchange: Exchange) -> None:
        """Spilled images come here while there is room and time; the others stay references."""
        images = data = 0
        caller = Caller(principal=exchange.principal, source="none")
        with anyio.move_on_after(min(FETCH_SECONDS, exchange.left(FETCH_SECONDS * 10))):
            for index, part in enumerate(self._parts):
                if spilled := self._spilled.get(index):
                    spill, session = spilled
                    size = (spill.size + 2) // 3 * 4
                    if images >= MAX_IMAGES or data + size > MAX_IMAGE_DATA:
                        continue
                    whole = await _whole(switchboard, caller, spill, session)
                    if whole is None:
                        continue
                    self._image(whole, spill.mime_type or "application/octet-stream", part.text, index)
                    images, data = images + 1, data + size
                elif part.kind == "image":
                    images, data = images + 1, data + part.size

    async def _bound_companions(self, tokenizer: Tokenizer, first: int) -> None:
        """What was cut of them stands in their own last line, beside `more`."""
        indices = [at for at in range(first, len(self._parts)) if self._parts[at].kind != "image"]
        last = Part("head", compact({"more": self._more}))
        trimming = await tokenizer.trim([*(self._parts[at] for at in indices), last], COMPANION_TOKENS)
        *parts, end = trimming.parts
        for at, part in zip(indices, parts, strict=True):
            self._parts[at] = replace(part, kind="header") if part.kind == "text" else part
        if self._more or trimming.trimmed:
            self._parts.append(replace(end, kind="header"))


def failure_line(failure: Failure) -> Json:
    """`{"error": …}` of SPEC §6 with what the code promises beside it; names in it are made safe to show."""
    error: Json = {
        **{key: _shown(value) for key, value in (failure.data or {}).items()},
        "code": failure.code,
        "message": display(failure.message, MESSAGE),
        "retryable": failure.retryable,
        "executed": str(failure.executed),
    }
    if failure.hint is not None:
        error["hint"] = display(failure.hint, MESSAGE)
    return {"error": error}


def _shown(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return display(value, PATH)
    if isinstance(value, list):
        return [_shown(each) for each in value]
    if isinstance(value, dict):
        return {display(key, NAME): _shown(each) for key, each in value.items()}
    return value


def _pointer(source: Source, start: int) -> Pointer | None:
    if source.entry is None:
        return None
    return Pointer("history", {"sessionId": source.session, "entry": source.entry}, start)


def _read(source: Source) -> str | None:
    if source.entry is None:
        return None
    return f"history {compact({'sessionId': source.session, 'entry': source.entry})}"


def _reference(kind: str, size: int, read: str | None, path: str | None = None) -> str:
    """The block that stands for an image that is not sent."""
    facts: Json = {"image": "not sent here", "mimeType": display(kind, NAME), "bytes": size}
    if path is not None:
        facts["outputPath"] = path
    if read is not None:
        facts["read"] = read
    return compact({"type": "text", "text": compact(facts)})


def _link(block: ResourceLink) -> Json:
    link: Json = {"type": "resource_link", "uri": block.uri, "name": display(block.name, NAME)}
    if block.mime_type is not None:
        link["mimeType"] = block.mime_type
    if block.size is not None:
        link["size"] = block.size
    if block.description is not None:
        link["description"] = display(block.description, PATH)
    if block.sha256 is not None:
        link["_meta"] = {"sha256": block.sha256}
    return link


async def _whole(switchboard: Switchboard, caller: Caller, spill: Spill, session: SessionId) -> str | None:
    """The Base64 of a spilled image, checked; None when it cannot be had."""
    digest = hashlib.sha256()
    parts: list[str] = []
    for offset in range(0, spill.size, FETCH_PART):
        request = FetchBytes(
            caller=caller,
            session=session,
            source=f"spill:{spill.path}",
            offset=offset,
            length=min(FETCH_PART, spill.size - offset),
        )
        try:
            part = (await switchboard.fetch(request)).data
            digest.update(base64.b64decode(part, validate=True))
        except (BridgeError, binascii.Error):
            return None
        parts.append(part)
    return "".join(parts) if digest.hexdigest() == spill.sha256 else None
