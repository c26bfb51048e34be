"""What is new in a request, and how it follows an earlier one: every program sends its whole history each
time.  Pure; keeps nothing between requests.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

from chappie_bridge.codec.turn import (
    Anchor,
    Answered,
    Api,
    Piece,
    Program,
    SessionKey,
    Side,
    Subagent,
    Summary,
    Turn,
    is_ours,
)
from chappie_bridge.wire.ids import CallId

MAX_JOINS = 32
"""Call ids of ours that a session key carries, newest first."""


class Cut(NamedTuple):
    """Where the tail begins in the history."""

    anchor: Anchor
    start: int


def cut(history: Sequence[Piece]) -> Cut:
    """New is what follows the last answer whose call ids are ours.  Where there is none (a session of
    words alone, or after a compaction): what follows the last answer or summary."""
    last: Cut | None = None
    for index in range(len(history) - 1, -1, -1):
        piece = history[index]
        if isinstance(piece, Answered) and piece.ours:
            return Cut("calls", index + 1)
        if last is None and isinstance(piece, Answered | Summary):
            last = Cut("answer" if isinstance(piece, Answered) else "summary", index + 1)
    return last or Cut("start", 0)


def our_calls(history: Sequence[Piece]) -> tuple[CallId, ...]:
    """Our call ids in the history, newest first, at most MAX_JOINS."""
    found = [
        CallId(call.id)
        for piece in reversed(history)
        if isinstance(piece, Answered)
        for call in reversed(piece.calls)
        if is_ours(call.id)
    ]
    return tuple(found[:MAX_JOINS])


Relation = Literal["same", "steered", "extended", "other"]


class Trace(NamedTuple):
    """What is kept of a held request to know it when it comes again: some hundred bytes."""

    program: Program
    api: Api
    side: Side | None
    session: SessionKey
    agent: Subagent | None
    turn_id: str | None
    start: int
    length: int
    digest: str


def trace(turn: Turn) -> Trace:
    tail = turn.tail
    return Trace(
        turn.program,
        turn.api,
        turn.side,
        turn.session,
        turn.agent,
        turn.turn_id,
        turn.start,
        len(tail),
        _digest(tail),
    )


def relation(earlier: Trace, later: Turn) -> Relation:
    """How `later` follows `earlier`, which was held and got no answer.

    `same`: sent again after a dropped connection.  `steered`: the same user turn with more items (Codex
    closes and re-sends when the person types).  `extended`: a new user turn on top of one that was
    aborted.  Without a native id or common call ids always `other`: two terminals with the same
    greeting are two sessions.
    """
    alike = (earlier.program, earlier.api, earlier.side, earlier.agent, earlier.start) == (
        later.program,
        later.api,
        later.side,
        later.agent,
        later.start,
    )
    if not alike or not _joined(earlier.session, later.session):
        return "other"
    before, more = later.tail[: earlier.length], later.tail[earlier.length :]
    if _digest(before) != earlier.digest or any(isinstance(piece, Answered) for piece in more):
        return "other"
    if not more:
        return "same" if later.turn_id == earlier.turn_id else "other"
    return "steered" if later.turn_id and later.turn_id == earlier.turn_id else "extended"


def _joined(one: SessionKey, other: SessionKey) -> bool:
    if one.id or other.id:
        return one.id == other.id
    return not set(one.calls).isdisjoint(other.calls)


def _digest(pieces: Sequence[Piece]) -> str:
    state = hashlib.sha256()
    for piece in pieces:
        state.update(repr(piece).encode("utf-8", "backslashreplace"))
    return state.hexdigest()
