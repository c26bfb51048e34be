"""The transcript's files, its pages against a naive list, and those who wait for an entry."""

import asyncio
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from chappie_agents.spool import Spool
from chappie_agents.tail import PAGE_BYTES, TAIL_ENTRIES, Page
from chappie_agents.transcript import Transcript
from hypothesis import given, settings
from hypothesis import strategies as st

from chappie_bridge.wire.blocks import Content, Image, Spill, Text
from chappie_bridge.wire.errors import BadArguments, UnknownEntry
from chappie_bridge.wire.ids import EntryId
from chappie_bridge.wire.messages import History
from chappie_bridge.wire.values import HistoryRange
from tests.agents.stage import SESSION, entry, ids, texts

pytestmark = pytest.mark.anyio


@contextmanager
def opened(directory: Path, tail: int = TAIL_ENTRIES) -> Iterator[Transcript]:
    transcript = Transcript(directory, Spool(directory / "spool"), tail=tail)
    try:
        yield transcript
    finally:
        transcript.close()


def span(**given: object) -> HistoryRange:
    return HistoryRange.model_validate(given)


# --- pages against a naive list -------------------------------------------------------------------


class Naive:
    """Every entry with its parent; the branch is walked each time."""

    def __init__(self) -> None:
        self.parents: dict[str, str | None] = {}
        self.shown: dict[str, str] = {}
        self.leaf: str | None = None

    def add(self, name: str, text: str) -> None:
        self.parents[name], self.shown[name], self.leaf = self.leaf, text, name

    def branch(self) -> list[str]:
        found: list[str] = []
        name = self.leaf
        while name is not None:
            found.append(name)
            name = self.parents[name]
        return found[::-1]

    def place(self, name: str, branch: list[str]) -> tuple[int, bool]:
        at: str | None = name
        while at is not None and at not in branch:
            at = self.parents[at]
        assert at is not None
        return branch.index(at), at != name

    def page(self, limit: int, after: str | None, before: str | None) -> tuple[list[str], bool, bool] | str:
        branch = self.branch()
        if (after or before or "") not in self.parents and (after or before):
            return "unknown_entry"
        if before is not None and before not in self.parents:
            return "unknown_entry"
        low, moved_low = self.place(after, branch) if after else (-1, False)
        high, moved_high = self.place(before, branch) if before else (len(branch), False)
        if after and before and low > high:
            return "bad_arguments"
        between = branch[low + 1 : high]
        chosen = between[:limit] if after else between[-limit:]
        return chosen, len(between) > limit, moved_low or moved_high


names = st.integers(0, 14).map("e{}".format)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("update"), names),
        st.tuples(st.just("branch"), names),
        st.tuples(st.just("reopen"), st.none()),
        st.tuples(
            st.just("page"),
            st.tuples(st.integers(1, 4), st.none() | names, st.none() | names),
        ),
    ),
    max_size=40,
)


@settings(max_examples=120, deadline=None)
@given(steps=steps, tail=st.sampled_from([0, 1, 3, 256]))
def test_pages_are_those_of_a_naive_list_while_entries_are_added(
    steps: list[tuple[str, object]], tail: int
) -> None:
    async def scenario(directory: Path) -> None:
        naive = Naive()
        transcript = Transcript(directory, Spool(directory / "spool"), tail=tail)
        for number, (what, value) in enumerate(steps):
            if what == "append":
                assert isinstance(value, int)
                fresh = [f"e{len(naive.parents) + more}" for more in range(value)]
                transcript.append(*(entry(name) for name in fresh))
                for name in fresh:
                    naive.add(name, f"text of {name}")
            elif what == "update" and value in naive.parents:
                old = (await transcript.page(span(entry=value))).text
                assert old is not None
                transcript.update(entry(str(value), f"update {number}"))
                naive.shown[str(value)] = f"update {number}"
            elif what == "branch":
                if value in naive.parents:
                    await transcript.branch(EntryId(str(value)))
                    naive.leaf = str(value)
                else:
                    with pytest.raises(UnknownEntry):
                        await transcript.branch(EntryId(str(value)))
            elif what == "reopen":
                leaf = naive.leaf
                transcript.close()
                transcript = Transcript(directory, Spool(directory / "spool"), tail=tail)
                if transcript.leaf != leaf:  # a branch to which nothing was added is not on the disk
                    naive.leaf = transcript.leaf
                    assert leaf is None or leaf in naive.parents
            elif what == "page":
                assert isinstance(value, tuple)
                limit, after, before = value
                wanted = naive.page(limit, after, before)
                asked = span(limit=limit, after=after, before=before)
                if isinstance(wanted, str):
                    with pytest.raises(UnknownEntry if wanted == "unknown_entry" else BadArguments) as error:
                        await transcript.page(asked)
                    assert wanted == "bad_arguments" or error.value.data == {"newest": naive.leaf}
                    continue
                page = await transcript.page(asked)
                assert (ids(page.entries), page.has_more, page.branch_changed) == wanted
                assert [texts(each.content) for each in page.entries] == [
                    naive.shown[each.id] for each in page.entries
                ]
        transcript.close()

    with tempfile.TemporaryDirectory() as directory:
        anyio.run(scenario, Path(directory))


