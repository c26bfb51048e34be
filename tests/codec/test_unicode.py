import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge.codec.unicode import clean, clean_json_bytes, display

ANY_TEXT = st.text(st.characters(exclude_categories=()) | st.sampled_from('\ud83d\ude00\\"ud'))
HALVES = st.text(st.sampled_from("\ud83d\ude00\ud800\udfffa\ufffd"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | HALVES,
    lambda inner: st.lists(inner) | st.dictionaries(HALVES, inner),
)


@pytest.mark.parametrize(
    ("given_text", "cleaned", "count"),
    [
        ("plain", "plain", 0),
        ("中文 😀 \ufffd", "中文 😀 \ufffd", 0),
        ("\ud83d", "\ufffd", 1),
        ("a\ude00b", "a\ufffdb", 1),
        ("\ud83d\ude00", "😀", 0),
        ("\ud83d\ud83d\ude00", "\ufffd😀", 1),
        ("\ude00\ud83d", "\ufffd\ufffd", 2),
        ("\ud83d😀\ud83d", "\ufffd😀\ufffd", 2),
        ("\ufffd\ud83d", "\ufffd\ufffd", 1),
    ],
)
def test_a_lone_half_becomes_one_replacement_and_a_pair_its_character(
    given_text: str, cleaned: str, count: int
) -> None:
    """B63: alone → U+FFFD, counted; a legal pair → the real character."""
    assert clean(given_text) == (cleaned, count)
    assert clean([{given_text: [given_text]}]) == ([{cleaned: [cleaned]}], 2 * count)


@given(VALUES)
def test_a_cleaned_value_can_be_written_as_utf8_and_is_clean(value: object) -> None:
    cleaned, _ = clean(value)
    json.dumps(cleaned, ensure_ascii=False).encode()
    again, count = clean(cleaned)
    assert again is cleaned
    assert count == 0


def test_a_value_with_nothing_wrong_is_the_same_object() -> None:
    for value in ["a" * 1_000_000, {"k": ["中", 1, None, True, 1.5]}, "", None]:
        assert clean(value)[0] is value


def test_keys_that_become_equal_are_kept_apart_in_order() -> None:
    first, second = (chr(0xD800 + index) for index in range(2))
    value, count = clean({first: 1, second: 2, "x": 3})
    assert value == {"\ufffd": 1, "\ufffd\ufffd": 2, "x": 3}
    assert json.dumps(value) == r'{"\ufffd": 1, "\ufffd\ufffd": 2, "x": 3}'
    assert count == 2


def test_nesting_deeper_than_the_interpreter_recurses_is_cleaned() -> None:
    value: list[object] = ["\ud83d"]
    for _ in range(5_000):
        value = [value]
    cleaned, count = clean(value)
    while isinstance(cleaned, list):
        (cleaned,) = cleaned
    assert (cleaned, count) == ("\ufffd", 1)


@pytest.mark.parametrize(
    ("body", "cleaned", "count"),
    [
        (rb'["\ud83d"]', rb'["\ufffd"]', 1),
        (rb'["\uD83D\uDE00"]', rb'["\uD83D\uDE00"]', 0),
        (rb'["\ude00\ud83d"]', rb'["\ufffd\ufffd"]', 2),
        (rb'["\ud83d\ud83d\ude00"]', rb'["\ufffd\ud83d\ude00"]', 1),
        (rb'["\\ud83d"]', rb'["\\ud83d"]', 0),
        (rb'["\\\ud83d"]', rb'["\\\ufffd"]', 1),
        (rb'["\\ud83d\ude00"]', rb'["\\ud83d\ufffd"]', 1),
        (rb'["\ud83d\\ude00"]', rb'["\ufffd\\ude00"]', 1),
        (rb'["\ud83d\u0041"]', rb'["\ufffd\u0041"]', 1),
        (rb'["\ud83"]', rb'["\ud83"]', 0),
        (b'["\xff\\ud83d"]', b'["\xff\\ufffd"]', 1),
    ],
)
def test_only_lone_surrogate_escapes_of_a_request_are_replaced(
    body: bytes, cleaned: bytes, count: int
) -> None:
    """B63: the strict parser sees `\\ufffd` where it would have refused everything."""
    assert clean_json_bytes(body) == (cleaned, count)


@given(ANY_TEXT | HALVES)
def test_cleaning_the_bytes_of_a_request_equals_cleaning_its_value(text: str) -> None:
    body = json.dumps([text]).encode()
    fixed, count = clean_json_bytes(body)
    # Python's own reader joins escaped halves, as any JSON reader does.
    assert (json.loads(fixed), count) == clean(json.loads(body))


def test_a_request_with_nothing_wrong_is_the_same_object() -> None:
    for body in [b"{}", rb'["\ud83d\ude00"]' * 10, rb"\\ud83d"]:
        assert clean_json_bytes(body)[0] is body


def test_a_megabyte_of_backslashes_is_read_in_one_go() -> None:
    body = b"\\" * 1_000_000 + b"ud83d"
    assert clean_json_bytes(body) == (body, 0)


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("report.txt", 64, "report.txt"),
        ("a\nb\tc\r", 64, "a\\nb\\tc\\r"),
        ("\x1b[31mred\x07", 64, "\\x1b[31mred\\x07"),
        ("\x9b31m\x7f", 64, "\\x9b31m\\x7f"),
        ("gpj.\u202eexe", 64, "gpj.\\u202eexe"),
        ("a\U000e0041", 64, "a\\U000e0041"),
        ("\ud83d", 64, "\ufffd"),
        ("家👨‍👩‍👧", 64, "家👨‍👩‍👧"),
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abcde…"),
        ("\n\n\n\n", 6, "\\n\\n\\…"),
        ("ab", 1, "…"),
    ],
)
def test_a_name_is_shown_on_one_line_with_nothing_hidden_in_it(text: str, limit: int, shown: str) -> None:
    """B28 S17: control characters made safe."""
    assert display(text, limit) == shown


@given(ANY_TEXT, st.integers(1, 50))
def test_a_shown_name_is_never_longer_than_its_limit(text: str, limit: int) -> None:
    shown = display(text, limit)
    assert len(shown) <= limit
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", shown)
