"""The turn of a program as a table."""

import itertools

import pytest
from chappie_agents.hosts.model.turns import TURN, Phase

from chappie_bridge.wire.machine import NoSuchRow

EVENTS = ["asks", "again", "calls", "text", "closed", "written", "aborted", "grace_over", "lease_over"]


def test_whatever_the_program_or_time_does_has_a_row_in_every_phase() -> None:
    for phase, event in itertools.product(Phase, set(EVENTS) - {"calls", "text"}):
        assert isinstance(TURN.next(phase, event), Phase)


@pytest.mark.parametrize("phase", set(Phase) - {Phase.HELD})
@pytest.mark.parametrize("event", ["calls", "text"])
def test_only_a_held_request_can_be_answered(phase: Phase, event: str) -> None:
    with pytest.raises(NoSuchRow):
        TURN.next(phase, event)


def test_every_phase_can_be_left_and_reached() -> None:
    for phase in Phase:
        assert any(after is not phase for (before, _), after in TURN.rows.items() if before is phase)
        assert any(before is not phase for (before, _), after in TURN.rows.items() if after is phase)


def test_calls_that_left_are_never_taken_for_a_hold_again() -> None:
    """Only new words, results or an abort end them; the same request brings the same calls."""
    for phase in (Phase.ANSWERED, Phase.AWAITING):
        assert TURN.next(phase, "again") is Phase.ANSWERED
        assert TURN.next(phase, "closed") is phase
        assert TURN.next(phase, "grace_over") is phase
