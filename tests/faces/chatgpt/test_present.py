"""What a client reads: heads, blocks in order, what accompanies them, and what is left out."""

import base64
import hashlib
import json
from typing import Any

import anyio
import pytest

from chappie_bridge.codec.parts import compact
from chappie_bridge.faces.chatgpt.exchange import Exchange
from chappie_bridge.faces.chatgpt.present import Presented, Presenter
from chappie_bridge.faces.chatgpt.sheet import FETCH_PART
from chappie_bridge.faces.chatgpt.tokens import load_counter
from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.blocks import Block, Image, ResourceLink, Spill, Text
from chappie_bridge.wire.errors import Executed, Failure, Internal
from chappie_bridge.wire.ids import CallId, EntryId, InputId, OperationId, ReceiptId, SessionId
from chappie_bridge.wire.messages import History
from chappie_bridge.wire.requests import Bytes, FetchBytes, HistoryView, OperationView, SessionList, ToolList
from chappie_bridge.wire.values import (
    Companion,
    Companions,
    DeferredItem,
    Entry,
    EntryText,
    HistoryRange,
    Initialization,
    Input,
    InputItem,
    Match,
    ModelRequest,
    Need,
    Origin,
    Pending,
    QueuePlace,
    RequestItem,
    Skill,
    ToolDefinition,
)
from tests.faces.chatgpt.scripted import HEAD, ROW, SESSION, Json, Scripted, opened, result, view

pytestmark = pytest.mark.anyio

COUNT = load_counter()
PLACE = {"sessionId": SESSION, "device": "laptop", "cwd": "/home/me/project"}


def presenter(board: Scripted | None = None, limit: int = 10_000) -> Presenter:
    return Presenter(board or Scripted(), "9.8", limit)


def exchange() -> Exchange:
    return Exchange("owner", anyio.current_time)


async def shown(given: OperationView, board: Scripted | None = None, limit: int = 10_000) -> Presented:
    return await presenter(board, limit).operation(given, exchange())


def read(presented: Presented) -> list[Any]:
    """Blocks; those that are JSON lines as what they say."""
    found: list[Any] = []
    for block in presented.content:
        text = block.get("text", "")
        found.append(json.loads(text) if text.startswith("{") else text or block)
    return found


def sizes(presented: Presented) -> int:
    """Tokens, as sent and as the presenter counts them."""
    return sum(COUNT(compact(block)) for block in presented.content if block["type"] == "text")


# --- operations ---------------------------------------------------------------------------------


async def test_a_batch_shows_its_target_then_each_call_with_its_blocks() -> None:
    blocks: tuple[Block, ...] = (
        Text(text="one"),
        Image(data="AAAA", mime_type="image/png"),
        ResourceLink(uri="chappie://x", name="out.zip", mime_type="application/zip", size=7, sha256="ab"),
    )
    given = view(results=(result(blocks), result((Text(text="two"),), "call_chp_2", is_error=True)))
    presented = await shown(given)
    assert read(presented)[0] == {**PLACE, "operation": "op_1", "seq": 1, "status": "done"}
    assert read(presented)[1] == {
        "toolCallId": "call_chp_1",
        "toolName": "noop",
        "isError": False,
        "durationMs": 3,
    }
    assert presented.content[2:5] == [
        {"type": "text", "text": "one"},
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {
            "type": "resource_link",
            "uri": "chappie://x",
            "name": "out.zip",
            "mimeType": "application/zip",
            "size": 7,
            "_meta": {"sha256": "ab"},
        },
    ]
    assert json.loads(presented.content[5]["text"])["toolCallId"] == "call_chp_2"
    assert presented.content[6]["text"] == "two"
    assert presented.is_error


