"""The tools `ask`, `ask_assert`, `answer` and the page of questions, as a client sees them."""

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from chappie_bridge.faces.chatgpt import widget
from chappie_bridge.faces.chatgpt.server import build
from chappie_bridge.faces.chatgpt.tools import TOOLS
from chappie_bridge.wire.errors import QuestionSkipped, RequestClosed
from chappie_bridge.wire.ids import ReceiptId
from chappie_bridge.wire.question import Answer, Question, Stage
from chappie_bridge.wire.requests import Ask, AssertAsked, QuestionView, Respond
from chappie_bridge.wire.values import AnswerItem, Companions
from tests.faces.chatgpt.scripted import (
    QUESTION,
    SESSION,
    Json,
    Scripted,
    called,
    client,
    error,
    lines,
    served,
    settings,
    view,
)

pytestmark = pytest.mark.anyio

CHOSEN = QUESTION.model_copy(
    update={
        "stage": Stage.ANSWERED,
        "revision": 1,
        "loaded": True,
        "answer": Answer(selections=(0,), text="x"),
    }
)


@asynccontextmanager
async def bridge(board: Scripted) -> AsyncGenerator[httpx2.AsyncClient]:
    async with served(build(board, settings())) as url, client(url) as session:
        yield session


async def asked(http: httpx2.AsyncClient, method: str, params: Json | None = None) -> Json:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
    found: Json = (await http.post("/mcp", json=body)).json()
    return found


def answered(board: Scripted, question: Question, *, again: bool = False) -> None:
    """The next `call` carries this answer."""

    async def play(_: Any) -> Any:
        items = (AnswerItem(question=question, again=again),)
        return view(companions=Companions(receipt=ReceiptId("r_1"), items=items))

    board.on["call"] = play


async def web_answer(http: httpx2.AsyncClient) -> tuple[Json, list[str]]:
    found = await called(http, "call", {"calls": [{"name": "noop", "arguments": {}}]})
    texts = [block["text"] for block in found["content"]]
    at = next(index for index, text in enumerate(texts) if text.startswith('{"webAnswer"'))
    line: Json = json.loads(texts[at])
    return line, texts[at + 1 :]


async def test_a_question_is_asked_and_reads_well_without_its_page() -> None:
    board = Scripted()
    async with bridge(board) as http:
        given = {
            "header": "Format",
            "question": "Which export format?",
            "options": [
                {"title": "JSON", "description": "For programs.", "recommended": True},
                {"title": "CSV"},
            ],
            "sessionId": SESSION,
        }
        found = await called(http, "ask", given, otunnel__requestId="t1")
        assert await board.until_told("r_ask")
    (request,) = board.asked
    assert isinstance(request, Ask)
    assert request.asked == QUESTION.asked
    assert (request.session, request.tunnel_request) == (SESSION, "t1")
    (head,) = lines(found)
    assert head["questionId"] == "q_1"
    assert {"sessionId", "device", "cwd", "status"} <= set(head)
    words = found["content"][1]["text"]
    for part in (
        "Which export format?",
        "1. JSON (recommended)",
        "2. CSV",
        'ask_assert {"questionId":"q_1"}',
    ):
        assert part in words
    shown = found["structuredContent"]["question"]
    assert shown["id"] == "q_1"
    assert shown["options"] == given["options"]
    assert (shown["allowMultiple"], shown["status"], shown["revision"]) == (False, "asked", 0)
    assert set(found["structuredContent"]) == {"question"}


async def test_the_confirmation_tells_how_the_question_stands() -> None:
    board = Scripted()

    async def play(request: AssertAsked) -> QuestionView:
        assert request.wait <= 10
        return QuestionView(question=CHOSEN)

    board.on["ask_assert"] = play
    async with bridge(board) as http:
        found = await called(http, "ask_assert", {"questionId": "q_1"})
    assert "answered" in found["content"][1]["text"]
    assert lines(found)[1]["webAnswer"]["choices"] == [{"index": 0, "title": "JSON"}]
    assert found["structuredContent"]["question"]["answer"] == {"selections": [0], "text": "x"}


