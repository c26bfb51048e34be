"""What may answer a question, and in which form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.question import (
    OPEN_QUESTIONS,
    QUESTION,
    Answer,
    Asked,
    Option,
    Stage,
    settled,
    stated,
    titles,
)

ONE = Asked(question="Which?", options=(Option(title="a"), Option(title="b"), Option(title="c")))
MANY = ONE.model_copy(update={"allow_multiple": True})
FREE = Asked(question="Why?")


@pytest.mark.parametrize(
    ("asked", "given_answer", "says"),
    [
        (ONE, Answer(), "at least one"),
        (ONE, Answer(text=" \n"), "at least one"),
        (ONE, Answer(selections=(0, 1)), "one selection"),
        (ONE, Answer(selections=(3,)), "from 0 to 2"),
        (ONE, Answer(selections=(-1,)), "from 0 to 2"),
        (FREE, Answer(selections=(0,)), "no options"),
        (ONE, Answer(selections=(0,), skipped=True), "neither"),
        (ONE, Answer(text="x", skipped=True), "neither"),
    ],
)
def test_what_does_not_answer_is_refused_with_the_reason(
    asked: Asked, given_answer: Answer, says: str
) -> None:
    with pytest.raises(BadArguments, match=says):
        settled(asked, given_answer)


def test_equal_answers_have_one_form() -> None:
    assert settled(MANY, Answer(selections=(2, 0, 2), text=" x ")) == Answer(selections=(0, 2), text="x")
    assert settled(ONE, Answer(selections=(1, 1))) == Answer(selections=(1,))
    assert settled(FREE, Answer(skipped=True, text="  ")) == Answer(skipped=True)
    assert titles(MANY, Answer(selections=(0, 2))) == ("a", "c")


@given(st.lists(st.integers(-2, 5), max_size=6), st.text(max_size=4), st.booleans())
def test_a_settled_answer_settles_to_itself(selections: list[int], text: str, skipped: bool) -> None:
    try:
        once = settled(MANY, Answer(selections=tuple(selections), text=text, skipped=skipped))
    except BadArguments:
        return
    assert settled(MANY, once) == once


def test_white_space_is_no_question() -> None:
    with pytest.raises(BadArguments, match="question"):
        stated(Asked(question=" \n "))
    with pytest.raises(BadArguments, match=r"options\[1\]"):
        stated(Asked(question="x", options=(Option(title="a"), Option(title=" "))))
    assert stated(Asked(header=" ", question=" x ", context="\n")) == Asked(question="x")


@given(st.lists(st.sampled_from(["loaded", "answer", "skip", "unseen"]), max_size=20))
def test_a_person_s_word_is_never_undone_by_the_clock(events: list[str]) -> None:
    """B52: silence is no answer; who answers late has answered."""
    stage = Stage.ASKED
    for event in events:
        before, stage = stage, QUESTION.next(stage, event)
        if event == "answer":
            assert stage is Stage.ANSWERED
        elif event in ("unseen", "loaded") and before not in OPEN_QUESTIONS:
            assert stage is before
