"""The lifecycles are tables: each state says what every input means there, or the input is a bug."""

from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge.wire.batch import BATCH, ON_THE_LINK, OPEN, Status
from chappie_bridge.wire.machine import NoSuchRow, Table
from chappie_bridge.wire.question import QUESTION, Stage
from chappie_bridge.wire.session import SESSION, Presence
from chappie_bridge.wire.transfer import TRANSFER, UNFINISHED, Move

TABLES: list[tuple[Table[Any], type[StrEnum], StrEnum]] = [
    (SESSION, Presence, Presence.GREETING),
    (BATCH, Status, Status.QUEUED),
    (TRANSFER, Move, Move.OFFERED),
    (QUESTION, Stage, Stage.ASKED),
]
CALLERS = {"cancel", "withdrawn", "session_gone"}
"""May cross with anything, the end included."""
AGENTS = {"done", "failed", "cancelled", "asks", "answered"}
"""May be late, or come twice after a replay."""

RACES: dict[str, dict[StrEnum, set[str]]] = {
    "session": {state: {"registered", "link_lost", "lease_expired"} for state in Presence},
    "batch": {
        Status.QUEUED: CALLERS | {"queue_expired"},
        **{state: CALLERS | AGENTS | {"restarted"} for state in ON_THE_LINK},
        Status.CANCELLING: CALLERS | AGENTS | {"restarted", "silent"},
        **{state: CALLERS | AGENTS | {"restarted", "silent"} for state in set(Status) - OPEN},
        Status.LOST: CALLERS | {"restarted", "silent", "queue_expired"},
    },
    "question": {state: {"loaded", "answer", "skip", "unseen"} for state in Stage},
    "transfer": {
        **{state: {"link_lost", "cancelled", "failed"} for state in Move},
        **{state: {"written", "cancelled", "failed"} for state in set(Move) - {Move.OFFERED}},
    },
}


@pytest.mark.parametrize(("table", "states", "first"), TABLES, ids=lambda value: getattr(value, "name", ""))
def test_every_ordinary_race_is_a_row(table: Table[Any], states: type[StrEnum], first: StrEnum) -> None:
    for state, events in RACES[table.name].items():
        for event in events:
            assert table.next(state, event) in states


@pytest.mark.parametrize(("table", "states", "first"), TABLES, ids=lambda value: getattr(value, "name", ""))
def test_every_state_can_be_reached(table: Table[Any], states: type[StrEnum], first: StrEnum) -> None:
    reached = {first}
    while more := {after for (state, _), after in table.rows.items() if state in reached} - reached:
        reached |= more
    assert reached == set(states)


@pytest.mark.parametrize(("table", "states", "first"), TABLES, ids=lambda value: getattr(value, "name", ""))
def test_an_absent_row_is_a_bug_and_raises(table: Table[Any], states: type[StrEnum], first: StrEnum) -> None:
    events = {event for _, event in table.rows}
    for state in states:
        for event in events | {"no such input"}:
            if (state, event) not in table.rows:
                with pytest.raises(NoSuchRow, match=str(state)):
                    table.next(state, event)


@pytest.mark.parametrize(("table", "states", "first"), TABLES, ids=lambda value: getattr(value, "name", ""))
def test_any_walk_stays_inside_the_table(table: Table[Any], states: type[StrEnum], first: StrEnum) -> None:
    @given(st.lists(st.sampled_from(sorted({event for _, event in table.rows})), max_size=30))
    def walk(events: list[str]) -> None:
        state = first
        for event in events:
            if (state, event) in table.rows:
                state = table.next(state, event)
            assert state in states

    walk()


@pytest.mark.parametrize(("table", "states", "first"), TABLES, ids=lambda value: getattr(value, "name", ""))
def test_a_rendered_table_has_a_line_for_each_row(
    table: Table[Any], states: type[StrEnum], first: StrEnum
) -> None:
    assert len(table.render().splitlines()) == 2 + len(table.rows)


@given(st.lists(st.sampled_from(sorted({event for _, event in BATCH.rows})), max_size=30))
def test_a_final_outcome_never_changes_except_for_the_better(events: list[str]) -> None:
    state = Status.QUEUED
    for event in events:
        if (state, event) not in BATCH.rows:
            continue
        before, state = state, BATCH.next(state, event)
        if before not in OPEN:
            assert state is before or before is Status.INTERRUPTED
            assert state not in OPEN


@given(st.lists(st.sampled_from(sorted({event for _, event in BATCH.rows})), max_size=30))
def test_what_touched_the_link_is_never_lost(events: list[str]) -> None:
    state, touched = Status.QUEUED, False
    for event in events:
        if (state, event) in BATCH.rows:
            state = BATCH.next(state, event)
            touched = touched or state in ON_THE_LINK
            assert not (touched and state is Status.LOST)
            assert touched or state is not Status.INTERRUPTED


@given(st.lists(st.sampled_from(sorted({event for _, event in TRANSFER.rows})), max_size=30))
def test_a_file_that_ended_never_begins_again(events: list[str]) -> None:
    state = Move.OFFERED
    for event in events:
        if (state, event) not in TRANSFER.rows:
            continue
        before, state = state, TRANSFER.next(state, event)
        assert before in UNFINISHED or state is before


def test_a_dropped_socket_never_ends_a_session() -> None:
    """B31 B33: only the lease and the agent's own goodbye do."""
    for state in (Presence.ONLINE, Presence.ADRIFT):
        assert SESSION.next(state, "link_lost") is Presence.ADRIFT
        assert SESSION.next(SESSION.next(state, "link_lost"), "link_back") is Presence.ONLINE


def test_a_session_whose_link_is_closed_for_good_is_over_announced_or_not() -> None:
    for state in Presence:
        assert SESSION.next(state, "lease_expired") is Presence.ENDED