async def test_fifty_entries_of_the_same_millisecond_are_paged_each_once(tmp_path: Path) -> None:
    """B57: the order is that of writing, whatever the times say."""
    with opened(tmp_path, tail=7) as transcript:
        transcript.append(*(entry(f"e{number}") for number in range(50)))
        backward: list[str] = []
        page = await transcript.page(span(limit=20))
        while True:
            backward[:0] = ids(page.entries)
            if not page.has_more:
                break
            page = await transcript.page(span(limit=20, before=backward[0]))
        forward = ["e0"]
        while (page := await transcript.page(span(limit=20, after=forward[-1]))).entries:
            forward += ids(page.entries)
        assert backward == forward == [f"e{number}" for number in range(50)]


async def test_a_hundred_thousand_entries_of_one_time_are_each_read_once_while_more_are_added(
    tmp_path: Path,
) -> None:
    """B57: both ways, page by page, with an entry added between any two pages."""
    count = 100_000
    # Written as they lie on the disk: this is about reading.
    first = entry("ID", "x").model_dump_json(exclude_none=True)
    record = (
        entry("ID", "x").model_copy(update={"parent": EntryId("BEFORE")}).model_dump_json(exclude_none=True)
    )
    with (tmp_path / "transcript.jsonl").open("w", encoding="utf-8") as file:
        file.write(first.replace("ID", "e0") + "\n")
        for number in range(1, count):
            file.write(record.replace("ID", f"e{number}").replace("BEFORE", f"e{number - 1}") + "\n")
    with opened(tmp_path) as transcript:
        page = await transcript.page(span(limit=200))
        backward = ids(page.entries)[::-1]
        while page.has_more:
            transcript.append(entry(f"e{count}"))
            count += 1
            page = await transcript.page(span(limit=200, before=backward[-1]))
            backward += ids(page.entries)[::-1]
        assert backward == [f"e{number}" for number in range(99_999, -1, -1)]
        forward = ["e0"]
        while len(forward) < count:
            if count < 101_000:
                transcript.append(entry(f"e{count}"))
                count += 1
            forward += ids((await transcript.page(span(limit=200, after=forward[-1]))).entries)
        assert forward == [f"e{number}" for number in range(count)]
        assert not (await transcript.page(span(after=forward[-1]))).entries


async def test_an_entry_on_an_abandoned_branch_resolves_to_its_nearest_ancestor(tmp_path: Path) -> None:
    with opened(tmp_path) as transcript:
        transcript.append(*(entry(f"e{number}") for number in range(5)))
        await transcript.branch(EntryId("e1"))
        transcript.append(entry("b1"), entry("b2"))
        page = await transcript.page(span(after="e4"))
        assert (ids(page.entries), page.branch_changed) == (["b1", "b2"], True)
        assert ids((await transcript.page(span())).entries) == ["e0", "e1", "b1", "b2"]
    with opened(tmp_path) as again:
        assert again.leaf == "b2"
        assert ids((await again.page(span())).entries) == ["e0", "e1", "b1", "b2"]


