"""The programs' own transcripts as entries of ours: recorded files, followed as they grow."""

import gzip
import json
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest
from chappie_agents.hosts.model.native import claude, codex, opencode, pi, qwen
from chappie_agents.hosts.model.native.lines import STOPPED, Line, lines_of
from chappie_agents.hosts.model.native.mirror import Mirror, Replaced, open_mirror
from chappie_agents.spool import Spool

from chappie_bridge.codec.loose import Record
from chappie_bridge.wire.ids import CallId
from chappie_bridge.wire.values import Entry, HistoryRange
from tests.agents.stage import texts

pytestmark = pytest.mark.anyio

RECORDED = Path(__file__).parents[2] / "fixtures" / "transcripts"
Read = Callable[[Record], Line | None]
READERS: dict[str, Read] = {"pi": pi.read, "codex": codex.read, "claude": claude.read, "qwen": qwen.read}
FILES = sorted(path.name.removesuffix(".jsonl.gz") for path in RECORDED.glob("*.jsonl.gz"))


def _raw(name: str) -> bytes:
    return gzip.decompress((RECORDED / f"{name}.jsonl.gz").read_bytes())


def _lines(name: str) -> list[Line]:
    read = READERS[name.partition("-")[0]]
    return [line for told in lines_of(_raw(name)) if (line := read(told)) is not None]


def _brief(entry: Entry) -> tuple[str, str]:
    return entry.kind, entry.name or texts(entry.content)[:40]


@pytest.mark.parametrize("name", FILES)
def test_entries_have_native_ids_and_recorded_times(name: str) -> None:
    raw = _raw(name).decode()
    entries = [entry for line in _lines(name) for entry in line.entries]
    assert entries
    assert len({entry.id for entry in entries}) == len(entries)
    for entry in entries:
        native = entry.id.partition(".")[0]
        assert native in raw or native.startswith("line-")
        assert entry.at in raw
        if entry.call is not None:
            assert entry.call in raw


def test_pis_aborted_turn_keeps_the_finished_sibling_and_says_who_stopped_it() -> None:
    told = [_brief(entry) for line in _lines("pi-abort") for entry in line.entries]
    at = told.index(("result", "bash"), 5)
    assert told[at - 3 : at + 3] == [
        ("assistant", "Working."),
        ("call", "bash"),
        ("call", "read"),
        ("result", "bash"),
        ("result", "read"),
        ("notice", STOPPED),
    ]
    results = [entry for line in _lines("pi-abort") for entry in line.entries if entry.kind == "result"]
    assert [(entry.is_error, entry.duration_ms) for entry in results] == [
        (False, 8084),
        (False, 38),
        (True, 6880),
        (False, 9),
    ]


@pytest.mark.parametrize("name", ["pi-compaction", "codex-compaction", "claude-compaction"])
def test_a_compaction_is_a_summary_and_what_was_before_it_stays(name: str) -> None:
    entries = [entry for line in _lines(name) for entry in line.entries]
    kinds = [entry.kind for entry in entries]
    assert kinds.count("summary") == 1
    said = [texts(entry.content) for entry in entries if entry.kind == "user"]
    assert said == ["First question", "Second question", "Third question"]
    assert kinds.index("summary") > kinds.index("result")


def test_codex_tells_failures_and_aborts_in_its_own_words() -> None:
    entries = [entry for line in _lines("codex-abort") for entry in line.entries]
    assert ("notice", STOPPED) in [_brief(entry) for entry in entries]
    assert any(entry.kind == "result" and entry.is_error for entry in entries)
    assert not any("<turn_aborted>" in texts(entry.content) for entry in entries)
    assert not any("<environment_context>" in texts(entry.content) for entry in entries)


def test_claudes_notes_are_not_the_persons_words() -> None:
    for name in ("claude-compaction", "claude-steer-abort"):
        said = [texts(e.content) for line in _lines(name) for e in line.entries if e.kind == "user"]
        assert not any("<" in text for text in said)


