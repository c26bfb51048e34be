"""Which session a program is: the order of what counts, and no guess between two."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge.local_tools.which import Facts, Process, find
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.values import SessionRow


def row(name: str, **more: object) -> SessionRow:
    told = {"agent": "pi", "device": "desk", "cwd": "/work", "status": "ready", "binding_count": 0}
    return SessionRow.model_validate({"id": name, "last_seen": "", **told, **more})


def facts(**more: object) -> Facts:
    known: dict[str, object] = {
        "environment": {}, "meta": None, "ancestors": (), "cwd": "/work", "device": "desk",
    }  # fmt: skip
    return Facts(**{**known, **more})


def test_the_owners_word_comes_first() -> None:
    rows = [row("s1"), row("s2", cwd="/other")]
    given = facts(environment={"CHAPPIE_SESSION": "s2", "PI_SESSION_ID": "s1"}, meta={"threadId": "s1"})
    assert find(rows, given).session == "s2"


def test_the_owners_word_is_not_replaced_when_it_is_wrong() -> None:
    found = find([row("s1")], facts(environment={"CHAPPIE_SESSION": "s\x1b9"}))
    assert found.session is None
    assert "s\\x1b9, which is not online" in found.why


@pytest.mark.parametrize(
    "told",
    [
        {"environment": {"CLAUDE_CODE_SESSION_ID": "s2"}},
        {"environment": {"PI_SESSION_ID": "s2"}},
        {"meta": {"threadId": "s2"}},
        {"meta": {"chappie/session": "s2"}},
        {"meta": {"x-codex-turn-metadata": json.dumps({"thread_id": "s2"})}},
        {"environment": {"PI_SESSION_ID": "s2"}, "meta": {"threadId": "s2"}},
        # A Codex that was started from within another program has that program's variable, too.
        {"environment": {"CLAUDE_CODE_SESSION_ID": "elsewhere"}, "meta": {"threadId": "s2"}},
    ],
)
def test_what_the_program_says_beats_processes_and_directories(told: dict[str, object]) -> None:
    rows = [row("s1", pid=7), row("s2", cwd="/other")]
    assert find(rows, facts(**told, ancestors=(Process(7, "pi"),))).session == "s2"


def test_two_that_are_named_are_none() -> None:
    told = facts(environment={"CLAUDE_CODE_SESSION_ID": "s1"}, meta={"threadId": "s2"})
    found = find([row("s1"), row("s2")], told)
    assert (found.session, "two sessions" in found.why) == (None, True)


def test_a_window_that_has_not_selected_the_model_is_not_its_neighbour() -> None:
    """Two windows of one program in one directory: the other one's session is not ours."""
    found = find([row("s1", agent="codex")], facts(meta={"threadId": "another"}))
    assert (found.session, "not registered" in found.why) == (None, True)


def test_the_nearest_ancestor_that_registered_a_session_is_meant() -> None:
    rows = [row("s1", pid=7), row("s2", pid=8, cwd="/other"), row("s3")]
    assert find(rows, facts(ancestors=(Process(9, "sh"), Process(8, "x"), Process(7, "y")))).session == "s2"


def test_the_directory_counts_only_when_it_has_one_session_of_this_device() -> None:
    assert find([row("s1"), row("s2", cwd="/other")], facts()).session == "s1"
    assert find([row("s1", device="elsewhere")], facts()).session is None
    assert find([row("s1", pid=7)], facts()).session is None, "its children would descend from it"
    assert find([row("s1"), row("s1/agent", parent="s1")], facts()).session == "s1"
    found = find([row("s1"), row("s2")], facts())
    assert found.session is None
    assert "2 sessions: s1, s2" in found.why


def test_the_program_above_tells_two_in_one_directory_apart() -> None:
    rows = [row("s1", agent="pi"), row("s2", agent="codex")]
    assert find(rows, facts(ancestors=(Process(3, "sh"), Process(2, "codex")))).session == "s2"


@given(
    st.lists(st.sampled_from(["/work", "/other"]), max_size=4),
    st.lists(st.sampled_from([7, 8, None]), min_size=4, max_size=4),
    st.lists(st.sampled_from([7, 8, 9]), max_size=2),
)
def test_it_never_names_one_of_several_equals(
    directories: list[str], pids: list[int | None], above: list[int]
) -> None:
    rows = [
        row(f"s{number}", cwd=cwd, pid=pid)
        for number, (cwd, pid) in enumerate(zip(directories, pids, strict=False))
    ]
    told = facts(ancestors=tuple(Process(pid, "sh") for pid in above))
    found = find(rows, told)
    swapped = [
        each.model_copy(update={"id": other.id}) for each, other in zip(rows, reversed(rows), strict=True)
    ]
    mirrored = find(swapped, told)
    if found.session is not None and mirrored.session is not None:
        places = {each.id: place for place, each in enumerate(rows)}
        same = {each.id: place for place, each in enumerate(swapped)}
        assert places[found.session] == same[SessionId(mirrored.session)], "by what it is, not by its place"
    assert (found.session is None) == (mirrored.session is None)
