"""A question through a whole bridge whose broker is killed while the person thinks."""

import json
import signal
from pathlib import Path

import pytest

from tests.story.bridge import Chat, Home, until

pytestmark = pytest.mark.anyio

READ = [{"name": "read", "arguments": {"path": "a.txt"}}]


async def answers(chat: Chat) -> list[dict[str, object]]:
    """The answers that come with the next result."""
    _, texts = await chat.tool("call", calls=READ)
    return [json.loads(text)["webAnswer"] for text in texts if text.startswith('{"webAnswer"')]


async def test_a_question_survives_every_kill_and_its_answer_comes_once(tmp_path: Path) -> None:
    """B51 B55: killed before the answer, and again before it was told."""
    home = Home(tmp_path)
    (home.work / "a.txt").write_text("a\n", encoding="utf-8")
    with home.up() as running:
        async with running.client("2026-07-28", "mine") as chat:
            options = [{"title": "JSON"}, {"title": "CSV"}]
            head, texts = await chat.tool("ask", question="Which format?", options=options)
        assert "1. JSON" in texts[0]
        question = head["questionId"]
        running.stop(signal.SIGKILL)
        until(lambda: not home.processes(), "the agent noticed that its parent is gone")
    with home.up() as running:
        async with running.client("legacy", "mine") as chat:
            reported, _ = await chat.tool("answer", questionId=question, loaded=True)
            assert reported["status"] == "shown"
            confirmed, _ = await chat.tool("ask_assert", questionId=question)
            assert confirmed["status"] == "shown"
        async with running.client("legacy", "another") as other:
            refused, _ = await other.tool("answer", questionId=question, answer={"selections": [0]})
            assert refused["error"]["code"] == "unknown_question"
        async with running.client("legacy", "mine") as chat:
            await chat.tool("answer", questionId=question, answer={"selections": [1]}, revision=0)
        running.stop(signal.SIGKILL)
        until(lambda: not home.processes(), "the agent noticed that its parent is gone")
    with home.up() as running:
        async with running.client("2026-07-28", "mine") as chat:
            page, _ = await chat.tool("history", limit=1)
            assert page["pending"]["answers"] == 1
            (answer,) = await answers(chat)
            assert answer["choices"] == [{"index": 1, "title": "CSV"}]
            assert await answers(chat) == []