async def test_a_head_says_what_is_not_plain_and_stays_small() -> None:
    given = view(
        status=Status.ASKING,
        executed=Executed.UNKNOWN,
        results=(),
        needs=(Need(kind="approval", session=SESSION, what="run `rm -r build`\x1b[31m"),) * 9,
        queue=QueuePlace(position=2, behind=OperationId("op_0")),
        joined=True,
        again=True,
        initialization=Initialization(session=SESSION, instructions="Go on.", observer=True),
    )
    presented = await shown(given)
    (head,) = read(presented)
    assert head["status"] == "asking"
    assert head["needs"][0] == {
        "kind": "approval",
        "sessionId": SESSION,
        "what": "run `rm -r build`\\x1b[31m",
    }
    assert head["queue"] == {"position": 2, "behind": "op_0"}
    assert (head["joined"], head["again"]) == (True, True)
    assert head["initialization"] == {"sessionId": SESSION, "instructions": "Go on.", "observer": True}
    assert "executed" not in head
    assert not presented.is_error
    plain = await shown(view(operation=OperationId("op_" + "a" * 26), results=()))
    assert sizes(plain) <= 200


@pytest.mark.parametrize(
    ("status", "executed", "is_error"),
    [
        (Status.QUEUED, None, False),
        (Status.RUNNING, None, False),
        (Status.DONE, None, False),
        (Status.FAILED, "yes", True),
        (Status.CANCELLED, "no", True),
        (Status.LOST, "no", True),
        (Status.INTERRUPTED, "unknown", True),
    ],
)
async def test_whether_tools_ran_is_said_where_it_is_not_plain(
    status: Status, executed: str | None, is_error: bool
) -> None:
    given = view(status=status, executed=Executed(executed or "yes"), results=())
    presented = await shown(given)
    assert read(presented)[0].get("executed") == executed
    assert presented.is_error is is_error


async def test_an_operation_that_failed_says_why() -> None:
    failure = Failure(
        code="cancelled", message="A request\nwaits.", hint="Answer it.", data={"request": "q_1"}
    )
    given = view(status=Status.CANCELLED, executed=Executed.NO, error=failure, results=())
    presented = await shown(given)
    assert read(presented)[1] == {
        "error": {
            "request": "q_1",
            "code": "cancelled",
            "message": "A request\\nwaits.",
            "retryable": False,
            "executed": "no",
            "hint": "Answer it.",
        }
    }


async def test_hostile_names_are_shown_safely() -> None:
    target = HEAD.model_copy(update={"device": "lap\u202etop", "cwd": "/tmp/\x1b]0;x\x07" + "d" * 999})
    presented = await shown(view(target=target, results=(result(name="re\nad"),)))
    head, header, _ = read(presented)
    assert head["device"] == "lap\\u202etop"
    assert "\x1b" not in head["cwd"]
    assert len(head["cwd"]) == 300
    assert header["toolName"] == "re\\nad"


async def test_text_is_sent_once_and_data_untouched() -> None:
    """B67: a text that really ends like a cut one has no record of a cut."""
    text = "[… 5 bytes, 2 tokens removed …]\nabc [truncated]"
    presented = await shown(view(results=(result((Text(text=text),)),)))
    assert read(presented)[2] == text
    assert "trimmed" not in read(presented)[0]
    assert compact(presented.content).count("[truncated]") == 1


async def test_a_long_result_loses_its_middle_and_the_head_says_so() -> None:
    """B67: how much, of which call, and the request that reads it."""
    long = "".join(f"line {number}\n" for number in range(20_000))
    presented = await shown(view(results=(result(), result((Text(text=long),), "call_chp_2"))))
    head, *_, text = read(presented)
    assert text.startswith("line 0\n")
    assert text.endswith("line 19999\n")
    (lost,) = head["trimmed"]
    assert lost["call"] == 1
    marker = next(line for line in text.splitlines() if line.startswith("[…"))
    kept = len(text.encode()) - len(marker.encode()) - 1
    assert lost["removedBytes"] == len(long.encode()) - kept
    wanted = json.loads(lost["read"].removeprefix("history "))
    assert wanted["entry"] == "call_chp_2"
    assert long.encode()[wanted["offset"] :].startswith(b"line ")
    assert lost["read"] in marker
    assert sizes(presented) <= 10_000


