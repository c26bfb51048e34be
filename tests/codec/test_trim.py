import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chappie_bridge.codec.graphemes import may_cut
from chappie_bridge.codec.parts import Part, Pointer, Trimmed, Trimming
from chappie_bridge.codec.tokens import SLICE, Counter, count_exactly, escaped, estimate, run
from chappie_bridge.codec.trim import (
    IMAGE_TOKENS,
    LIMIT,
    MAX_IMAGE_DATA,
    MAX_IMAGES,
    SHRUNK,
    fits,
    trim,
    trim_in_steps,
)
from chappie_bridge.faces.chatgpt.tokens import load_counter
from tests.required import required

HEAD = Part("head", '{"sessionId":"s_1","device":"laptop","cwd":"/home/u/project","status":"done"}')


def in_bytes(text: str) -> int:
    return len(text.encode())


def in_words(text: str) -> int:
    return len(re.findall(r"\w{1,4}|\s+|[^\w\s]", text))


def in_quarters(text: str) -> int:
    return (len(text) + 3) // 4


def header(call: int) -> Part:
    return Part(
        "header", f'{{"toolCallId":"call_chp_{call:08}","toolName":"bash","isError":false}}', call=call
    )


def pointer(call: int) -> Pointer:
    return Pointer("history", {"entry": f"e_{call:08}"})


def text(call: int, content: str) -> Part:
    return Part("text", content, call=call, read=pointer(call))


def spill(call: int, content: str, kept: int) -> Part:
    tail = content[len(content) - kept :]
    return Part("text", content[:kept], call=call, read=pointer(call), tail=tail, size=in_bytes(content))


def image(call: int, size: int = 1_000) -> Part:
    return Part("image", f'{{"type":"resource_link","uri":"chappie://image/{call}"}}', call=call, size=size)


def as_sent(parts: Sequence[Part], counter: Counter) -> int:
    blocks = [
        part.text if part.kind == "link" else f'{{"type":"text","text":"{escaped(part.text)}"}}'
        for part in parts
        if part.kind != "image"
    ]
    images = sum(part.kind == "image" for part in parts)
    return counter(f"[{','.join(blocks)}]") + images * IMAGE_TOKENS


def report(trimming: Trimming) -> list[dict[str, object]]:
    said: list[dict[str, object]] = json.loads(trimming.parts[0].text).get("trimmed", [])
    return said


def ends(shown: str, lost: Trimmed, whole: str) -> tuple[str, str, str]:
    """Head, marker line and tail of a trimmed text, checked against the whole."""
    data = whole.encode()
    head, tail = data[: lost.offset].decode(), data[lost.offset + lost.removed_bytes :].decode()
    assert shown.startswith(head)
    assert shown.endswith("\n" + tail)
    line = shown[len(head) : len(shown) - len(tail) - 1].removeprefix("\n")
    assert re.fullmatch(r"\[… .* …\]", line)
    assert f"{lost.removed_bytes} bytes" in line
    return head, line, tail


CONTENT = st.text(max_size=60) | st.builds(
    lambda piece, times: piece * times,
    st.text(st.sampled_from('ab \n"\\\x00é中😀\u0301\u200d🇩🇪'), min_size=1, max_size=40),
    st.integers(1, 2_000),
)


