"""Which session a program is that serves one of them.  Pure: it is given all there is to know.

In this order, and never a guess between two:
1. `CHAPPIE_SESSION` in the environment, set by the owner.
2. What the program says of itself: its session in the environment of what it starts, or in `_meta` of the
   request.  A session that is not registered has not selected the model, and is nobody.
3. The process that registered a session, when it is one of our ancestors.
4. The working directory: the one session of this device in it, of the program that our ancestors are.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.ids import MAX_ID, SessionId
from chappie_bridge.wire.values import SessionRow

VARIABLE = "CHAPPIE_SESSION"

OF_PROGRAMS = ("CLAUDE_CODE_SESSION_ID", "PI_SESSION_ID")
"""Variables in which programs tell what they start which session it is for."""

_META = ("chappie/session", "threadId")
_CODEX = "x-codex-turn-metadata"


class Process(NamedTuple):
    """`name` of its program, without a directory."""

    pid: int
    name: str


class Facts(NamedTuple):
    """`ancestors`: the parent first.  `device` as agents of this machine name it."""

    environment: Mapping[str, str]
    meta: Mapping[str, Any] | None
    ancestors: tuple[Process, ...]
    cwd: str
    device: str


class Found(NamedTuple):
    """`why` says what is missing where there is no session."""

    session: SessionId | None
    why: str = ""


def find(rows: Sequence[SessionRow], facts: Facts) -> Found:
    """`rows`: the sessions that are online."""
    known = {row.id for row in rows}
    if named := facts.environment.get(VARIABLE):
        if named in known:
            return Found(SessionId(named))
        return Found(None, f"{VARIABLE} names {display(named, MAX_ID)}, which is not online.")
    told = {*_by_environment(facts.environment), *_by_meta(facts.meta)}
    if told:
        ours = [SessionId(each) for each in told if each in known]
        if len(ours) == 1:
            return Found(ours[0])
        what = "names two sessions" if ours else "is in a session that is not registered"
        return Found(None, f"The program {what}; select the model `chappie` there, or set {VARIABLE}.")
    here = [row for row in rows if row.device == facts.device]
    for process in facts.ancestors:
        children = [row for row in here if row.pid == process.pid]
        if children:
            return _one(children, f"process {process.pid}")
    there = [row for row in here if row.pid is None and row.parent is None and row.cwd == facts.cwd]
    names = {process.name for process in facts.ancestors}
    return _one([row for row in there if row.agent in names] or there, f"the directory {facts.cwd}")


def _one(rows: Sequence[SessionRow], where: str) -> Found:
    if len(rows) == 1:
        return Found(rows[0].id)
    many = f"{len(rows)} sessions: {', '.join(row.id for row in rows[:8])}" if rows else "no session"
    return Found(None, f"{display(where, 300)} has {many}. Set {VARIABLE} to the id of yours.")


def _by_environment(environment: Mapping[str, str]) -> set[str]:
    return {environment[name] for name in OF_PROGRAMS if environment.get(name)}


def _by_meta(meta: Mapping[str, Any] | None) -> set[str]:
    given = dict(meta or {})
    told = {given[name] for name in _META if isinstance(given.get(name), str)}
    if isinstance(turn := given.get(_CODEX), str):
        try:
            turn = json.loads(turn)
        except ValueError:
            turn = None
    if not told and isinstance(turn, Mapping) and isinstance(turn.get("thread_id"), str):
        told.add(turn["thread_id"])
    return {each for each in told if each}
