"""The check that every other test of the face passes through sees what it must see."""

import json
from typing import Any

import pytest

from chappie_bridge.codec.trim import LIMIT
from chappie_bridge.faces.chatgpt.server import build
from tests.faces.chatgpt.scripted import NOOP, Scripted, called, client, served, settings
from tests.peer.budget import Budget


def sent(*blocks: dict[str, Any], field: str = "content") -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": {field: blocks}}).encode()


LONG = {"type": "text", "text": "one word more " * LIMIT}
IMAGE = {"type": "image", "data": "QUJD" * LIMIT, "mimeType": "image/png"}


def test_an_answer_above_the_bound_is_noticed_in_json_and_in_events() -> None:
    found = Budget()
    found.look(sent(LONG))
    found.look(b"event: message\ndata: " + sent(LONG) + b"\n\n")
    found.look(sent(*[IMAGE] * 11))
    assert (found.seen, len(found.over)) == (3, 3)


def test_short_answers_images_and_what_a_resource_holds_are_within_it() -> None:
    found = Budget()
    found.look(sent({"type": "text", "text": "ok"}))
    found.look(sent(*[IMAGE] * 8))
    found.look(sent(LONG, field="contents"))
    found.look(b"")
    assert (found.seen, found.over) == (2, [])


@pytest.mark.anyio
async def test_every_answer_over_http_is_looked_at(budget: Budget) -> None:
    board = Scripted()
    async with served(build(board, settings())) as url, client(url) as http:
        await called(http, "call", NOOP)
        await called(http, "sessions")
    assert budget.seen == 2