async def test_a_spilled_text_shows_its_ends_its_size_and_where_it_lies() -> None:
    spill = Spill(of="text", head="begin", tail="end", size=1_000_000, sha256="0" * 64, path="/state/out/1")
    presented = await shown(view(results=(result((Text(text="é"), spill)),)))
    head, header, _, text = read(presented)
    assert header["outputPath"] == "/state/out/1"
    assert text.startswith("begin\n[…")
    assert text.endswith("\nend")
    assert head["trimmed"][0]["removedBytes"] == 1_000_000 - 8
    assert json.loads(head["trimmed"][0]["read"].removeprefix("history "))["offset"] == 2 + 5


# --- images -------------------------------------------------------------------------------------


def spilled_image(data: bytes, name: str = "1") -> Spill:
    digest = hashlib.sha256(data).hexdigest()
    return Spill(of="image", size=len(data), sha256=digest, path=f"/state/{name}", mime_type="image/png")


def serving(data: bytes, asked: list[FetchBytes]) -> Scripted:
    board = Scripted()

    async def fetch(request: FetchBytes) -> Bytes:
        asked.append(request)
        part = data[request.offset : request.offset + request.length]
        return Bytes(data=base64.b64encode(part).decode(), size=len(data))

    board.on["fetch"] = fetch
    return board


async def test_a_spilled_image_is_fetched_in_parts_and_checked() -> None:
    data = bytes(range(256)) * 5000
    asked: list[FetchBytes] = []
    presented = await shown(view(results=(result((spilled_image(data),)),)), serving(data, asked))
    assert base64.b64decode(presented.content[2]["data"]) == data
    assert [(each.offset, each.length) for each in asked] == [
        (0, FETCH_PART),
        (FETCH_PART, FETCH_PART),
        (2 * FETCH_PART, len(data) - 2 * FETCH_PART),
    ]
    assert {each.source for each in asked} == {"spill:/state/1"}
    assert asked[0].session == SESSION
    assert asked[0].caller.principal == "owner"


async def test_an_image_that_cannot_be_had_is_a_reference() -> None:
    board = Scripted()
    data = b"x" * 100

    async def wrong(request: FetchBytes) -> Bytes:
        if request.source.endswith("gone"):
            raise Internal
        if request.source.endswith("garbled"):
            return Bytes(data="*", size=100)
        return Bytes(data=base64.b64encode(b"y" * 100).decode(), size=100)

    board.on["fetch"] = wrong
    content = tuple(spilled_image(data, name) for name in ("gone", "garbled", "other"))
    presented = await shown(view(results=(result(content),)), board)
    for reference, name in zip(read(presented)[2:], ("gone", "garbled", "other"), strict=True):
        assert reference["bytes"] == 100
        assert reference["outputPath"] == f"/state/{name}"
        assert "call_chp_1" in reference["read"]


async def test_at_most_eight_images_and_four_mebibytes_of_them() -> None:
    small = [Image(data="A" * 1000, mime_type="image/png")] * 7
    large = spilled_image(b"z" * (3 * 2**20))
    asked: list[FetchBytes] = []
    board = serving(b"z" * (3 * 2**20), asked)
    presented = await shown(view(results=(result((*small, large, *small)),)), board)
    kinds = [block["type"] for block in presented.content[2:]]
    assert kinds == ["image"] * 7 + ["text"] + ["image"] + ["text"] * 6
    assert asked == []
    assert read(presented)[-1]["image"] == "not sent here"
    assert read(presented)[-1]["bytes"] == 750


async def test_fetching_images_ends_with_the_time_there_is() -> None:
    board = Scripted()

    async def stuck(_: Any) -> Any:
        await anyio.sleep_forever()

    board.on["fetch"] = stuck
    late = Exchange("owner", lambda: 0.0)
    late.clock = lambda: 48.99
    given = view(results=(result((spilled_image(b"x"), Text(text="after"))),))
    with anyio.fail_after(5):
        presented = await presenter(board).operation(given, late)
    assert read(presented)[-1] == "after"
    assert presented.content[2]["type"] == "text"


# --- what accompanies ---------------------------------------------------------------------------


def typed(text: str, name: str = "in_1", **more: Any) -> InputItem:
    content = (Text(text=text), Image(data="AAAA", mime_type="image/png"))
    return InputItem(session=SESSION, input=Input(id=InputId(name), at="2026-01-02", content=content), **more)