@st.composite
def responses(draw: st.DrawFn) -> list[Part]:
    parts = [HEAD]
    for call in range(draw(st.integers(1, 12))):
        parts.append(header(call))
        for kind in draw(st.lists(st.sampled_from(["text", "text", "spill", "image", "link"]), max_size=3)):
            if kind == "image":
                parts.append(image(call, draw(st.integers(1, MAX_IMAGE_DATA // 3))))
            elif kind == "link":
                parts.append(replace(image(call), kind="link", size=0))
            else:
                content = draw(CONTENT)
                kept = draw(st.integers(0, len(content) // 2))
                parts.append(text(call, content) if kind == "text" else spill(call, content, kept))
    return parts


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(responses(), st.sampled_from([in_bytes, in_words, estimate]))
def test_a_response_is_never_above_the_limit_and_everything_stays_in_its_place(
    parts: list[Part], counter: Callable[[str], int]
) -> None:
    trimming = trim(parts, counter)
    assert as_sent(trimming.parts, counter) <= LIMIT
    lost = {each.part: each for each in trimming.trimmed}
    for index, (given_part, shown) in enumerate(zip(parts, trimming.parts, strict=True)):
        assert shown.call == given_part.call
        if given_part.kind in ("header", "link"):
            assert shown is given_part
        elif given_part.kind == "image":
            assert shown in (given_part, replace(given_part, kind="link", size=0))
        elif given_part.kind == "text" and index not in lost:
            assert shown.text == given_part.text + (given_part.tail or "")
    images = [part.size for part in trimming.parts if part.kind == "image"]
    assert len(images) <= MAX_IMAGES
    assert sum(images) <= MAX_IMAGE_DATA
    assert bool(lost) == bool(report(trimming))


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(CONTENT, min_size=1, max_size=8), st.sampled_from([in_bytes, in_words]))
def test_head_and_removed_and_tail_are_the_text_and_no_character_is_split(
    contents: list[str], counter: Callable[[str], int]
) -> None:
    parts = [HEAD, *(text(call, content) for call, content in enumerate(contents))]
    trimming = trim(parts, counter)
    for lost in trimming.trimmed:
        whole = contents[lost.part - 1]
        head, _, tail = ends(trimming.parts[lost.part].text, lost, whole)
        assert len(head.encode()) + lost.removed_bytes + len(tail.encode()) == len(whole.encode())
        assert lost.exact
        assert lost.removed_tokens == run(count_exactly(whole[len(head) : len(whole) - len(tail)], counter))
        assert may_cut(whole, len(head)) or len(head) > 64
        assert counter(escaped(tail)) >= counter(escaped(head)) - 1
        assert lost.read == pointer(lost.part - 1).at(lost.offset)


@settings(deadline=None)
@given(CONTENT, st.integers(0, 500))
def test_bytes_of_a_spilled_text_are_exact(content: str, kept: int) -> None:
    kept = min(kept, len(content) // 2)
    trimming = trim([HEAD, spill(0, content, kept)], in_words)
    if 2 * kept == len(content):
        assert trimming.trimmed == ()
        assert trimming.parts[1].text == content
        return
    (lost,) = trimming.trimmed
    head, line, tail = ends(trimming.parts[1].text, lost, content)
    assert not lost.exact
    assert "≈" in line
    if in_words(escaped(content[:kept] + content[len(content) - kept :])) < LIMIT // 2:
        assert (head, tail) == (content[:kept], content[len(content) - kept :])


def test_what_is_short_is_returned_without_counting() -> None:
    def never(_: str) -> int:
        raise AssertionError

    parts = [HEAD, header(0), text(0, "ok"), image(0), replace(image(0), kind="link")]
    assert fits(parts)
    trimming = trim(parts, never)
    assert trimming.parts == tuple(parts)
    assert all(shown is given_part for shown, given_part in zip(trimming.parts, parts, strict=True))


def test_63_short_results_stay_whole_beside_a_huge_one() -> None:
    parts = [HEAD]
    for call in range(64):
        content = "log line\n" * 40_000 if call == 20 else f"result {call}\nok"
        parts += [header(call), text(call, content)]
    trimming = trim(parts, in_words)
    (lost,) = trimming.trimmed
    assert (lost.call, lost.part) == (20, 42)
    assert [shown for shown in trimming.parts if shown.call != 20][1:] == [
        given_part for given_part in parts if given_part.call != 20
    ][1:]
    assert LIMIT * SHRUNK * 0.98 < as_sent(trimming.parts, in_words) <= LIMIT * SHRUNK
    assert report(trimming) == [
        {
            "call": 20,
            "removedBytes": lost.removed_bytes,
            "removedTokens": lost.removed_tokens,
            "read": f'history {{"entry":"e_00000020","offset":{lost.offset}}}',
        }
    ]


def test_only_the_longest_lose_and_they_lose_down_to_the_same_length() -> None:
    lengths = [300, 1_000, 30_000, 1_900, 60_000]
    parts = [HEAD, *(text(call, "word " * (length // 2)) for call, length in enumerate(lengths))]
    trimming = trim(parts, in_words)
    assert [lost.call for lost in trimming.trimmed] == [2, 4]
    left = [in_words(trimming.parts[lost.part].text) for lost in trimming.trimmed]
    assert abs(left[0] - left[1]) < 40


def test_the_last_line_of_a_log_stays_visible() -> None:
    """B65: a 300 KB log whose last line is the error."""
    log = "".join(f"{n:06} compiling module number {n}\n" for n in range(9_000))
    whole = f"$ make\n{log}error: undefined reference to `main`\n"
    trimming = trim([HEAD, header(0), text(0, whole)], in_words)
    (lost,) = trimming.trimmed
    head, _, tail = ends(trimming.parts[2].text, lost, whole)
    assert tail.endswith("\nerror: undefined reference to `main`\n")
    assert head.startswith("$ make\n")
    assert head.endswith("\n")
    assert whole[: len(whole) - len(tail)].endswith("\n")


def test_data_that_looks_like_a_marker_is_data() -> None:
    """B67: user text that ends with a marker is untouched; a real cut has a record in the head."""
    fake = 'text\n[… 10 bytes, 2 tokens removed; to read them: history {"offset":1} …]\n[truncated]'
    whole = trim([HEAD, text(0, fake)], in_words)
    assert whole.parts[1].text == fake
    assert (whole.trimmed, report(whole)) == ((), [])
    cut = trim([HEAD, text(0, fake), text(1, f"{fake}\n" * 5_000)], in_words)
    assert cut.parts[1].text == fake
    assert [lost.call for lost in cut.trimmed] == [1]
    assert len(json.loads(cut.parts[0].text)["trimmed"]) == 1


def test_twenty_megabytes_of_control_characters_are_cut_exactly_in_small_steps() -> None:
    """B28: one call returns 20 MB with ESC and NUL bytes."""
    whole = "\x1b[31mред\x00\n" * 2_000_000
    counted: list[int] = []

    def count(piece: str) -> int:
        counted.append(len(piece))
        return len(piece) // 2 + 1

    steps = trim_in_steps([HEAD, text(0, whole)], count)
    while True:
        counted.clear()
        try:
            next(steps)
        except StopIteration as stop:
            trimming: Trimming = stop.value
            break
        assert sum(counted) <= 8 * SLICE
    (lost,) = trimming.trimmed
    assert not lost.exact
    ends(trimming.parts[1].text, lost, whole)
    assert "\x1b" not in escaped(trimming.parts[1].text)


def test_a_spill_keeps_its_ends_and_points_to_where_its_middle_begins() -> None:
    whole = "".join(f"line {n}\n" for n in range(10_000))
    part = replace(spill(3, whole, 5_000), read=Pointer("history", {"entry": "e"}, start=100))
    trimming = trim([HEAD, part], in_words)
    (lost,) = trimming.trimmed
    head, line, tail = ends(trimming.parts[1].text, lost, whole)
    assert (head, tail) == (whole[:5_000], whole[-5_000:])
    assert lost.read == 'history {"entry":"e","offset":5100}'
    assert lost.read in line
    assert abs(lost.removed_tokens - in_words(escaped(whole[5_000:-5_000]))) < lost.removed_tokens * 0.1


def test_a_reading_of_bytes_never_says_that_less_than_nothing_was_removed() -> None:
    part = Part("text", "\ufffd" * 5_000, tail="\ufffd" * 5_000, size=20_000, lossy=True)
    (lost,) = trim([HEAD, part], in_bytes).trimmed
    assert lost.removed_bytes >= 0
    assert lost.read is None


def test_images_over_the_bounds_become_links_in_their_places() -> None:
    parts = [HEAD, *(image(call) for call in range(MAX_IMAGES)), image(90), text(90, "after")]
    assert [part.kind for part in trim(parts, in_words).parts] == ["head", *["image"] * 8, "link", "text"]
    heavy = [HEAD, image(0, MAX_IMAGE_DATA), image(1), text(1, "after")]
    assert [part.kind for part in trim(heavy, in_words).parts] == ["head", "image", "link", "text"]


def test_images_give_way_to_heads_that_may_not_be_cut() -> None:
    parts = [HEAD, *(header(call) for call in range(100)), *(image(call) for call in range(8))]
    trimming = trim(parts, in_words)
    assert as_sent(trimming.parts, in_words) <= LIMIT
    assert [part.kind for part in trimming.parts[-8:]].count("link") > 0
    assert trimming.parts[-8].kind == "image"


def test_with_many_long_texts_pointers_leave_the_head_before_they_leave_their_places() -> None:
    def huge(calls: int) -> Trimming:
        parts = [HEAD]
        for call in range(calls):
            pointing = Pointer("history", {"entry": f"{call:080}"})
            parts += [header(call), replace(text(call, "some words " * 4_000), read=pointing)]
        return trim(parts, in_quarters)

    few, many = huge(10), huge(64)
    for trimming in (few, many):
        assert as_sent(trimming.parts, in_quarters) <= LIMIT
        for lost in trimming.trimmed:
            assert lost.read is not None
            assert lost.read in trimming.parts[lost.part].text
    assert all("read" in each for each in report(few))
    assert not any("read" in each for each in report(many))
    assert [each["call"] for each in report(many)] == list(range(64))


def test_hundreds_of_long_texts_are_summed_up_in_the_head() -> None:
    parts = [HEAD, *(text(call, "some words " * 4_000) for call in range(200))]
    trimming = trim(parts, in_quarters)
    assert as_sent(trimming.parts, in_quarters) <= LIMIT
    removed = sum(lost.removed_bytes for lost in trimming.trimmed)
    tokens = sum(lost.removed_tokens for lost in trimming.trimmed)
    assert report(trimming) == [{"parts": 200, "removedBytes": removed, "removedTokens": tokens}]


def test_heads_are_never_cut_even_above_the_limit() -> None:
    parts = [HEAD, *(header(call) for call in range(2_000)), text(0, "word " * 20_000)]
    trimming = trim(parts, in_words)
    assert trimming.parts[1:-1] == tuple(parts[1:-1])
    assert len(trimming.parts[-1].text) < 100


@pytest.mark.parametrize("seed", range(3))
def test_the_real_tokenizer_finds_the_response_within_the_limit(seed: int) -> None:
    required(find_spec("toktok"), "the package toktok-rs")
    counter, dice = load_counter(), random.Random(seed)
    alphabets = [
        "abcdefghij \n",
        "0123456789.,\n",
        "的一是在不了有和人这中大",
        "\x00\x1b[31m\n",
        "😀👍🏽🇩🇪",
        '{}[]":,ab1\n',
    ]
    parts = [HEAD]
    for call in range(dice.choice([1, 6, 64])):
        content = "".join(dice.choices(dice.choice(alphabets), k=dice.choice([10, 400, 60_000])))
        parts += [header(call), text(call, content)]
    parts += [header(99), text(99, "ab1 " * 20_000)]
    trimming = trim(parts, counter)
    assert trimming.trimmed
    assert as_sent(trimming.parts, counter) <= LIMIT * SHRUNK
