"""A response made to fit what a client reads (SPEC §4): long texts lose their middle.  Pure; works in
bounded steps, and never touches what needs no trimming."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import NamedTuple

from chappie_bridge.codec.graphemes import line_after, line_before
from chappie_bridge.codec.parts import Detail, Part, Trimmed, Trimming, compact, marker, record, with_report
from chappie_bridge.codec.tokens import (
    EXACT_BELOW,
    Counter,
    Steps,
    count_exactly,
    count_in_slices,
    escaped,
    run,
)

LIMIT = 10_000
"""Tokens of a response, as sent, that stay untouched."""

SHRUNK = 0.9
"""What a longer response shrinks to, as a part of the limit."""

IMAGE_TOKENS = 1_000
MAX_IMAGES = 8
MAX_IMAGE_DATA = 4 * 2**20
"""Characters of Base64 of all images of one response."""

_BEFORE, _AFTER = '{"type":"text","text":"', '"},'
_LINE_NEAR = 200
_LEAST = 16  # tokens of a trimmed text that are worth the marker around them
_AIMED = 8  # guesses at a length by proportion; after that by halves, which end
_TAIL = 0.55  # of a trimmed text's room: an end says more than a beginning


def trim(parts: Sequence[Part], counter: Counter, limit: int = LIMIT) -> Trimming:
    """`parts` within `limit` tokens of `counter`, in one go."""
    return run(trim_in_steps(parts, counter, limit))


def trim_in_steps(parts: Sequence[Part], counter: Counter, limit: int = LIMIT) -> Steps[Trimming]:
    """As `trim`, in steps of a few milliseconds.

    Heads, headers and links stay whole, and each block costs some 20 tokens however little of it is left:
    a response of hundreds of blocks may stay above the limit.
    """
    if fits(parts, limit):
        return Trimming(tuple(parts), ())
    return (yield from _Trimmer(counter, limit).trim([_joined(part) for part in _with_few_images(parts)]))


def fits(parts: Sequence[Part], limit: int = LIMIT) -> bool:
    """Is it plain without counting that nothing needs trimming?  A token is at least one byte."""
    images = [part.size for part in parts if part.kind == "image"]
    if len(images) > MAX_IMAGES or sum(images) > MAX_IMAGE_DATA:
        return False
    left = limit
    for part in parts:
        if part.kind == "image":
            left -= IMAGE_TOKENS
        elif part.tail is not None or len(part.text) > left:
            return False
        elif part.kind == "link":
            left -= len(part.text.encode())
        else:
            left -= len(_BEFORE) + len(escaped(part.text).encode()) + len(_AFTER)
        if left < 0:
            return False
    return True


@dataclass(slots=True)
class _Item:
    part: Part
    cost: int = 0
    """Tokens of the whole block."""
    body: int = 0
    """Tokens of the text alone."""
    exact: bool = True
    """Are all tokens of the text counted?  Not those of a missing middle, nor between samples."""
    here: int = 0
    """Bytes of UTF-8 of the text that is here."""
    around: int = 0
    """Tokens of everything but text, once its middle is removed."""

    @property
    def spilled(self) -> bool:
        return self.part.tail is not None

    @property
    def full_cost(self) -> int:
        return self.body + self.around if self.spilled else self.cost

    @property
    def full_size(self) -> int:
        return max(self.part.size, self.here) if self.spilled else self.here


class _Plan(NamedTuple):
    detail: Detail
    share: float
    """Tokens that no trimmed block exceeds."""
    feasible: bool


class _Trimmer:
    def __init__(self, counter: Counter, limit: int) -> None:
        self._count = counter
        self._limit = limit
        self._wrap = counter(_BEFORE) + counter(_AFTER)

    def trim(self, parts: Sequence[Part]) -> Steps[Trimming]:
        items: list[_Item] = []
        for part in parts:
            items.append((yield from self._measured(part)))
            yield
        plan = yield from self._planned(items)
        while not plan.feasible and (image := _last_image(items)) is not None:
            items[image] = yield from self._measured(_as_link(items[image].part))
            plan = yield from self._planned(items)
        shown: list[Part] = []
        trimmed: list[Trimmed] = []
        for index, item in enumerate(items):
            part = item.part
            if part.kind == "text" and (item.spilled or plan.share < item.cost > item.around):
                part, lost = yield from self._cut(index, item, plan)
                trimmed.append(lost)
                yield
            shown.append(part)
        if trimmed and (head := _head(parts)) is not None:
            shown[head] = with_report(shown[head], trimmed, plan.detail)
        return Trimming(tuple(shown), tuple(trimmed))

    def _measured(self, part: Part) -> Steps[_Item]:
        if part.kind == "image":
            return _Item(part, cost=IMAGE_TOKENS)
        if part.kind == "link":
            return _Item(part, cost=self._count(part.text))
        item = _Item(part, exact=part.tail is None)
        for text in (part.text, part.tail or ""):
            total, exact = yield from count_in_slices(text, self._count)
            if not exact and total <= self._limit:  # the samples may have missed what is dense
                total, exact = (yield from count_exactly(text, self._count)), True
            item.body += total
            item.exact &= exact
            item.here += yield from _size(text)
        item.cost = self._wrap + item.body
        return item

    def _planned(self, items: list[_Item]) -> Steps[_Plan]:
        """How much is said and how long a text may be, so that all fit."""
        plan = yield from self._planned_with(Detail.FULL, items)
        for detail in (Detail.BRIEF, Detail.BARE):
            if plan.feasible:
                break
            plan = yield from self._planned_with(detail, items)
        return plan

    def _planned_with(self, detail: Detail, items: list[_Item]) -> Steps[_Plan]:
        texts = [item for item in items if item.part.kind == "text"]
        reports = _head([item.part for item in items]) is not None
        for index, item in enumerate(texts):
            item.around = self._around(item, detail, reports)
            if index % 8 == 7:
                yield
        costs = [item.full_cost for item in texts]
        fixed = sum(item.cost for item in items if item.part.kind != "text")
        fixed += self._report(texts, detail) if reports else 0
        room, share = self._limit, inf
        if fixed + sum(costs) > room:
            room = int(self._limit * SHRUNK)
            share = _fair_share(costs, room - fixed)
        least = 0 if detail is Detail.BARE else _LEAST
        feasible = fixed <= room and all(
            share >= item.around + least for item in texts if item.full_cost > share
        )
        return _Plan(detail, share, feasible)

    def _report(self, texts: list[_Item], detail: Detail) -> int:
        """Tokens of the head's report besides the records that `_around` counts."""
        most = sum(max(item.body, item.full_size) for item in texts)
        summary = {"parts": len(texts), "removedBytes": most, "removedTokens": most}
        records = [summary] if detail is Detail.BARE else []
        return self._sent(f',"trimmed":{compact(records)}')

    def _around(self, item: _Item, detail: Detail, reports: bool) -> int:
        """Tokens of a trimmed block besides its text, for the largest numbers that may come."""
        size, tokens = item.full_size, max(item.body, item.full_size)
        lost = Trimmed(0, item.part.call, size, size, tokens, False, item.part.read_at(size))
        around = self._wrap + self._sent(f"\n{marker(lost, detail)}\n")
        if reports and detail is not Detail.BARE:
            around += self._sent(compact(record(lost, detail)) + ",")
        return around

    def _sent(self, text: str) -> int:
        return self._count(escaped(text))

    def _cut(self, index: int, item: _Item, plan: _Plan) -> Steps[tuple[Part, Trimmed]]:
        part, spilled = item.part, item.spilled
        front, back = part.text, part.text if part.tail is None else part.tail
        start, end = len(front), 0
        if plan.share < item.full_cost:
            room = max(int(plan.share) - item.around, 0)
            length = yield from self._fitting(back, ceil(room * _TAIL), from_end=True)
            end = line_after(back, len(back) - length, min(_LINE_NEAR, length // 5))
            used = yield from count_exactly(back[end:], self._count)
            length = yield from self._fitting(front, min(room - used, used), from_end=False)
            start = line_before(front, length, min(_LINE_NEAR, length // 5))
            if not spilled:
                start = min(start, end)
        head, tail = front[:start], back[end:]
        offset = len(head.encode())
        removed = item.full_size - offset - len(tail.encode())
        if item.exact:
            tokens = yield from count_exactly(front[start:end], self._count)
        else:
            kept = (yield from count_exactly(head, self._count)) + (
                yield from count_exactly(tail, self._count)
            )
            tokens = max(ceil(item.body * item.full_size / max(item.here, 1)) - kept, 0)
        lost = Trimmed(index, part.call, offset, removed, tokens, item.exact, part.read_at(offset))
        glue = "" if not head or head.endswith("\n") else "\n"
        text = f"{head}{glue}{marker(lost, plan.detail)}\n{tail}"
        return replace(part, text=text, tail=None, size=0), lost

    def _fitting(self, text: str, room: int, *, from_end: bool) -> Steps[int]:
        """About as many characters of one end of `text` as `room` tokens hold, never more."""
        fits, too_long = 0, len(text) + 1
        length = min(len(text), room * 3)
        attempts = 0
        while length > fits:
            attempts += 1
            piece = text[len(text) - length :] if from_end else text[:length]
            tokens = yield from count_exactly(piece, self._count)
            yield
            if tokens <= room:
                fits = length
                if room - tokens <= room // 64:
                    break
            else:
                too_long = length
            aimed = length * 4 if 4 * tokens < room else length * room // max(tokens, 1)
            if attempts > _AIMED or not fits < aimed < too_long:
                aimed = (fits + too_long) // 2
            length = aimed
        return fits


def _size(text: str) -> Steps[int]:
    """Bytes of UTF-8 of `text`."""
    if text.isascii():
        return len(text)
    size = 0
    for start in range(0, len(text), EXACT_BELOW):
        size += len(text[start : start + EXACT_BELOW].encode())
        yield
    return size


def _fair_share(costs: list[int], room: int) -> float:
    """The most that each may have so that all together have `room`, when short ones give what they leave."""
    left = room
    for index, cost in enumerate(sorted(costs)):
        share = left // (len(costs) - index)
        if cost > share:
            return share
        left -= cost
    return inf


def _with_few_images(parts: Sequence[Part]) -> list[Part]:
    images = data = 0
    bounded = list(parts)
    for index, part in enumerate(parts):
        if part.kind != "image":
            continue
        if images < MAX_IMAGES and data + part.size <= MAX_IMAGE_DATA:
            images, data = images + 1, data + part.size
        else:
            bounded[index] = _as_link(part)
    return bounded


def _joined(part: Part) -> Part:
    """A spill whose two ends are all of it is a plain text."""
    if part.tail is None or part.lossy or len(part.text.encode()) + len(part.tail.encode()) < part.size:
        return part
    return replace(part, text=part.text + part.tail, tail=None, size=0)


def _as_link(part: Part) -> Part:
    return replace(part, kind="link", size=0)


def _last_image(items: list[_Item]) -> int | None:
    return next((at for at in reversed(range(len(items))) if items[at].part.kind == "image"), None)


def _head(parts: Sequence[Part]) -> int | None:
    return next((index for index, part in enumerate(parts) if part.kind == "head"), None)
