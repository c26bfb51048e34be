"""Content made to fit a message: what is too long goes to the spool, nothing is lost.  Blocks on the disk."""

import base64

import pydantic_core

from chappie_agents.spool import Spool, first_part, last_part
from chappie_bridge.wire.blocks import SPILL_ABOVE, Block, Content, Image, ResourceLink, Spill, Text

RESULT_MAX = 768 * 1024
"""Bytes of JSON that the content of one result may take; the rest of a message is small."""

MAX_BLOCKS = 64
"""Blocks of one content; those beyond it are kept together in one file, as JSON."""

_WORST = 6
"""Bytes that JSON may need for one byte of text: a control character."""

_ENVELOPE = 512
"""Bytes of a block beside its text, a usual path included."""

_LEAST = 256
"""Characters of an end that is not shortened any more."""

_LINK_MAX = 4096
"""Bytes of JSON above which a reference is kept in a file like text."""


def fits(content: Content) -> bool:
    """Is it plain, without encoding anything, that `fit` would change nothing?"""
    total = 0
    for block in content:
        match block:
            case Text(text=text):
                short = len(text) * 4 <= SPILL_ABOVE or (text.isascii() and len(text) <= SPILL_ABOVE)
                total += _ENVELOPE + _WORST * len(text)
            case Image(data=data):
                short = len(data) <= SPILL_ABOVE
                total += _ENVELOPE + len(data)
            case Spill(head=head, tail=tail):
                short = True
                total += _ENVELOPE + _WORST * (len(head) + len(tail))
            case _:
                return False
        if not short:
            return False
    return total <= RESULT_MAX and len(content) <= MAX_BLOCKS


def json_size(content: Content) -> int:
    """Bytes of the content as it travels."""
    return sum(_size(block) for block in content)


def fit(content: Content, spool: Spool, limit: int = RESULT_MAX) -> Content:
    """`content` in at most `limit` (>= 240 KiB) bytes of JSON: the longest blocks are spilled first, then
    their ends are shortened.  Raises `OSError`; `cut` does without a disk."""
    if len(content) > MAX_BLOCKS:
        rest = pydantic_core.to_json(
            [block.model_dump(exclude_none=True) for block in content[MAX_BLOCKS - 1 :]]
        )
        content = (*content[: MAX_BLOCKS - 1], spool.spill_text(rest.decode()))
    return _shrink(spool.fit(content), limit, spool)


def cut(content: Content, limit: int = RESULT_MAX) -> Content:
    """Like `fit` where nothing can be written: the ends of what is too long, and no file with the rest."""
    kept: list[Block] = []
    for block in content[:MAX_BLOCKS]:
        if isinstance(block, Text) and len(block.text) * 4 > SPILL_ABOVE:
            gone = f"\n[… the middle of {len(block.text)} characters could not be kept: the disk is full …]\n"
            kept.append(Text(text=first_part(block.text) + gone + last_part(block.text)))
        elif isinstance(block, Image) and len(block.data) > SPILL_ABOVE:
            kept.append(Text(text="[… an image could not be kept: the disk is full …]"))
        else:
            kept.append(block)
    while len(kept) > 1 and json_size(tuple(kept)) > limit:
        kept.pop()
    return tuple(kept)


def _size(block: Block) -> int:
    match block:
        case Text(text=text) if len(text) < 64:
            return 40 + _WORST * len(text)
        case Image(data=data):
            return _ENVELOPE + len(data)
        case _:
            return len(block.__pydantic_serializer__.to_json(block, exclude_none=True)) + 1


def _shrink(content: Content, limit: int, spool: Spool) -> Content:
    blocks = list(content)
    sizes = [_size(block) for block in blocks]
    while sum(sizes) > limit:
        longest = max(range(len(blocks)), key=sizes.__getitem__)
        smaller = _smaller(blocks[longest], spool)
        if smaller is None:
            break  # `MAX_BLOCKS` blocks with nothing left to shorten are below the least limit
        blocks[longest] = smaller
        sizes[longest] = _size(smaller)
    return tuple(blocks)


def _smaller(block: Block, spool: Spool) -> Block | None:
    match block:
        case Text(text=text) if len(text) > 2 * _LEAST:
            return spool.spill_text(text)
        case Image(data=data, mime_type=mime_type):
            return spool.spill_image(base64.b64decode(data), mime_type)
        case Spill(head=head, tail=tail) if len(head) > _LEAST or len(tail) > _LEAST:
            return block.model_copy(update={"head": _first(head), "tail": _last(tail)})
        case ResourceLink() if _size(block) > _LINK_MAX:
            return spool.spill_text(block.model_dump_json(exclude_none=True))
        case _:
            return None


def _first(text: str) -> str:
    return text if len(text) <= _LEAST else text[: len(text) // 2]


def _last(text: str) -> str:
    return text if len(text) <= _LEAST else text[len(text) - len(text) // 2 :]