async def test_companions_follow_the_results_in_their_formats() -> None:
    items: tuple[Companion, ...] = (
        typed("Please stop.", again=True),
        RequestItem(
            session=SESSION,
            request=ModelRequest(
                id="q_1", kind="summary", instructions="Summarise.", content=(Text(text="all of it"),)
            ),
        ),
        DeferredItem(
            operation=OperationId("op_0"),
            what="batch",
            target=HEAD,
            status=Status.INTERRUPTED,
            executed=Executed.UNKNOWN,
            results=(result(call="call_chp_0"),),
            error=Failure(code="interrupted", message="Gone."),
        ),
    )
    presented = await shown(view(companions=Companions(receipt=ReceiptId("r"), items=items, more=4)))
    found = read(presented)[3:]
    assert found[0] == {"input": "in_1", "sessionId": SESSION, "at": "2026-01-02", "again": True}
    assert found[1] == "Please stop."
    assert found[2]["type"] == "image"
    assert found[3] == {
        "request": "q_1",
        "sessionId": SESSION,
        "kind": "summary",
        "instructions": "Summarise.",
    }
    assert found[4] == "all of it"
    assert found[5] == {"deferredResult": "op_0", **PLACE, "status": "interrupted", "executed": "unknown"}
    assert found[6]["error"]["code"] == "interrupted"
    assert found[7]["toolCallId"] == "call_chp_0"
    assert found[8] == "done"
    assert found[9] == {"more": 4}
    assert not presented.is_error


async def test_companions_have_a_bound_of_their_own_and_leave_the_result_whole() -> None:
    long = "word " * 20_000
    mine = "mine " * 3_000
    items = (typed(long), typed("short", "in_2"))
    given = view(
        results=(result((Text(text=mine),)),), companions=Companions(receipt=ReceiptId("r"), items=items)
    )
    presented = await shown(given)
    found = read(presented)
    assert found[2] == mine
    assert "trimmed" not in found[0]
    assert len(found[4]) < len(long) / 4
    assert found[7] == "short"
    assert found[-1]["more"] == 0
    (lost,) = found[-1]["trimmed"]
    assert lost["call"] == "in_1"
    assert sizes(Presented(presented.content[3:])) <= 3_000


async def test_images_of_companions_count_like_any_other() -> None:
    items = tuple(typed("x", f"in_{number}") for number in range(8))
    mine = (Image(data="AAAA", mime_type="image/png"),) * 3
    presented = await shown(view(results=(result(mine),), companions=Companions(items=items)))
    assert sum(block["type"] == "image" for block in presented.content) == 8
    assert sum("not sent here" in block.get("text", "") for block in presented.content) == 3


# --- init, sessions, tools ----------------------------------------------------------------------


async def test_init_shows_the_session_and_a_short_catalog() -> None:
    given = opened(
        skills=(Skill(name="deploy", description="How to\nmore", path="/s/deploy.md"),),
        global_agents="/home/me/AGENTS.md",
    )
    (answer,) = read(await presenter().opened(given, exchange()))
    assert answer["selection"] == "automatic"
    assert answer["initialization"] == {"sessionId": SESSION, "instructions": "Go on.", "observer": False}
    assert answer["session"] == {
        "id": SESSION,
        "agent": "builtin",
        "device": "laptop",
        "cwd": "/home/me/project",
        "status": "ready",
        "bindingCount": 1,
        "lastSeen": "2026-01-02T03:04:05.678Z",
    }
    assert {key: answer[key] for key in PLACE} == PLACE
    assert answer["tools"] == [{"name": "read", "description": "Read a file."}]
    assert answer["skills"] == [{"name": "deploy", "description": "How to", "path": "/s/deploy.md"}]
    assert answer["globalAgents"] == {"path": "/home/me/AGENTS.md"}
    assert answer["serverVersion"] == "9.8"
    assert "binding" not in answer


async def test_init_without_a_conversation_says_that_nothing_is_bound() -> None:
    (answer,) = read(await presenter().opened(opened(bound=False), exchange()))
    assert answer["binding"] is None


