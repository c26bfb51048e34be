import sys
from importlib.util import find_spec

import anyio
import pytest

from chappie_bridge.codec.parts import Part
from chappie_bridge.codec.tokens import Counter, estimate
from chappie_bridge.codec.trim import trim
from chappie_bridge.faces.chatgpt.tokens import Tokenizer, load_counter
from tests.required import required

pytestmark = pytest.mark.anyio

LONG = [Part("head", "{}"), Part("text", "some words " * 20_000, call=0)]


def in_words(text: str) -> int:
    return text.count(" ") + 1


def test_the_counter_is_that_of_o200k_base() -> None:
    required(find_spec("toktok"), "the package toktok-rs")
    count = load_counter()
    # What would be one special token is seven of plain text: results are data.
    assert [count(text) for text in ["", "hello world", "<|endoftext|>"]] == [0, 2, 7]


def test_without_the_tokenizer_the_estimate_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "toktok", None)
    assert load_counter() is estimate


async def test_a_short_response_loads_nothing() -> None:
    def never() -> Counter:
        raise AssertionError

    short = [Part("head", "{}"), Part("text", "ok", call=0)]
    assert (await Tokenizer(never).trim(short)).parts == tuple(short)


async def test_the_tokenizer_is_loaded_once_for_all_who_wait() -> None:
    loaded: list[int] = []

    def load() -> Counter:
        loaded.append(1)
        return in_words

    tokenizer = Tokenizer(load)
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(tokenizer.counter)
    assert loaded == [1]
    assert await tokenizer.counter() is in_words


async def test_others_run_while_a_long_response_is_trimmed() -> None:
    tokenizer = Tokenizer(lambda: in_words)
    await tokenizer.counter()
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(1)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        trimming = await tokenizer.trim(LONG)
        tasks.cancel_scope.cancel()
    assert len(turns) > 20
    assert trimming == trim(LONG, in_words)