async def test_a_question_that_nobody_shows_is_an_error_that_says_what_to_do() -> None:
    board = Scripted()

    async def play(_: AssertAsked) -> QuestionView:
        raise QuestionSkipped(hint="Ask in the text of your reply instead.")

    board.on["ask_assert"] = play
    async with bridge(board) as http:
        found = error(await called(http, "ask_assert", {"questionId": "q_1"}))
    assert (found["code"], found["executed"]) == ("question_skipped", "no")
    assert "reply" in found["hint"]


async def test_the_page_reports_and_answers() -> None:
    board = Scripted()
    async with bridge(board) as http:
        await called(http, "answer", {"questionId": "q_1", "loaded": True})
        answer = {"selections": [1, 0], "text": "both"}
        await called(http, "answer", {"questionId": "q_1", "answer": answer, "revision": 3})
        await called(http, "answer", {"questionId": "q_1", "answer": {"skipped": True}})
        refused = error(await called(http, "answer", {"questionId": "q_1", "answer": {"selections": ["1"]}}))
    loaded, given, skipped = board.asked
    assert isinstance(loaded, Respond)
    assert (loaded.loaded, loaded.answer, loaded.revision) == (True, None, None)
    assert isinstance(given, Respond)
    assert (given.answer, given.revision) == (Answer(selections=(1, 0), text="both"), 3)
    assert isinstance(skipped, Respond)
    assert skipped.answer == Answer(skipped=True)
    assert refused["code"] == "bad_arguments"
    assert "answer.selections[0]" in refused["message"]


async def test_a_page_that_comes_second_is_told() -> None:
    """B53: with the code by which the page knows what to do."""
    board = Scripted()

    async def play(_: Respond) -> QuestionView:
        raise RequestClosed("This question was answered already: JSON.")

    board.on["answer"] = play
    async with bridge(board) as http:
        found = error(await called(http, "answer", {"questionId": "q_1", "answer": {"text": "x"}}))
    assert found["code"] == "request_closed"
    assert "JSON" in found["message"]


async def test_an_answer_accompanies_a_result() -> None:
    board = Scripted()
    async with bridge(board) as http:
        answered(board, CHOSEN, again=True)
        line, _ = await web_answer(http)
    assert line["again"] is True
    told = line["webAnswer"]
    assert told["questionId"] == "q_1"
    assert told["sessionId"] == SESSION
    assert (told["header"], told["question"]) == ("Format", "Which export format?")
    assert told["choices"] == [{"index": 0, "title": "JSON"}]
    assert (told["text"], told["skipped"]) == ("x", False)
    assert "reason" not in told
    assert "revision" not in told


async def test_a_skip_by_a_person_and_one_by_the_clock_are_told_apart() -> None:
    """B52: silence is not a no."""
    board = Scripted()
    skip = {"stage": Stage.SKIPPED, "answer": Answer(skipped=True)}
    async with bridge(board) as http:
        answered(board, QUESTION.model_copy(update={**skip, "revision": 2}))
        by_person, _ = await web_answer(http)
        answered(board, QUESTION.model_copy(update={**skip, "revision": 0}))
        by_clock, _ = await web_answer(http)
    assert by_person["webAnswer"]["skipped"] is by_clock["webAnswer"]["skipped"] is True
    assert by_person["webAnswer"]["revision"] == 2
    assert "reason" not in by_person["webAnswer"]
    assert "not shown" in by_clock["webAnswer"]["reason"]


async def test_a_long_answer_follows_its_line_and_can_be_read_again() -> None:
    board = Scripted()
    text = "répondu " * 500
    async with bridge(board) as http:
        answered(board, CHOSEN.model_copy(update={"answer": Answer(text=text)}))
        line, (after, *_) = await web_answer(http)
    told = line["webAnswer"]
    assert (told["text"], told["textFollows"]) == ("", True)
    assert told["read"] == 'ask_assert {"questionId":"q_1"}'
    assert after == text