async def test_init_carries_companions() -> None:
    given = opened(companions=Companions(receipt=ReceiptId("r"), items=(typed("hi"),)))
    found = read(await presenter().opened(given, exchange()))
    assert found[1]["input"] == "in_1"
    assert found[2] == "hi"


async def test_tools_are_whole_or_named() -> None:
    """S20: what a session defines is bounded; the rest is one request away."""
    definitions = tuple(
        ToolDefinition(name=f"t{number}", description="Does things. " * 60, parameters={"type": "object"})
        for number in range(200)
    )
    given = ToolList(
        session=ROW,
        tools=definitions,
        unknown=("nope\x07",),
        pending=Pending(inputs=1),
        global_agents="/g",
    )
    presented = await presenter().tools(given, exchange())
    (answer,) = read(presented)
    count = len(answer["tools"])
    assert 10 < count < 200
    assert answer["tools"][0]["parameters"] == {"type": "object"}
    assert answer["notShown"] == [f"t{number}" for number in range(count, 200)]
    assert answer["unknown"] == ["nope\\x07"]
    assert answer["pending"]["inputs"] == 1
    assert answer["globalAgents"] == {"path": "/g"}
    assert sizes(presented) <= 10_000


async def test_sessions_are_a_page() -> None:
    rows = tuple(
        ROW.model_copy(update={"id": SessionId(f"s_{number}"), "name": "n" * 90, "cwd": "/d" * 140})
        for number in range(200)
    )
    given = SessionList(binding=SESSION, sessions=rows, has_more=False, pending=Pending(results=2))
    presented = await presenter().sessions(given, exchange())
    (answer,) = read(presented)
    assert answer["binding"] == SESSION
    assert 0 < len(answer["sessions"]) < 200
    assert answer["hasMore"] is True
    assert answer["pending"]["results"] == 2
    assert sizes(presented) <= 10_000


# --- history ------------------------------------------------------------------------------------


def entry(identifier: str, text: str = "text", **more: Any) -> Entry:
    given: Json = {"kind": "assistant", "content": (Text(text=text),), **more}
    return Entry(id=EntryId(identifier), at="2026-01-02T03:04:05.678Z", **given)


async def history(page: History, limit: int = 10_000, **wanted: Any) -> Presented:
    given = HistoryView(target=HEAD, pending=Pending(approvals=1), page=page)
    return await presenter(limit=limit).history(given, HistoryRange(**wanted), exchange())


def page(*entries: Entry, **more: Any) -> History:
    return History(session=SESSION, cwd=HEAD.cwd, entries=entries, **more)


async def test_history_shows_entries_in_order_with_native_ids_and_times() -> None:
    call = entry(
        "e_2",
        kind="call",
        content=(),
        call=CallId("call_1"),
        name="read",
        arguments={"path": "a"},
        operation=OperationId("op_1"),
        origin=Origin(kind="conversation", id="c_1", label="ChatGPT ab\x1b12"),
    )
    done = entry("e_3", "out", kind="result", call=CallId("call_1"), is_error=False, duration_ms=4)
    presented = await history(page(entry("e_1", final=True), call, done, has_more=True))
    head, *found = read(presented)
    pending = {"inputs": 0, "results": 0, "requests": 0, "answers": 0, "approvals": 1}
    assert head == {**PLACE, "count": 3, "hasMore": True, "pending": pending}
    at = "2026-01-02T03:04:05.678Z"
    assert found == [
        {"entry": "e_1", "at": at, "kind": "assistant", "final": True},
        "text",
        {
            "entry": "e_2",
            "at": at,
            "kind": "call",
            "toolCallId": "call_1",
            "toolName": "read",
            "operation": "op_1",
            "from": "ChatGPT ab\\x1b12",
        },
        {"path": "a"},
        {
            "entry": "e_3",
            "at": at,
            "kind": "result",
            "toolCallId": "call_1",
            "isError": False,
            "durationMs": 4,
        },
        "out",
    ]


