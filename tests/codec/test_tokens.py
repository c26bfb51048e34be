import base64
import json
import random
import uuid
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge.codec import base64_batch
from chappie_bridge.codec.tokens import (
    EXACT_BELOW,
    SLICE,
    Tokens,
    count_exactly,
    count_in_slices,
    escaped,
    estimate,
    run,
)
from chappie_bridge.faces.chatgpt.tokens import load_counter
from tests.required import required

DICE = random.Random(7)


def some(alphabet: str, length: int) -> str:
    return "".join(DICE.choices(alphabet, k=length))


def points(first: int, last: int, length: int) -> str:
    return "".join(chr(DICE.randint(first, last)) for _ in range(length))


CODE = Path(base64_batch.__file__).read_text(encoding="utf-8")
LOG = "\n".join(
    f"2026-10-{DICE.randint(10, 30)}T12:{DICE.randint(10, 59)}:07.{DICE.randint(100, 999)}Z [INFO] pid={n} "
    f"10.0.{DICE.randint(0, 255)}.9 GET /items/{DICE.getrandbits(64):x} 200 {DICE.random() * 90:.3f}ms"
    for n in range(300)
)
COMMON_CHINESE = "的一是在不了有和人这中大为上个国我以要他时来用们生到作地"
RUSSIAN = (
    "в и не на быть он что весь который человек говорить первый работа отношение женщина проблема решение "
)

KINDS = {
    "code": CODE,
    "diff": "\n".join(DICE.choice("+- ") + line for line in CODE.splitlines()),
    "minified": "var a=function(b,c){return b?c[0]:{d:1,e:null}};for(;;){f(a,2);g+=h[i++]||j}" * 40,
    "json": json.dumps([{"id": DICE.randrange(10**9), "n": DICE.random(), "ok": True} for _ in range(300)]),
    "pretty json": json.dumps([{"id": n, "name": "alice", "tags": ["x", "y"]} for n in range(200)], indent=2),
    "log": LOG,
    "table": "\n".join(" | ".join(str(DICE.randrange(10**6)) for _ in range(6)) for _ in range(200)),
    "prose": "The quick brown fox jumps over the lazy dog, and nobody in particular is surprised. " * 60,
    "german": "Während die Donaudampfschifffahrtsgesellschaft über Möglichkeiten nachdenkt, fährt er los. "
    * 60,
    "chinese": some(COMMON_CHINESE, 4_000),
    "rare chinese": points(0x4E00, 0x9FA5, 4_000),
    "japanese": "これは日本語のテキストです。カタカナとひらがなが混ざっています。" * 100,
    "korean": "이것은 한국어 텍스트입니다. 여러 단어가 섞여 있습니다. " * 100,
    "russian": " ".join(DICE.choices(RUSSIAN.split(), k=2_000)),
    "arabic": "هذا نص عربي طويل لاختبار عدد الرموز في النصوص العربية. " * 100,
    "hindi": "यह हिंदी में एक लंबा पाठ है जिसका उपयोग परीक्षण के लिए किया जाता है। " * 100,
    "emoji": some("😀🧠🚀✅🎉", 2_000) + "👨‍👩‍👧🇩🇪👍🏽❤️" * 300,
    "random bytes read as text": DICE.randbytes(8_000).decode("utf-8", "replace"),
    "random bytes as latin-1": DICE.randbytes(8_000).decode("latin-1"),
    "random bytes as python": repr(DICE.randbytes(8_000)),
    "hex dump": "\n".join(DICE.randbytes(16).hex(" ") for _ in range(300)),
    "hex": DICE.randbytes(8_000).hex(),
    "base64": base64.b64encode(DICE.randbytes(8_000)).decode(),
    "base32": base64.b32encode(DICE.randbytes(8_000)).decode().lower(),
    "uuids": "\n".join(str(uuid.UUID(int=DICE.getrandbits(128))) for _ in range(300)),
    "colours": "\x1b[31merror\x1b[0m: \x1b[1mfoo\x1b[0m\r\n" * 300,
    "zeros": "\x00\x1b" * 2_000,
    "punctuation": some("!@#$%^&*()_+-=[]{}|;':,./<>?`~", 6_000),
    "spaces": " " * 6_000,
}


@pytest.fixture(scope="module")
def real() -> Callable[[str], int]:
    required(find_spec("toktok"), "the package toktok-rs")
    return load_counter()


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_is_never_below_the_tokenizer(kind: str, real: Callable[[str], int]) -> None:
    text = KINDS[kind]
    for sent in (text, escaped(text)):
        assert real(sent) <= estimate(sent) <= len(sent.encode())


@given(st.text())
def test_the_estimate_is_never_above_the_bytes(text: str) -> None:
    assert estimate(text) <= len(text.encode())


@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_of_slices_is_the_count_of_the_whole(kind: str, real: Callable[[str], int]) -> None:
    text = (KINDS[kind] + " ") * (5 * SLICE // len(KINDS[kind]))
    slices = len(text) // (SLICE - SLICE // 4) + 1
    assert abs(run(count_exactly(text, real)) - real(escaped(text))) <= slices


@given(st.text(max_size=20).map(lambda text: text * (SLICE // 4)))
def test_no_character_is_counted_twice_or_missed(text: str) -> None:
    seen: list[str] = []

    def see(piece: str) -> int:
        seen.append(piece)
        return 0

    run(count_exactly(text, see))
    assert "".join(seen) == escaped(text)
    assert all(len(piece) <= SLICE for piece in seen) or escaped(text) != text


def test_each_step_counts_at_most_one_slice() -> None:
    counted: list[int] = []

    def count(piece: str) -> int:
        counted.append(len(piece))
        return 1

    for _ in count_in_slices("word " * SLICE, count):
        assert 0 < sum(counted) <= SLICE
        counted.clear()


def test_a_text_above_a_megabyte_is_estimated_from_a_bounded_number_of_characters() -> None:
    counted = 0

    def count(piece: str) -> int:
        nonlocal counted
        counted += len(piece)
        return len(piece)

    assert run(count_in_slices("x" * EXACT_BELOW, count)) == Tokens(EXACT_BELOW, exact=True)
    counted = 0
    tokens = run(count_in_slices("x" * (20 * EXACT_BELOW), count))
    assert tokens == Tokens(20 * EXACT_BELOW, exact=False)
    assert counted < EXACT_BELOW