async def test_unknown_entries_are_refused_with_the_newest_id(tmp_path: Path) -> None:
    with opened(tmp_path) as transcript:
        with pytest.raises(UnknownEntry) as empty:
            await transcript.page(span(after="nobody"))
        assert empty.value.data == {"newest": None}
        transcript.append(entry("e0"))
        for wrong in (span(after="x"), span(before="x"), span(entry="x")):
            with pytest.raises(UnknownEntry) as error:
                await transcript.page(wrong)
            assert error.value.data == {"newest": "e0"}


# --- files ----------------------------------------------------------------------------------------


async def test_a_torn_last_line_is_cut_off_and_reported(tmp_path: Path) -> None:
    with opened(tmp_path) as transcript:
        transcript.append(entry("e0"), entry("e1"))
    file = tmp_path / "transcript.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"id":"e2","at":"2026-01-0')
    with opened(tmp_path) as transcript:
        assert transcript.torn == 26
        transcript.append(entry("e3"))
        assert ids((await transcript.page(span())).entries) == ["e0", "e1", "e3"]
    assert file.read_bytes().startswith(whole)


async def test_a_record_that_is_no_entry_is_skipped(tmp_path: Path) -> None:
    with opened(tmp_path) as transcript:
        transcript.append(entry("e0"))
    with (tmp_path / "transcript.jsonl").open("ab") as file:
        file.write(b"\0" * 100 + b"\n")
    with opened(tmp_path) as transcript:
        transcript.append(entry("e1"))
        assert ids((await transcript.page(span())).entries) == ["e0", "e1"]


