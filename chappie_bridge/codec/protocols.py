"""Which protocol answers at which path.  Pure: a table."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from pydantic import JsonValue

from chappie_bridge.codec import anthropic_messages, openai_chat, openai_responses
from chappie_bridge.codec.programs import Headers
from chappie_bridge.codec.turn import Answer, Api, Turn
from chappie_bridge.wire.errors import Failure


class Stream(Protocol):
    """One streamed answer: `open` at once, `keep_alive` while it is held, `answer` until one ends."""

    def open(self) -> bytes: ...
    def keep_alive(self) -> bytes: ...
    def answer(self, answer: Answer) -> Iterator[bytes]: ...
    def fail(self, failure: Failure) -> bytes: ...


class Codec(NamedTuple):
    """A protocol's functions; each module's docstrings say more."""

    decode: Callable[[Headers, JsonValue], Turn]
    stream: Callable[[Turn, str, int], Stream]
    whole: Callable[[Turn, Answer, str, int], bytes]
    refusal: Callable[[Failure], bytes]


CODECS: dict[Api, Codec] = {
    "chat": Codec(openai_chat.decode, openai_chat.Stream, openai_chat.whole, openai_chat.refusal),
    "responses": Codec(
        openai_responses.decode, openai_responses.Stream, openai_responses.whole, openai_responses.refusal
    ),
    "messages": Codec(
        anthropic_messages.decode,
        anthropic_messages.Stream,
        anthropic_messages.whole,
        anthropic_messages.refusal,
    ),
}

_PATHS: dict[str, Api] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}


def api_at(path: str) -> Api | None:
    """The protocol of a request's path, with or without a query; None for any other path."""
    return _PATHS.get(path.partition("?")[0])
