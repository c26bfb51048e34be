"""The diff of an edit, applied again, is the edit."""

import re

from chappie_agents.tools.difference import DIFF_MAX, Replacement, apply, difference
from hypothesis import example, given
from hypothesis import strategies as st


def patched(text: str, diff: str) -> str:
    """Applies a unified diff, line by line, believing its numbers."""
    lines = re.findall(r"[^\n]*\n|[^\n]+$", text)
    made: list[str] = []
    at = 0
    body = re.sub(r"\n\\ No newline at end of file\n", "\0", diff.split("\n", 2)[2])
    for line in re.findall(r"[^\n\0]*[\n\0]", body):
        mark, rest = line[0], line[1:].removesuffix("\0")
        if mark == "@":
            first, count, new_first, new_count = map(int, re.findall(r"\d+", line))
            start = first - 1 if count else first
            made += lines[at:start]
            at = start
            assert len(made) == (new_first - 1 if new_count else new_first)
            continue
        if mark in " -":
            assert lines[at] == rest
            at += 1
        if mark in " +":
            made.append(rest)
    return "".join(made + lines[at:])


@st.composite
def edits(draw: st.DrawFn) -> tuple[str, tuple[Replacement, ...]]:
    pieces = st.sampled_from(["a", "b", "\n", "\n\n", "c\n", "d\r\n"])
    text = "".join(draw(st.lists(pieces, max_size=60)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    new = st.lists(st.sampled_from(["x", "\n", "y\n"]), max_size=3).map("".join)
    return text, tuple(Replacement(a, b, draw(new)) for a, b in spans if a < b)


@given(edits())
@example(("a\nb\n", (Replacement(1, 2, ""),)))
@example(("a\nb\nc\n", (Replacement(1, 2, ""), Replacement(3, 4, ""))))
def test_the_diff_leads_from_the_old_text_to_the_new(case: tuple[str, tuple[Replacement, ...]]) -> None:
    text, places = case
    diff, cut = difference(text, places, "f")
    assert not cut
    assert patched(text, diff) == apply(text, places)


def test_distant_changes_are_hunks_of_their_own() -> None:
    text = "".join(f"{number}\n" for number in range(100))
    places = (
        Replacement(text.index("10\n"), text.index("10\n") + 2, "ten"),
        Replacement(len(text) - 3, len(text) - 1, "x"),
    )
    assert difference(text, places, "f")[0].count("@@ -") == 2


def test_a_diff_is_cut_at_its_bound() -> None:
    diff, cut = difference("x" * 100_000, (Replacement(0, 1, "y"),), "f")
    assert cut
    assert len(diff) == DIFF_MAX
