"""A lifecycle as a table `(state, input) -> state`.  An absent row is a bug and raises."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

State = TypeVar("State", bound=StrEnum)


class NoSuchRow(LookupError):
    """The table has no row for this state and input: a bug in the caller, not a race."""


class Table(Generic[State]):
    """`rows` maps (state, input name) to the next state; ordinary races are rows, too."""

    def __init__(self, name: str, rows: Mapping[tuple[State, str], State]) -> None:
        self.name = name
        self.rows = dict(rows)

    def next(self, state: State, event: str) -> State:
        """The state after `event`.  :raises NoSuchRow: when the table does not know the pair."""
        try:
            return self.rows[state, event]
        except KeyError:
            raise NoSuchRow(f"{self.name}: no row for {event!r} in state {state!r}") from None

    def render(self) -> str:
        """The table as Markdown, for ARCHITECTURE.md."""
        lines = ["| state | input | next |", "|---|---|---|"]
        lines += [f"| {state} | {event} | {after} |" for (state, event), after in self.rows.items()]
        return "\n".join(lines)
