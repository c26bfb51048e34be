"""Spilled blocks read whole: nothing that another session's tools gave is trimmed for an agent."""

import base64
import binascii
import hashlib

from chappie_bridge.wire.blocks import Block, Content, Image, Spill, Text
from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.ports import Switchboard
from chappie_bridge.wire.requests import FetchBytes
from chappie_bridge.wire.values import Caller

from .replies import Part

PIECE = 512 * 1024
"""Bytes asked for at once."""

MAX_WHOLE = 64 * 1024 * 1024
"""Bytes of spilled blocks that one reply holds; beyond, a block keeps its two ends and says where it lies."""


async def whole(parts: tuple[Part, ...], switchboard: Switchboard, caller: Caller) -> Content:
    """All blocks in their order."""
    blocks: list[Block] = []
    left = MAX_WHOLE
    for part in parts:
        for block in part.content:
            if isinstance(block, Spill) and part.session is not None:
                data = None
                if block.size <= left:
                    data = await _read(block, part.session, switchboard, caller)
                    left -= block.size
                blocks += _ends(block) if data is None else [_shown(block, data)]
            else:
                blocks.append(block)
    return tuple(blocks)


async def _read(
    block: Spill, session: SessionId, switchboard: Switchboard, caller: Caller
) -> bytearray | None:
    """None: it cannot be had, or is not what it was."""
    data = bytearray()
    while len(data) < block.size:
        request = FetchBytes(
            caller=caller,
            session=session,
            source=f"spill:{block.path}",
            offset=len(data),
            length=min(PIECE, block.size - len(data)),
        )
        try:
            piece = base64.b64decode((await switchboard.fetch(request)).data, validate=True)
        except (BridgeError, binascii.Error):
            return None
        if not piece:
            return None
        data += piece
    return data if hashlib.sha256(data).hexdigest() == block.sha256 else None


def _shown(block: Spill, data: bytearray) -> Block:
    if block.of == "image":
        kind = block.mime_type or "application/octet-stream"
        return Image(data=base64.b64encode(data).decode("ascii"), mime_type=kind)
    return Text(text=data.decode("utf-8", "replace"))


def _ends(block: Spill) -> list[Block]:
    gone = f"\n[… {block.size} bytes in all; the rest is at {block.path} on that device …]\n"
    return [Text(text=block.head + gone + block.tail)]
