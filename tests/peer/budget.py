"""Counts tool results as they were sent, against the tokens that their reader takes.  Changes none."""

import json
from functools import cache
from typing import Any

from chappie_bridge.codec.tokens import Counter
from chappie_bridge.codec.trim import IMAGE_TOKENS, LIMIT
from chappie_bridge.faces.chatgpt.tokens import load_counter

Json = dict[str, Any]


class Budget:
    """Remembers the answers above `limit` tokens; `seen` counts those that were looked at."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self.seen = 0
        self.over: list[str] = []

    def look(self, body: bytes) -> None:
        """A JSON-RPC message, or server-sent events that hold some.  What is no tool result passes: lists
        have tests of their own, and `resources/read` gives bytes, not reading."""
        if body[:1] == b"{":
            self._message(body)
        else:
            for line in body.split(b"\n"):
                if line.startswith(b"data: "):
                    self._message(line[6:])

    def _message(self, body: bytes) -> None:
        try:
            result = json.loads(body)["result"]
            blocks = result["content"]
        except (ValueError, KeyError, TypeError):
            return
        self.seen += 1
        tokens = self._tokens(blocks)
        if tokens > self._limit:
            self.over.append(f"{tokens} tokens: {str(blocks)[:300]}")

    def _tokens(self, blocks: list[Json]) -> int:
        """Not above the true number's bytes where these say enough: a token is at least one byte."""
        images: int = sum(block["type"] == "image" for block in blocks)
        sent = [{**block, "data": ""} if block["type"] == "image" else block for block in blocks]
        text = json.dumps(sent, ensure_ascii=False, separators=(",", ":"))
        left = self._limit - images * IMAGE_TOKENS
        size = len(text.encode("utf-8"))
        return images * IMAGE_TOKENS + (size if size <= left else _counter()(text))


@cache
def _counter() -> Counter:
    return load_counter()