def test_claudes_sub_agents_have_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    line = {
        "type": "assistant",
        "uuid": "u1",
        "isSidechain": True,
        "timestamp": "2026-01-02T03:04:05.678Z",
        "message": {"role": "assistant", "content": [{"type": "text", "text": "below"}]},
    }
    assert claude.read(line) is None
    below = claude.read_below(line)
    assert below is not None
    assert [(entry.id, texts(entry.content)) for entry in below.entries] == [("u1", "below")]

    place = tmp_path / ".claude/projects/-work"
    (place / "s1/subagents").mkdir(parents=True)
    own, agent = place / "s1.jsonl", place / "s1/subagents/agent-a1.jsonl"
    own.touch()
    agent.touch()
    assert claude.find(tmp_path, "s1") == own
    assert claude.find(tmp_path, "s1/a1") == claude.find(tmp_path, "s1/a0/a1") == agent
    assert claude.find(tmp_path, "s1/a2") is None


async def test_a_file_that_grows_is_followed_by_what_was_added(tmp_path: Path) -> None:
    raw, file = _raw("pi-abort"), tmp_path / "session.jsonl"
    whole = [entry.id for line in _lines("pi-abort") for entry in line.entries]
    mirror = open_mirror(tmp_path / "native", Spool(tmp_path / "spool"))
    heard: list[Line] = []
    for end in (0, 700, len(raw) // 2, len(raw) // 2 + 1, len(raw)):
        file.write_bytes(b"")
        with file.open("r+b") as stream:  # the same file, longer
            stream.write(raw[:end])
        await mirror.catch_up(file, pi.read, heard.append)
    page = await mirror.transcript.page(HistoryRange(limit=200))
    assert [entry.id for entry in page.entries] == whole
    assert sum(line.stopped for line in heard) == 2
    calls = [CallId("call_2e070b72141f"), CallId("call_4335572e97f5")]
    assert mirror.shows(calls)
    assert texts(mirror.recorded(calls)[calls[0]].content) == "alpha\nbeta\n"
    assert "After abort." in mirror.evidence()
    mirror.close()

    again = open_mirror(tmp_path / "native", Spool(tmp_path / "spool"))
    assert not await again.catch_up(file, pi.read, heard.append)  # nothing is read twice
    page = await again.transcript.page(HistoryRange(limit=200))
    assert [entry.id for entry in page.entries] == whole
    again.close()


async def test_a_turn_that_the_person_took_back_is_another_branch(tmp_path: Path) -> None:
    rows = [
        {"type": "session", "id": "s", "version": 3},
        _pi("a", None, "user", "first"),
        {"type": "model_change", "id": "m", "parentId": "a", "timestamp": "2026-01-01T00:00:00.000Z"},
        _pi("b", "m", "assistant", "abandoned answer"),
        _pi("c", "b", "user", "abandoned question"),
        _pi("d", "m", "assistant", "another answer"),
    ]
    file = tmp_path / "session.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    mirror = open_mirror(tmp_path / "native", Spool(tmp_path / "spool"))
    await mirror.catch_up(file, pi.read, lambda _: None)
    page = await mirror.transcript.page(HistoryRange())
    assert [entry.id for entry in page.entries] == ["a", "d"]
    mirror.close()


async def test_a_file_in_the_others_place_is_taken_in_anew(tmp_path: Path) -> None:
    file, spool = tmp_path / "session.jsonl", Spool(tmp_path / "spool")
    file.write_bytes(_raw("pi-abort"))
    mirror = open_mirror(tmp_path / "native", spool)
    await mirror.catch_up(file, pi.read, lambda _: None)
    (tmp_path / "new").write_bytes(_raw("pi-compaction"))
    (tmp_path / "new").replace(file)
    with pytest.raises(Replaced):
        await mirror.catch_up(file, pi.read, lambda _: None)
    mirror.close()
    mirror = open_mirror(tmp_path / "native", spool, anew=True)
    await mirror.catch_up(file, pi.read, lambda _: None)
    page = await mirror.transcript.page(HistoryRange(limit=200))
    assert [e.id for e in page.entries] == [e.id for ln in _lines("pi-compaction") for e in ln.entries]
    mirror.close()


def _put_rows(path: Path, table: str, rows: Iterable[dict[str, object]]) -> None:
    """New ones, or again those that have their id."""
    with closing(sqlite3.connect(path)) as database, database:
        for row in rows:
            marks = ", ".join("?" for _ in row)
            names = ", ".join(row)
            insert = f"insert or replace into {table} ({names}) values ({marks})"  # noqa: S608 - names of ours
            database.execute(insert, list(row.values()))


def _opencode(path: Path, rows: dict[str, list[dict[str, object]]]) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript((RECORDED / "opencode-schema.sql").read_text(encoding="utf-8"))
    for table in ("message", "part"):
        _put_rows(path, table, rows[table])


async def test_opencodes_parts_are_entries_that_are_renewed_in_their_place(tmp_path: Path) -> None:
    rows = json.loads(gzip.decompress((RECORDED / "opencode-rows.json.gz").read_bytes()))
    path = tmp_path / "opencode.db"
    _opencode(path, rows)
    session = rows["session"][0]["id"]
    found = opencode.changes(path, session, 0)
    told = [_brief(entry) for entry in found.entries]
    assert ("user", "First question") in told
    calls = [entry for entry in found.entries if entry.kind == "call"]
    results = {entry.call: entry for entry in found.entries if entry.kind == "result"}
    assert calls
    assert all(call.call in results for call in calls)
    mirror = Mirror(tmp_path / "native", Spool(tmp_path / "spool"))
    for _ in range(2):
        for entry in found.entries:
            mirror.put(entry)
    page = await mirror.transcript.page(HistoryRange(limit=200))
    assert [entry.id for entry in page.entries] == list(dict.fromkeys(entry.id for entry in found.entries))
    later = opencode.changes(path, session, found.upto)
    assert len(later.entries) < len(found.entries)
    mirror.taken_in(path, found.upto)
    mirror.close()
    again = Mirror(tmp_path / "native", Spool(tmp_path / "spool"))
    assert again.upto(path) == found.upto
    again.close()


def _said(text: str, **times: int) -> str:
    return json.dumps({"type": "text", "text": text, "time": times})


CALLED = json.dumps(
    {"type": "tool", "tool": "bash", "callID": "c", "state": {"status": "running", "input": {}}}
)


@pytest.mark.parametrize("end", ["filled", "left empty", "its message completed", "given up, others follow"])
def test_a_call_of_opencode_waits_for_the_text_before_it_that_is_still_empty(
    tmp_path: Path, end: str
) -> None:
    def message(name: str, at: int, **times: int) -> dict[str, object]:
        data = json.dumps({"role": "assistant", "time": {"created": at, **times}})
        return {"id": name, "session_id": "s", "time_created": at, "time_updated": at, "data": data}

    def part(name: str, of: str, at: int, data: str, written: int) -> dict[str, object]:
        times = {"time_created": at, "time_updated": written}
        return {"id": name, "message_id": of, "session_id": "s", **times, "data": data}

    path = tmp_path / "opencode.db"
    first = [
        part("p1", "m1", 1, _said("Before.", start=1, end=2), 2),
        part("p2", "m1", 5, _said("", start=5), 5),
    ]
    _opencode(path, {"message": [message("m1", 1)], "part": first})
    found = opencode.changes(path, "s", 0)
    assert [entry.id for entry in found.entries] == ["p1"]
    _put_rows(path, "part", [part("p3", "m1", 6, CALLED, 9)])
    found = opencode.changes(path, "s", found.upto)
    assert found.entries == ()
    match end:
        case "filled":
            _put_rows(path, "part", [part("p2", "m1", 5, _said("After.", start=5, end=11), 11)])
        case "left empty":
            _put_rows(path, "part", [part("p2", "m1", 5, _said("", start=5, end=11), 11)])
        case "its message completed":
            _put_rows(path, "message", [message("m1", 11, completed=11)])
        case _:
            _put_rows(path, "message", [message("m2", 11)])
            _put_rows(path, "part", [part("p4", "m2", 11, _said("Next.", start=11, end=12), 12)])
    found = opencode.changes(path, "s", found.upto)
    assert [entry.id for entry in found.entries if entry.id != "p1"] == {
        "filled": ["p2", "p3"],
        "left empty": ["p3"],
        "its message completed": ["p3"],
        "given up, others follow": ["p3", "p4"],
    }[end]
    assert found.upto == (12 if "given up" in end else 11)


def _pi(name: str, parent: str | None, role: str, text: str) -> Record:
    message: Record = {"role": role, "content": [{"type": "text", "text": text}]}
    at = "2026-01-01T00:00:00.000Z"
    return {"type": "message", "id": name, "parentId": parent, "timestamp": at, "message": dict(message)}
