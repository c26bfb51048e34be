"""What is sent, as text for a page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge.faces.dashboard import shown
from chappie_bridge.wire.blocks import Image


@given(st.text())
def test_a_text_keeps_its_lines_and_nothing_that_steers(text: str) -> None:
    found = shown.prose(text)
    assert not any(char in found for char in "\x1b\u202e\u200b\x00\r")
    assert found.count("\n") >= text.replace("\r\n", "\n")[: shown.PROSE].count("\n")


def test_a_text_is_bounded_and_says_so() -> None:
    found = shown.prose("x" * 50_000)
    assert len(found) < shown.LINE + 100
    assert found.endswith("… 38,000 more characters")


def test_arguments_are_read_as_text() -> None:
    assert shown.arguments({"command": "ls\ncat", "n": [1, "a"]}) == 'command: ls\ncat\nn: [1, "a"]'


@pytest.mark.parametrize(
    ("kind", "data", "good"),
    [
        ("image/png", "aGk=", True),
        ("image/svg+xml", "aGk=", False),
        ("text/html", "aGk=", False),
        ("image/png", 'a"><script>', False),
    ],
)
def test_only_a_picture_is_an_address(kind: str, data: str, good: bool) -> None:
    assert bool(shown.picture(Image(data=data, mime_type=kind))) is good


def test_amounts_are_read_at_a_glance() -> None:
    assert [shown.size(each) for each in (None, 0, 999, 1_500, 2_500_000)] == [
        "?",
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 MB",
    ]
    assert [shown.took(each) for each in (None, 12, 1_500, 61_500)] == ["", "12 ms", "1.5 s", "1 min 2 s"]
