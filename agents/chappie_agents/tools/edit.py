"""The tool `edit`: exact replacements in one text file.  Writes all of them or none."""

import difflib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from anyio import to_thread
from pydantic import Field

from chappie_agents.resolved import reading, replace
from chappie_agents.tools.difference import Replacement, apply, difference
from chappie_agents.tools.tool import (
    Arguments,
    GivenPath,
    ToolContext,
    ToolFailed,
    Writable,
    shown,
    speaking_of,
    status,
    tool,
)
from chappie_bridge.wire.blocks import Content, Text

EDIT_MAX = 16 * 1024 * 1024
"""Bytes of a file that is edited in memory."""

_NEAR = 3
_NEAR_LINES = 5000
_NEAR_WIDTH = 200


class Replace(Arguments):
    old_text: Annotated[
        Writable,
        Field(alias="oldText", min_length=1, description="Text to replace, exact, found exactly once."),
    ]
    new_text: Annotated[Writable, Field(alias="newText", description="Text to put there.")]
    replace_all: Annotated[
        bool, Field(alias="replaceAll", description="Replace every occurrence instead of the only one.")
    ] = False


class Edit(Arguments):
    path: Annotated[
        GivenPath, Field(description="The file: relative to the working directory, absolute or ~/.")
    ]
    edits: Annotated[
        tuple[Replace, ...],
        Field(
            strict=False,
            min_length=1,
            max_length=256,
            description="Replacements, each found in the file as it is now; they must not overlap.",
        ),
    ]


async def _edit(arguments: Edit, context: ToolContext) -> Content:
    path = await context.permit("edit", arguments.path, writing=True)
    return await to_thread.run_sync(_change, path, arguments.edits)


def _change(path: Path, edits: tuple[Replace, ...]) -> Content:
    with speaking_of(path):
        with reading(path) as descriptor:
            before = os.fstat(descriptor)
            if before.st_size > EDIT_MAX:
                raise ToolFailed(f"{shown(path)} has {before.st_size} bytes; edit takes at most {EDIT_MAX}.")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(EDIT_MAX + 1)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise ToolFailed(
                f"{shown(path)} is not UTF-8 at byte {error.start}. Convert it first, or change it with bash."
            ) from None
        places = _places(text, edits)
        after = apply(text, places)
        if after == text:
            raise ToolFailed(f"These edits change nothing in {shown(path)}.")
        encoded = after.encode()
        replace(path, encoded, expected=before)
    diff, cut = difference(text, places, shown(path))
    said = status(path=shown(path), replacements=len(places), bytes=len(encoded), diffCut=cut or None)
    return Text(text=diff), said


def _places(text: str, edits: tuple[Replace, ...]) -> tuple[Replacement, ...]:
    """Where each edit goes, in the order of the text.  Raises `ToolFailed` with every fault."""
    places: list[tuple[Replacement, int]] = []
    faults: list[str] = []
    breaks = text.count("\r\n")
    windows = breaks * 2 > text.count("\n")
    for number, edit in enumerate(edits, 1):
        # LF stands for the file's own line ends, unless a CR in oldText says: exactly so.
        loose = breaks > 0 and "\r" not in edit.old_text
        spans = _spans(text, edit.old_text, loose)
        found = [next(spans, None), next(spans, None)]
        if found[0] is None:
            faults.append(f"Edit {number}: oldText is not in the file.{_nearest(text, edit.old_text)}")
        elif found[1] is not None and not edit.replace_all:
            lines = ", ".join(str(text.count("\n", 0, span[0]) + 1) for span in found if span)
            faults.append(
                f"Edit {number}: oldText is there more than once (first at lines {lines}). "
                "Add text around it, or set replaceAll."
            )
        else:
            end = 0
            for start, stop in (*(span for span in found if span), *spans):
                put = _ending(edit.new_text, text[start:stop], windows) if loose else edit.new_text
                if start >= end:  # occurrences that overlap one another: the first counts
                    places.append((Replacement(start, stop, put), number))
                    end = stop
    places.sort(key=lambda place: (place[0].start, place[0].stop))
    for (earlier, first), (later, second) in itertools.pairwise(places):
        if later.start < earlier.stop:
            line = text.count("\n", 0, later.start) + 1
            faults.append(f"Edits {first} and {second} overlap at line {line}.")
            break
    if faults:
        raise ToolFailed("Nothing was written.\n" + "\n".join(faults))
    return tuple(place for place, _ in places)


def _spans(text: str, old: str, loose: bool) -> Iterator[tuple[int, int]]:
    """Every occurrence, overlapping ones too: two of them are already ambiguous."""
    if loose and "\n" in old:
        lines = (re.escape(line) for line in old.split("\n"))
        pattern = re.compile(r"(?:\r\n|(?<!\r)\n)".join(lines))
        match = pattern.search(text)
        while match is not None:
            yield match.span()
            match = pattern.search(text, match.start() + 1)
        return
    start = text.find(old)
    while start >= 0:
        yield start, start + len(old)
        start = text.find(old, start + 1)


def _ending(new: str, old: str, windows: bool) -> str:
    """`new` with the line end that comes first in `old`, or of most of the file (`windows`: CRLF)."""
    if "\r" in new or "\n" not in new:
        return new
    if "\n" in old:
        windows = old[: old.index("\n")].endswith("\r")
    return new.replace("\n", "\r\n") if windows else new


def _nearest(text: str, wanted: str) -> str:
    """The lines of the file that come closest to the first line of `wanted`, quoted as JSON would."""
    first = next((line for line in wanted.splitlines() if line.strip()), "")[:_NEAR_WIDTH]
    lines = [line[:_NEAR_WIDTH] for line in text.split("\n", _NEAR_LINES)[:_NEAR_LINES]]
    close = [line for line in dict.fromkeys(lines) if first.strip() and line.strip() == first.strip()]
    close = close or difflib.get_close_matches(first, list(dict.fromkeys(lines)), n=_NEAR, cutoff=0.6)
    if not close:
        return ""
    shown_lines = (f"  line {lines.index(line) + 1}: {line!r}" for line in close[:_NEAR])
    return "\nNearest to its first line, quoted:\n" + "\n".join(shown_lines)


EDIT = tool(
    "edit",
    """Replace exact text in a UTF-8 file. Each oldText must be in the file exactly once (or set
    replaceAll); all edits are checked against the file as it is before anything is written. A line
    break in oldText also matches CRLF, and the file keeps its line ends. Returns a unified diff.""",
    Edit,
    _edit,
    parallel=False,
)