@pytest.mark.parametrize(
    ("wanted", "kept"), [({}, "newest"), ({"before": "x"}, "newest"), ({"after": "x"}, "first")]
)
async def test_a_page_ends_early_instead_of_losing_its_middle(wanted: Json, kept: str) -> None:
    entries = [entry(f"e_{number}", "word " * 1_500) for number in range(20)]
    presented = await history(page(*entries, branch_changed=True), **wanted)
    head, *found = read(presented)
    names = [line["entry"] for line in found if isinstance(line, dict)]
    assert 2 < len(names) < 10
    expected = [f"e_{number}" for number in range(20)]
    assert names == (expected[: len(names)] if kept == "first" else expected[-len(names) :])
    assert head["hasMore"] is True
    assert head["count"] == len(names)
    assert head["branchChanged"] is True
    assert "trimmed" not in head
    assert sizes(presented) <= 10_000


async def test_one_entry_that_is_longer_than_a_page_is_shown_with_its_read_pointer() -> None:
    presented = await history(page(entry("e_1"), entry("e_2", "word " * 40_000)))
    head, header, text = read(presented)
    assert (head["count"], head["hasMore"], header["entry"]) == (1, True, "e_2")
    (lost,) = head["trimmed"]
    assert json.loads(lost["read"].removeprefix("history "))["entry"] == "e_2"
    assert text.startswith("word word")


async def test_a_long_entry_is_read_whole_in_stretches() -> None:
    whole = "".join(f"zeile {number} ü\n" for number in range(9_000))
    data = whole.encode()
    offset: int | None = 0
    found = ""
    while offset is not None:
        text = data[offset : offset + 60_000].decode(errors="ignore")
        end = offset + len(text.encode())
        stretch = EntryText(
            entry=EntryId("e_1"),
            offset=offset,
            next_offset=end if end < len(data) else None,
            total=len(data),
            sha256="0" * 64,
            text=text,
        )
        presented = await history(page(text=stretch), entry="e_1", offset=offset)
        head, shown_text = read(presented)
        assert (head["entry"], head["offset"], head["total"]) == ("e_1", offset, len(data))
        assert "trimmed" not in head
        assert "lossy" not in head
        assert sizes(presented) <= 10_000
        found += shown_text
        assert head["nextOffset"] is None or head["nextOffset"] > offset
        offset = head["nextOffset"]
    assert found == whole


async def test_a_reading_of_bytes_that_are_no_text_shows_some_twice_rather_than_never() -> None:
    stretch = EntryText(
        entry=EntryId("e_1"),
        offset=100,
        next_offset=None,
        total=60_100,
        sha256="0" * 64,
        text="a\ufffd" * 30_000,
        lossy=True,
    )
    head, text = read(await history(page(text=stretch), entry="e_1", offset=100))
    assert head["lossy"] is True
    assert 100 < head["nextOffset"] <= 100 + len(text)


async def test_lines_that_were_found_come_with_their_offsets() -> None:
    few = (Match(offset=5, line="a needle"), Match(offset=90, line="needle"))
    head, found = read(await history(page(matches=few), entry="e_1", find="needle"))
    assert (head["entry"], head["count"], head["hasMore"]) == ("e_1", 2, False)
    assert found["matches"][0] == {"offset": 5, "line": "a needle"}
    many = tuple(Match(offset=number, line="needle " * 40) for number in range(200))
    presented = await history(page(matches=many), entry="e_1", find="needle")
    head, found = read(presented)
    assert head["count"] == len(found["matches"]) < 200
    assert head["hasMore"] is True
    assert sizes(presented) <= 10_000


async def test_spills_and_images_of_entries_are_shown_like_those_of_results() -> None:
    data = b"png" * 10
    spill = Spill(of="text", head="h", tail="t", size=99, sha256="0" * 64, path="/p", lossy=True)
    board = serving(data, [])
    content = (spill, spilled_image(data), Image(data="AAAA", mime_type="image/png"))
    given = HistoryView(
        target=HEAD, pending=Pending(), page=page(entry("e_0"), entry("e_1", content=content))
    )
    presented = await presenter(board).history(given, HistoryRange(), exchange())
    found = read(presented)
    assert found[3]["outputPath"] == ["/p", "/state/1"]
    assert found[4].startswith("h\n[…")
    assert base64.b64decode(found[5]["data"]) == data
    assert found[6]["data"] == "AAAA"
