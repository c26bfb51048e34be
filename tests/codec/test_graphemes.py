import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge.codec.graphemes import LONGEST, boundary_after, boundary_before, line_after, line_before

SEEN_AS_ONE = [
    "a", " ", "\n", "\r\n", "é", "e\u0301", "中", "😀", "👍🏽", "👨‍👩‍👧", "🏳️‍🌈", "❤️", "🇩🇪", "🇫🇷", "한",
    "\u1112\u1161\u11ab", "क्षि", "ก็", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "1️⃣", "x\u200d",
]  # fmt: skip


@given(st.lists(st.sampled_from(SEEN_AS_ONE), max_size=30), st.data())
def test_a_cut_falls_between_what_a_person_sees_as_one(pieces: list[str], data: st.DataObject) -> None:
    # A piece that ends in a joiner takes the next one with it.
    joined = [0]
    for piece in pieces:
        joined.append(joined[-1] + len(piece))
    text = "".join(pieces)
    allowed = {at for at in joined if at == 0 or at == len(text) or text[at - 1] != "\u200d"}
    at = data.draw(st.integers(0, len(text)))
    assert boundary_before(text, at) == max(place for place in allowed if place <= at)
    assert boundary_after(text, at) == min(place for place in allowed if place >= at)


@given(st.text(), st.integers(0, 40))
def test_a_boundary_is_on_its_own_side(text: str, at: int) -> None:
    at = min(at, len(text))
    assert 0 <= boundary_before(text, at) <= at <= boundary_after(text, at) <= len(text)


def test_a_pile_of_marks_without_end_is_cut_all_the_same() -> None:
    text = "a" + "\u0301" * 1_000
    assert boundary_before(text, 500) == 500
    assert boundary_after(text, 500) == 500
    assert boundary_before(text, LONGEST) == 0
    assert boundary_after(text, len(text) - LONGEST) == len(text)


@pytest.mark.parametrize(
    ("text", "at", "within", "before"),
    [
        ("one\ntwo three", 8, 10, 4),
        ("one\ntwo three", 8, 2, 8),
        ("one\ntwo", 4, 0, 4),
        ("one\r\ntwo", 6, 4, 5),
        ("one\r\ntwo", 4, 0, 3),
        ("no line", 4, 4, 4),
    ],
)
def test_a_head_ends_with_a_line_where_one_is_near(text: str, at: int, within: int, before: int) -> None:
    assert line_before(text, at, within) == before


@pytest.mark.parametrize(
    ("text", "at", "within", "after"),
    [
        ("one two\nthree", 3, 10, 8),
        ("one two\nthree", 3, 2, 3),
        ("one\ntwo", 4, 0, 4),
        ("one\r\ntwo", 4, 0, 5),
        ("one two\n", 3, 10, 3),
        ("one two\n\n\n", 3, 10, 3),
        ("one\n", 4, 0, 4),
    ],
)
def test_a_tail_starts_with_a_line_that_is_not_the_empty_end(
    text: str, at: int, within: int, after: int
) -> None:
    assert line_after(text, at, within) == after
