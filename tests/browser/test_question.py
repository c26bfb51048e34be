"""The question's page in a real Chromium, in an MCP Apps host and in one with `window.openai`.

To look at the page: `CHAPPIE_PICTURES=docs/images CHAPPIE_SCENARIOS=pictures make test-browser`.
"""

import pytest

from tests.browser.stage import Outcomes, Stage, holds, played

BOTH = ("apps", "openai")


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return played(Stage(tmp_path_factory.mktemp("browser")), "scenarios.mjs")


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    "scenario",
    [
        "confirms",
        "answer_revise_skip",
        "skip",
        "reload_keeps_the_draft",
        "missed_result",
        "answer_fails_twice",
        "keyboard_alone",
        "text_question_and_empty_answer",
        "speaks_the_readers_language",
        "accessible",
    ],
)
def test_a_question_is_asked_and_answered(outcomes: Outcomes, scenario: str, kind: str) -> None:
    holds(outcomes, f"{scenario}-{kind}")


@pytest.mark.parametrize(
    "scenario",
    [
        "late_result-apps",
        "text_only-apps",
        "host_listens_late-apps",
        "initialize_is_never_answered-openai",
    ],
)
def test_a_host_that_does_less_is_enough(outcomes: Outcomes, scenario: str) -> None:
    holds(outcomes, scenario)


@pytest.mark.parametrize("kind", BOTH)
def test_an_answer_reaches_the_broker_s_next_life(outcomes: Outcomes, kind: str) -> None:
    """B51 B55: the page was shown by the one before."""
    holds(outcomes, f"restart_between-{kind}")


@pytest.mark.parametrize("kind", BOTH)
def test_of_two_pages_the_second_is_told_what_was_answered(outcomes: Outcomes, kind: str) -> None:
    """B53: and shows it."""
    holds(outcomes, f"answered_elsewhere-{kind}")


@pytest.mark.parametrize("kind", BOTH)
def test_who_is_shown_a_question_late_still_answers_it(outcomes: Outcomes, kind: str) -> None:
    """B52: what counted as skipped is answered, and delivered."""
    holds(outcomes, f"late_answer-{kind}")


@pytest.mark.parametrize("kind", BOTH)
def test_what_looks_like_markup_is_text_and_long_things_fit(outcomes: Outcomes, kind: str) -> None:
    """S19: a question's words may come from anywhere; the page runs and loads nothing of them."""
    holds(outcomes, f"hostile_and_long-{kind}")
