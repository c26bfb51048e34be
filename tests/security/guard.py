"""One guard, how it is taken away, and what fails then.  Runs nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Guard:
    """In `file`, `old` becomes `new`; then `test` fails.  `what` says what is taken away."""

    case: str
    what: str
    file: str
    old: str
    new: str
    test: str