async def test_hosts_that_show_structured_content_alone_lose_nothing_that_accompanies() -> None:
    board = Scripted()

    async def play(_: Ask) -> QuestionView:
        items = (AnswerItem(question=CHOSEN),)
        return QuestionView(question=QUESTION, companions=Companions(receipt=ReceiptId("r_2"), items=items))

    board.on["ask"] = play
    async with bridge(board) as http:
        found = await called(http, "ask", {"question": "Another?"})
    assert '"webAnswer"' in found["structuredContent"]["text"]


async def test_the_page_is_a_resource_under_the_address_that_the_tool_names() -> None:
    """B22: and under addresses of earlier versions, which hosts with old tool lists ask for."""
    async with bridge(Scripted()) as http:
        tools = {tool["name"]: tool for tool in (await asked(http, "tools/list"))["result"]["tools"]}
        (listed,) = (await asked(http, "resources/list"))["result"]["resources"]
        address = tools["ask"]["_meta"]["ui"]["resourceUri"]
        for uri in (address, "ui://chappie/question-0123456789ab.html"):
            (read,) = (await asked(http, "resources/read", {"uri": uri}))["result"]["contents"]
            assert read["uri"] == uri
            assert read["mimeType"] == listed["mimeType"] == "text/html;profile=mcp-app"
            assert read["text"] == widget.page()
            assert read["_meta"]["ui"]["csp"] == {"connectDomains": [], "resourceDomains": []}
        for uri in ("ui://chappie/other.html", "ui://chappie/question-../x.html"):
            assert "error" in await asked(http, "resources/read", {"uri": uri})
    assert listed["uri"] == address == tools["ask"]["_meta"]["openai/outputTemplate"]
    assert re.fullmatch(r"ui://chappie/question-[0-9a-f]{12}\.html", address)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_what_is_structured_fits_the_schema_that_was_declared(mode: Any) -> None:
    """The SDK's own client checks it."""
    async with (
        bridge(Scripted()) as http,
        Client(
            streamable_http_client(str(http.base_url.join("/mcp")), http_client=http), mode=mode
        ) as session,
    ):
        await session.list_tools()
        for name, given in (("ask", {"question": "Which?"}), ("ask_assert", {"questionId": "q_1"})):
            found = await session.call_tool(name, given)
            assert found.is_error is False
            assert found.structured_content is not None
            assert found.structured_content["question"]["id"] == "q_1"


def test_only_the_page_is_given_the_tool_that_answers() -> None:
    meta: dict[str, Any] = {
        name: TOOLS[name].definition()["_meta"] for name in ("ask", "ask_assert", "answer")
    }
    assert meta["ask"]["ui"]["visibility"] == meta["ask_assert"]["ui"]["visibility"] == ["model"]
    assert meta["answer"]["ui"] == {"visibility": ["app"]}
    assert meta["answer"]["openai/widgetAccessible"] is True
    assert "resourceUri" not in meta["ask_assert"]["ui"], "one page for one question"


def test_the_page_is_one_file_that_writes_text_as_text() -> None:
    """S19: there is no way for a word of a question to become markup."""
    page = widget.page()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", page
    )
    assert not re.search(
        r"\b(?:src|href)\s*=|https?://|@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket", page
    )
    assert len(page.encode()) < 64 * 1024


def test_the_page_has_every_word_in_every_language() -> None:
    text = widget.page().partition("const WORDS = {")[2].partition("\n  };")[0]
    languages = re.findall(r"^    (\w\w): \{(.*?)^    \},", text, flags=re.MULTILINE | re.DOTALL)
    keys = {language: re.findall(r'(\w+): "', body) for language, body in languages}
    assert set(keys) >= {"en", "de", "es", "fr", "ja", "zh", "ar"}
    for language, found in keys.items():
        assert sorted(found) == sorted(keys["en"]), language
