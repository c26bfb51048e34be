"""The turn of an agent program, as its model endpoint sees it: one table, and how a request follows what was
answered before.  Pure: no I/O, no clock.
"""

from enum import StrEnum
from typing import Literal, NamedTuple

from chappie_bridge.codec.tail import Trace, relation
from chappie_bridge.codec.turn import Answered, Summary, Turn
from chappie_bridge.wire.ids import CallId, OperationId
from chappie_bridge.wire.machine import Table

GRACE = 20.0
"""Seconds after which a held request that was closed and did not come back counts as stopped by the person:
programs try again after 0.2 to 8 s at first."""

HOLD_LEASE = 600.0
"""Seconds without any word after which a session that waits for nothing is gone."""


class Phase(StrEnum):
    """What the program does."""

    IDLE = "idle"
    """Its turn is over: the person has the word."""
    HELD = "held"
    """A request of it is open and waits for ChatGPT."""
    DROPPED = "dropped"
    """That request was closed before it was answered: to be sent again, to be extended, or stopped."""
    ANSWERED = "answered"
    """It was given calls, which are not known to have left."""
    AWAITING = "awaiting"
    """The calls left; it runs them, or asks the person about them."""
    GONE = "gone"


_P = Phase

TURN = Table(
    "turn of an agent program",
    {
        (_P.IDLE, "asks"): _P.HELD,
        (_P.IDLE, "again"): _P.HELD,  # the end of its turn did not arrive
        (_P.IDLE, "lease_over"): _P.GONE,
        (_P.HELD, "asks"): _P.HELD,  # a newer request takes the place of one that is not closed yet
        (_P.HELD, "again"): _P.HELD,
        (_P.HELD, "calls"): _P.ANSWERED,
        (_P.HELD, "text"): _P.IDLE,
        (_P.HELD, "closed"): _P.DROPPED,
        (_P.HELD, "lease_over"): _P.HELD,  # it came back while the timer fired
        (_P.DROPPED, "again"): _P.HELD,  # re-attached; nobody is told
        (_P.DROPPED, "asks"): _P.HELD,
        (_P.DROPPED, "grace_over"): _P.IDLE,
        (_P.DROPPED, "lease_over"): _P.GONE,
        (_P.ANSWERED, "written"): _P.AWAITING,
        (_P.ANSWERED, "closed"): _P.ANSWERED,  # it will ask again, or the person stopped it
        (_P.ANSWERED, "again"): _P.ANSWERED,  # the same calls with the same ids
        (_P.ANSWERED, "asks"): _P.HELD,
        (_P.ANSWERED, "aborted"): _P.IDLE,
        (_P.ANSWERED, "lease_over"): _P.GONE,
        (_P.AWAITING, "again"): _P.ANSWERED,  # the bytes left and never arrived
        (_P.AWAITING, "asks"): _P.HELD,
        (_P.AWAITING, "aborted"): _P.IDLE,  # its transcript says so
        (_P.AWAITING, "lease_over"): _P.GONE,
        (_P.GONE, "asks"): _P.HELD,
        (_P.GONE, "again"): _P.HELD,
        # What crosses with something newer changes nothing.
        **{(phase, "closed"): phase for phase in (_P.IDLE, _P.DROPPED, _P.AWAITING, _P.GONE)},
        **{(phase, "written"): phase for phase in (_P.IDLE, _P.HELD, _P.DROPPED, _P.AWAITING, _P.GONE)},
        **{(phase, "aborted"): phase for phase in (_P.IDLE, _P.HELD, _P.DROPPED, _P.GONE)},
        **{(phase, "grace_over"): phase for phase in (_P.IDLE, _P.HELD, _P.ANSWERED, _P.AWAITING, _P.GONE)},
        (_P.GONE, "lease_over"): _P.GONE,
    },
)


class Given(NamedTuple):
    """What a request was answered with: calls of an operation, or the text that ended the turn."""

    trace: Trace
    operation: OperationId
    calls: tuple[CallId, ...] = ()
    text: str = ""


Sequel = Literal["arrived", "again", "stopped", "unclear"]
"""What became of an answer.  `arrived`: it is in the history.  `again`: the same request, so it did not
arrive.  `stopped`: the person broke the turn off before it arrived.  `unclear`: the history went elsewhere
(a compaction, an undo), so whether it arrived cannot be seen here."""


def sequel(given: Given, turn: Turn) -> Sequel:
    """What `turn`, a main request of the same session, says of the answer before it."""
    if given.calls and seen(given.calls, turn):
        return "arrived"
    how = relation(given.trace, turn)
    if not given.calls:
        return "again" if how == "same" else "arrived"
    if how in ("same", "steered"):
        return "again"
    if how == "extended":
        return "stopped"
    return "unclear"


def seen(calls: tuple[CallId, ...], turn: Turn) -> bool:
    """Is any of these calls in the turn's history?"""
    wanted = set(calls)
    return any(
        call.id in wanted
        for piece in reversed(turn.history)
        if isinstance(piece, Answered)
        for call in piece.calls
    )


def compacted(turn: Turn) -> bool:
    return any(isinstance(piece, Summary) for piece in turn.history)
