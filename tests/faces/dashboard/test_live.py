"""What pages are told while they are open."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import httpx2
import pytest

from chappie_bridge.faces.chatgpt.server import build
from chappie_bridge.faces.dashboard import live
from chappie_bridge.wire.errors import SessionOffline
from chappie_bridge.wire.messages import History
from chappie_bridge.wire.overview import AwaitChange, Changed
from chappie_bridge.wire.requests import FetchHistory, HistoryView
from chappie_bridge.wire.values import Entry, Pending, SessionHead
from tests.faces.chatgpt.scripted import served, settings
from tests.faces.dashboard.owner import CODE, ENTRIES, EVIL, SESSION, Owner, entry

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("APART", "AGAIN", "IDLE"):
        monkeypatch.setattr(live, name, 0.0)


class Told:
    """An office in which something changes when a test says so, and a transcript that grows."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.entries: list[Entry] = []
        self.away = False
        self.owner.on |= {AwaitChange: self._change, FetchHistory: self._history}
        self._number = 1
        self._moved = anyio.Event()

    def change(self) -> None:
        self._number += 1
        self._moved.set()
        self._moved = anyio.Event()

    async def _change(self, request: AwaitChange) -> Changed:
        if request.since == self._number:
            await self._moved.wait()
        return Changed(number=self._number)

    async def _history(self, request: FetchHistory) -> HistoryView:
        if self.away:
            raise SessionOffline
        span = request.range
        names = [each.id for each in self.entries]
        start = names.index(span.after) + 1 if span.after else 0
        while span.wait and start == len(self.entries):
            await self._moved.wait()
        found = tuple(self.entries[start : start + span.limit])
        head = SessionHead(session=SESSION, device="d", cwd="/")
        page = History(
            session=SESSION, cwd="/", entries=found, has_more=start + span.limit < len(self.entries)
        )
        return HistoryView(target=head, pending=Pending(), page=page)


@asynccontextmanager
async def page(told: Told) -> AsyncGenerator[httpx2.AsyncClient]:
    async with (
        served(build(told.owner, settings(), told.owner)) as url,
        httpx2.AsyncClient(base_url=url, timeout=10) as http,
    ):
        assert (await http.post("/dashboard/login", data={"code": CODE})).status_code == 303
        yield http


class Events:
    def __init__(self, answer: httpx2.Response) -> None:
        self._lines = answer.aiter_lines()

    async def next(self) -> dict[str, str]:
        """The next event; comments are passed over."""
        event: dict[str, str] = {}
        with anyio.fail_after(10):
            async for line in self._lines:
                if not line and event:
                    return event
                name, _, value = line.partition(": ")
                if name:
                    event[name] = event[name] + "\n" + value if name in event else value
        raise AssertionError("the stream ended")


async def test_a_page_is_told_that_something_changed_and_not_what() -> None:
    told = Told()
    async with page(told) as http, http.stream("GET", "/dashboard/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = Events(answer)
        assert await events.next() == {"event": "changed", "data": ""}
        for _ in range(100):
            told.change()
        assert await events.next() == {"event": "changed", "data": ""}


async def test_a_transcript_goes_on_where_the_page_is() -> None:
    told = Told()
    told.entries = list(ENTRIES)
    after = ENTRIES[1].id
    async with (
        page(told) as http,
        http.stream("GET", "/dashboard/transcript", params={"id": SESSION, "after": after}) as answer,
    ):
        events = Events(answer)
        first = await events.next()
        assert re.findall(r'id="(entry-[^"]+)"', first["data"]) == ["entry-e_3", "entry-e%2F4%20%C3%BC"]
        assert first["id"] == "e%2F4%20%C3%BC"
        assert EVIL not in first["data"]
        told.entries.append(entry("e_5"))
        told.change()
        assert (await events.next())["id"] == "e_5"


async def test_a_page_that_comes_back_is_told_only_what_it_lacks() -> None:
    told = Told()
    told.entries = [*ENTRIES, entry("e_5")]
    headers = {"Last-Event-ID": "e%2F4%20%C3%BC"}
    where = {"id": SESSION, "after": "e_1"}
    async with (
        page(told) as http,
        http.stream("GET", "/dashboard/transcript", params=where, headers=headers) as answer,
    ):
        assert re.findall(r'id="(entry-[^"]+)"', (await Events(answer).next())["data"]) == ["entry-e_5"]


async def test_an_empty_transcript_and_one_that_cannot_be_read_are_waited_for() -> None:
    told = Told()
    async with (
        page(told) as http,
        http.stream("GET", "/dashboard/transcript", params={"id": SESSION}) as answer,
    ):
        events = Events(answer)
        told.away = True
        told.change()
        problem = await events.next()
        assert problem["event"] == "problem"
        assert problem["data"]
        told.away = False
        told.entries.append(entry("e_1"))
        while (event := await _prodded(told, events))["event"] != "entries":
            assert event == {"event": "problem", "data": ""}
        assert event["id"] == "e_1"


async def _prodded(told: Told, events: Events) -> dict[str, str]:
    async with anyio.create_task_group() as tasks:

        async def prod() -> None:
            while True:
                told.change()
                await anyio.lowlevel.checkpoint()

        tasks.start_soon(prod)
        event = await events.next()
        tasks.cancel_scope.cancel()
    return event


async def test_many_entries_come_in_bounded_events() -> None:
    told = Told()
    told.entries = [entry(f"e_{number}") for number in range(1_000)]
    seen = 0
    async with (
        page(told) as http,
        http.stream("GET", "/dashboard/transcript", params={"id": SESSION, "after": "e_0"}) as answer,
    ):
        events = Events(answer)
        while seen < 999:
            found = (await events.next())["data"].count("<li class")
            assert found <= live.AT_ONCE
            seen += found


async def test_a_stream_ends_with_its_login() -> None:
    told = Told()
    async with page(told) as http:
        form = re.search(r'name="token" value="([^"]+)"', (await http.get("/dashboard")).text)
        assert form is not None
        async with http.stream("GET", "/dashboard/events") as answer:
            await http.post("/dashboard/logout", data={"token": form[1]})
            told.change()
            with anyio.fail_after(10):
                async for _ in answer.aiter_raw():  # to its end
                    pass


async def test_open_pages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    told = Told()
    async with page(told) as http:
        async with http.stream("GET", "/dashboard/events") as answer:
            await Events(answer).next()
            assert (await http.get("/dashboard/events")).status_code == 503
        told.change()
        status = 503
        while status == 503:
            async with http.stream("GET", "/dashboard/events") as again:
                status = again.status_code
        assert status == 200


async def test_a_server_that_leaves_waits_for_no_page() -> None:
    told = Told()
    gate = build(told.owner, settings(), told.owner)
    async with served(gate) as url, httpx2.AsyncClient(base_url=url, timeout=10) as http:
        await http.post("/dashboard/login", data={"code": CODE})
        async with http.stream("GET", "/dashboard/events") as answer:
            gate.close()
            with anyio.fail_after(10):
                async for _ in answer.aiter_raw():  # to its end, which is a whole response's
                    pass
