"""Makes a failing history short: leaves out steps as long as the same promise stays broken."""

import re
from collections.abc import Sequence

from .world import Failure, Step, play

PLAYS = 250
"""Histories tried at most."""

_NAMES = re.compile(r"\b(op|in|s|i|r|e)_\w+|\bc\d+(\.\d+)*\b|\bs\d\b|[\d.]+")


def kind_of(message: str) -> str:
    """The promise that was broken, without names and numbers."""
    return _NAMES.sub("#", message)[:80]


def shrink(failure: Failure) -> tuple[Failure, tuple[int, ...]]:
    """A shorter history of the same kind, and which steps of the whole it keeps."""
    kind, best, left = kind_of(failure.message), failure, PLAYS
    kept = list(range(len(failure.plan)))
    size = len(kept) // 2
    while size:
        start, smaller = 0, False
        while start < len(kept) and left:
            left -= 1
            attempt = kept[:start] + kept[start + size :]
            found, _ = play(failure.seed, chosen(failure.plan, attempt))
            if found is not None and kind_of(found.message) == kind:
                kept, best, smaller = attempt, found, True
            else:
                start += size
        if not left:
            break
        if not smaller or size > 1:
            size //= 2
    return best, tuple(kept)


def chosen(plan: Sequence[Step], kept: Sequence[int]) -> tuple[Step, ...]:
    return tuple(plan[at] for at in kept)


def described(failure: Failure, kept: Sequence[int]) -> str:
    """What to print: the trace and how to see it again."""
    steps = ",".join(map(str, kept))
    return "\n".join(
        [
            *failure.trace,
            f"VIOLATION  {failure.message}",
            f"again: PYTHONHASHSEED=0 python -m tests.sim --seed {failure.seed} --keep {steps}",
        ]
    )
