"""The owner's pages in a real Chromium, on a whole bridge.

To look at them: `CHAPPIE_PICTURES=docs/images CHAPPIE_SCENARIOS=pictures make test-browser`.
"""

import pytest

from tests.browser.stage import Outcomes, Stage, holds, played


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    room = tmp_path_factory.mktemp("dashboard")
    return played(Stage(room, 'rules = [{tool = "write", decision = "ask"}]'), "dashboard.mjs")


@pytest.mark.parametrize(
    "scenario",
    [
        "login_once",
        "transcript_live",
        "cancel",
        "draft_survives",
        "logged_out_elsewhere",
    ],
)
def test_the_owner_watches_and_decides(outcomes: Outcomes, scenario: str) -> None:
    holds(outcomes, scenario)


@pytest.mark.parametrize("scenario", ["approve", "deny"])
def test_what_waits_for_approval_goes_on_as_the_owner_decides(outcomes: Outcomes, scenario: str) -> None:
    """B53: the page is told of it without being loaded again."""
    holds(outcomes, scenario)


def test_a_question_is_answered_here_while_its_page_is_open_in_the_chat(outcomes: Outcomes) -> None:
    """B53: the first answer counts, the page in the chat is told."""
    holds(outcomes, "question_answered_here")


def test_everything_works_without_script(outcomes: Outcomes) -> None:
    holds(outcomes, "without_script")


def test_a_page_stays_small_however_much_happens(outcomes: Outcomes) -> None:
    holds(outcomes, "flat")


def test_every_page_is_accessible_in_light_and_dark_and_fits_a_narrow_screen(outcomes: Outcomes) -> None:
    holds(outcomes, "accessible")
