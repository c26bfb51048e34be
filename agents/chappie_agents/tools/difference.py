"""A unified diff of known replacements: its cost is that of the change, not of the file.  Pure."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

CONTEXT = 3
"""Lines shown around a change."""

DIFF_MAX = 32 * 1024
"""Characters of a diff."""


class Replacement(NamedTuple):
    """Characters `start` to `stop` of a text give way to `new`."""

    start: int
    stop: int
    new: str


def apply(text: str, places: Sequence[Replacement]) -> str:
    """`text` with the replacements made.  They are in order and do not overlap."""
    parts: list[str] = []
    end = 0
    for place in places:
        parts += (text[end : place.start], place.new)
        end = place.stop
    return "".join((*parts, text[end:]))


class _Change(NamedTuple):
    """Whole lines: `first` is the index of the first old one, `start` and `stop` are characters."""

    first: int
    start: int
    stop: int
    old: list[str]
    new: list[str]


def _lines(text: str) -> list[str]:
    """Lines with their LF.  Other line breaks of Unicode are plain characters to a diff."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _line_start(text: str, position: int) -> int:
    return text.rfind("\n", 0, position) + 1


def _line_stop(text: str, position: int) -> int:
    """The end of the line that the character before `position` is in."""
    if position > 0 and text[position - 1] == "\n":
        return position
    found = text.find("\n", position)
    return len(text) if found < 0 else found + 1


def _changes(text: str, places: Sequence[Replacement]) -> Iterator[_Change]:
    line = counted = last = 0
    while last < len(places):
        index = last
        start = stop = _line_start(text, places[index].start)
        while last == index or (last < len(places) and places[last].start < stop):
            place = places[last]
            stop = max(stop, _line_stop(text, max(place.stop, place.start + 1)))
            last += 1
            if place.stop == stop and not place.new.endswith("\n"):
                # The line lost its end, so the next one is part of it.
                stop = _line_stop(text, min(stop + 1, len(text)))
        shifted = [Replacement(a - start, b - start, new) for a, b, new in places[index:last]]
        line += text.count("\n", counted, start)
        counted = start
        yield _trim(line, start, stop, text[start:stop], apply(text[start:stop], shifted))


def _trim(first: int, start: int, stop: int, old_text: str, new_text: str) -> _Change:
    old, new = _lines(old_text), _lines(new_text)
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    tail = 0
    while tail < min(len(old), len(new)) - same and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    start += sum(map(len, old[:same]))
    stop -= sum(map(len, old[len(old) - tail :]))
    return _Change(first + same, start, stop, old[same : len(old) - tail], new[same : len(new) - tail])


def _before(text: str, position: int, floor: int) -> list[str]:
    start = position
    for _ in range(CONTEXT):
        if start <= floor:
            break
        start = max(floor, _line_start(text, start - 1))
    return _lines(text[start:position])


def _after(text: str, position: int, ceiling: int) -> list[str]:
    stop = position
    for _ in range(CONTEXT):
        if stop >= ceiling:
            break
        stop = min(ceiling, _line_stop(text, stop + 1))
    return _lines(text[position:stop])


def _hunks(text: str, changes: Sequence[_Change]) -> Iterator[list[_Change]]:
    """Changes with so few lines between them that their contexts would meet."""
    group: list[_Change] = []
    for change in changes:
        if group and change.first - (group[-1].first + len(group[-1].old)) > 2 * CONTEXT:
            yield group
            group = []
        group.append(change)
    if group:
        yield group


def _count(first: int, lines: int) -> str:
    """A range as unified diffs write it: an empty one names the line before."""
    return f"{first + 1 if lines else first},{lines}"


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


def difference(text: str, places: Sequence[Replacement], name: str) -> tuple[str, bool]:
    """The diff from `text` to its successor, and whether it was cut at `DIFF_MAX` characters."""
    parts = [f"--- {name}\n", f"+++ {name}\n"]
    size, shift = sum(map(len, parts)), 0
    changes = [change for change in _changes(text, places) if change.old or change.new]
    for group in _hunks(text, changes):
        lead = _before(text, group[0].start, 0)
        body = list(_marked(" ", lead))
        removed = added = len(lead)
        for index, change in enumerate(group):
            body += (*_marked("-", change.old), *_marked("+", change.new))
            last = index + 1 == len(group)
            between = (
                _after(text, change.stop, len(text))
                if last
                else _lines(text[change.stop : group[index + 1].start])
            )
            body += _marked(" ", between)
            removed += len(change.old) + len(between)
            added += len(change.new) + len(between)
        first = group[0].first - len(lead)
        head = f"@@ -{_count(first, removed)} +{_count(first + shift, added)} @@\n"
        shift += added - removed
        hunk = head + "".join(body)
        if size + len(hunk) > DIFF_MAX:
            return "".join(parts) + hunk[: DIFF_MAX - size], True
        parts.append(hunk)
        size += len(hunk)
    return "".join(parts), False