@pytest.mark.parametrize("damage", ["gone", "garbage", "other", "incomplete", "swapped"])
async def test_the_index_is_built_again_when_it_is_damaged_or_stale(tmp_path: Path, damage: str) -> None:
    with opened(tmp_path) as transcript:
        transcript.append(*(entry(f"e{number}") for number in range(300)))
    index = tmp_path / "index.db"
    if damage == "gone":
        index.unlink()
    elif damage == "garbage":
        index.write_bytes(b"not a database at all, but long enough to look at" * 100)
    elif damage == "other":
        with sqlite3.connect(index) as database:
            database.execute("pragma user_version = 999")
        database.close()
    elif damage == "incomplete":
        with sqlite3.connect(index) as database:
            database.execute("drop table entries")
        database.close()
    else:
        lines = (tmp_path / "transcript.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "transcript.jsonl").write_bytes(b"".join(lines[:150]))
    last = 149 if damage == "swapped" else 299
    with opened(tmp_path, tail=2) as transcript:
        transcript.append(entry("next"))
        page = await transcript.page(span(limit=3, before="next"))
        assert ids(page.entries) == [f"e{number}" for number in range(last - 2, last + 1)]
        found = await transcript.page(span(query="e147"))
        assert ids(found.entries) == ["e147"]


async def test_opening_reads_the_ends_of_a_long_transcript_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as transcript:
        transcript.append(*(entry(f"e{number}", "x" * 900) for number in range(3000)))
    read = 0
    real = os.pread

    def counting(descriptor: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = real(descriptor, size, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counting)
    with opened(tmp_path, tail=20) as transcript:
        assert ids((await transcript.page(span(limit=2))).entries) == ["e2998", "e2999"]
    assert read < 200_000 < (tmp_path / "transcript.jsonl").stat().st_size


async def test_an_update_is_shown_at_its_old_place_and_found_by_its_new_words(tmp_path: Path) -> None:
    for tail in (0, 256):
        directory = tmp_path / str(tail)
        directory.mkdir()
        with opened(directory, tail=tail) as transcript:
            transcript.append(entry("e0", "first words"), entry("e1", "other"))
            await transcript.page(span(query="first"))
            transcript.update(entry("e0", "second thoughts"))
            page = await transcript.page(span())
            assert [texts(each.content) for each in page.entries] == ["second thoughts", "other"]
            assert not (await transcript.page(span(query="first"))).entries
            assert ids((await transcript.page(span(query="second"))).entries) == ["e0"]


async def test_query_finds_words_of_text_names_and_arguments_on_the_current_branch(tmp_path: Path) -> None:
    with opened(tmp_path, tail=0) as transcript:
        transcript.append(entry("e0", "the parser fails"), entry("e1", "nothing"))
        asked = {"content": (), "kind": "call", "name": "bash", "arguments": {"command": "make parser_test"}}
        call = entry("c").model_copy(update=asked)
        transcript.append(call, entry("e2", "Parsing is done"))
        assert ids((await transcript.page(span(query="pars"))).entries) == ["e0", "c", "e2"]
        assert ids((await transcript.page(span(query="parser make"))).entries) == ["c"]
        assert ids((await transcript.page(span(query='"par" OR (x'))).entries) == []
        page = await transcript.page(span(query="pars", limit=1))
        assert (ids(page.entries), page.has_more) == (["e2"], True)
        page = await transcript.page(span(query="pars", limit=1, after="e0"))
        assert (ids(page.entries), page.has_more) == (["c"], True)
        await transcript.branch(EntryId("e1"))
        transcript.append(entry("b0", "elsewhere"))
        assert ids((await transcript.page(span(query="pars"))).entries) == ["e0"]
        with pytest.raises(BadArguments):
            await transcript.page(span(query="  "))


# --- bounds ---------------------------------------------------------------------------------------


def as_json(page: Page) -> bytes:
    return History(session=SESSION, cwd="/", entries=page.entries).model_dump_json(exclude_none=True).encode()


@pytest.mark.parametrize("tail", [0, 256])
async def test_a_page_ends_early_at_its_bound_in_bytes_and_loses_nothing(tmp_path: Path, tail: int) -> None:
    """B28: a page is bounded in bytes, not only in entries."""
    with opened(tmp_path, tail=tail) as transcript:
        transcript.append(*(entry(f"e{number}", "\x1b" * 10_000) for number in range(20)))
        seen: list[str] = []
        page = await transcript.page(span(limit=200))
        while True:
            assert 0 < len(as_json(page)) <= PAGE_BYTES + 4096
            seen[:0] = ids(page.entries)
            if not page.has_more:
                break
            page = await transcript.page(span(limit=200, before=seen[0]))
        assert seen == [f"e{number}" for number in range(20)]
        page = await transcript.page(span(limit=200, after="e0"))
        assert page.has_more
        assert ids(page.entries) == ["e1", "e2", "e3", "e4"]


async def test_an_entry_longer_than_a_page_is_shortened_with_its_pointer(tmp_path: Path) -> None:
    content: Content = (Text(text="a" * 300_000), Image(data="QUJD" * 5_000, mime_type="image/png"))
    with opened(tmp_path) as transcript:
        transcript.append(entry("e0"), entry("long").model_copy(update={"content": content}), entry("e2"))
        page = await transcript.page(span(before="e2"))
        assert (ids(page.entries), page.has_more) == (["long"], True)
        assert len(as_json(page)) <= PAGE_BYTES
        spill = page.entries[0].content[0]
        assert isinstance(spill, Spill)
        assert (spill.size, Path(spill.path).read_text("utf-8")) == (300_000, "a" * 300_000)
        again = await transcript.page(span(before="e2"))
        assert again == page
        assert await whole_text(transcript, "long") == b"a" * 300_000


async def test_a_call_with_arguments_longer_than_a_page_is_readable_whole(tmp_path: Path) -> None:
    arguments = {"path": "x", "content": "é" * 200_000}
    asked = {"content": (), "kind": "call", "name": "write", "arguments": arguments}
    call = entry("c").model_copy(update=asked)
    with opened(tmp_path) as transcript:
        transcript.append(call)
        page = await transcript.page(span())
        assert page.entries[0].arguments is None
        assert len(as_json(page)) <= PAGE_BYTES
        assert json.loads(await whole_text(transcript, "c")) == arguments


async def whole_text(transcript: Transcript, name: str) -> bytes:
    data, offset = b"", 0
    while True:
        text = (await transcript.page(span(entry=name, offset=offset))).text
        assert text is not None
        assert text.offset == offset
        data += text.text.encode()
        if text.next_offset is None:
            assert text.total == len(data)
            return data
        offset = text.next_offset


# --- those who wait -------------------------------------------------------------------------------


async def test_a_reader_at_the_end_waits_and_gets_the_next_entry(tmp_path: Path) -> None:
    with opened(tmp_path) as transcript:
        transcript.append(entry("e0"))
        got: list[Page] = []

        async def follow() -> None:
            got.append(await transcript.page(span(after="e0", wait=30)))

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await until_waiting(transcript, 1)
            transcript.append(entry("e1"), entry("e2"))
        assert ids(got[0].entries) == ["e1", "e2"]
        assert transcript.waiting == 0


async def until_waiting(transcript: Transcript, number: int) -> None:
    with anyio.fail_after(10):
        while transcript.waiting != number:  # noqa: ASYNC110 - the transcript tells nobody who waits
            await asyncio.sleep(0)


async def test_an_entry_after_a_dropped_wait_is_there_for_the_next_reader(tmp_path: Path) -> None:
    """B60: history is read, not consumed."""
    with opened(tmp_path) as transcript:
        transcript.append(entry("e0"))
        async with anyio.create_task_group() as group:
            group.start_soon(transcript.page, span(after="e0", wait=30))
            await until_waiting(transcript, 1)
            group.cancel_scope.cancel()
        transcript.append(entry("e1"))
        assert ids((await transcript.page(span(after="e0", wait=30))).entries) == ["e1"]


async def test_a_thousand_dropped_readers_leave_nothing(tmp_path: Path) -> None:
    """B59: a cancelled reader frees its place and its timer at once."""
    with opened(tmp_path) as transcript:
        transcript.append(entry("e0"))
        before = len(asyncio.all_tasks())
        async with anyio.create_task_group() as group:
            for _ in range(1000):
                group.start_soon(transcript.page, span(after="e0", wait=30))
            await until_waiting(transcript, 1000)
            group.cancel_scope.cancel()
        assert transcript.waiting == 0
        assert len(asyncio.all_tasks()) == before


async def test_all_readers_are_woken_in_one_pass(tmp_path: Path) -> None:
    with opened(tmp_path) as transcript:
        transcript.append(entry("e0"))
        got: list[list[str]] = []

        def deliver(page: Page | None) -> None:
            assert page is not None
            got.append(ids(page.entries))

        for _ in range(100):
            transcript.park(span(after="e0", wait=30), deliver)
        transcript.append(entry("e1"))
        transcript.append(entry("e2"))
        assert not got
        await asyncio.sleep(0)
        assert got == [["e1", "e2"]] * 100
        assert transcript.waiting == 0


async def test_a_wait_that_is_over_gives_an_empty_page(tmp_path: Path) -> None:
    with opened(tmp_path) as transcript:
        transcript.append(entry("e0"))
        assert await transcript.page(span(after="e0", wait=0.01)) == Page()
        assert transcript.waiting == 0


async def test_an_update_wakes_nobody(tmp_path: Path) -> None:
    with opened(tmp_path) as transcript:
        transcript.append(entry("e0"))
        parked = transcript.park(span(after="e0", wait=30), lambda _: pytest.fail("woken"))
        transcript.update(entry("e0", "changed"))
        await asyncio.sleep(0)
        assert transcript.waiting == 1
        parked.drop()
        parked.drop()


async def test_a_reader_on_an_abandoned_branch_follows_the_new_one(tmp_path: Path) -> None:
    for tail in (0, 256):
        directory = tmp_path / str(tail)
        directory.mkdir()
        with opened(directory, tail=tail) as transcript:
            transcript.append(entry("e0"), entry("e1"))
            got: list[Page] = []

            async def follow(transcript: Transcript = transcript, got: list[Page] = got) -> None:
                got.append(await transcript.page(span(after="e1", wait=30)))

            async with anyio.create_task_group() as group:
                group.start_soon(follow)
                await until_waiting(transcript, 1)
                await transcript.branch(EntryId("e0"))
                transcript.append(entry("b1"))
            assert (ids(got[0].entries), got[0].branch_changed) == (["b1"], True)


async def test_nothing_waits_without_after_or_with_before(tmp_path: Path) -> None:
    with opened(tmp_path) as transcript:
        transcript.append(entry("e0"))
        with anyio.fail_after(5):
            assert ids((await transcript.page(span(wait=30))).entries) == ["e0"]
            assert not (await transcript.page(span(after="e0", before="e0", wait=30))).entries
            assert not (await transcript.page(span(before="e0", wait=30))).entries
