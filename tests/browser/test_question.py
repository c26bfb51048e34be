"""The question's page in a real Chromium, in an MCP Apps host and in one with `window.openai`.

Hosts and driver come from npm by `tests/clients/versions.toml`, the browser is the system's.  To look at the
page: `CHAPPIE_PICTURES=docs/images CHAPPIE_SCENARIOS=pictures make test-browser`.
"""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chappie_bridge.demo.bridge import Ready, bridge
from tests.clients.conftest import had
from tests.clients.environments import NotToBeHad, environment, node

HERE = Path(__file__).parent
PARTS = ("driver.mjs", "host.mjs", "openai.js", "scenarios.mjs")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

SECONDS = 300
"""For all of it, the browser's start included."""

BOTH = ("apps", "openai")


def browser() -> str:
    """`CHAPPIE_CHROMIUM`, or the first that the system has.  :raises NotToBeHad: there is none."""
    found = os.environ.get("CHAPPIE_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise NotToBeHad("no Chromium here; install the package `chromium`, or name one in CHAPPIE_CHROMIUM")
    return found


class Stage:
    """A whole bridge that can be started once more on the same state."""

    def __init__(self, room: Path) -> None:
        self._room = room
        self._life = ExitStack()
        (room / "work").mkdir()
        (room / "work" / "note.txt").write_text("a note\n", encoding="utf-8")
        (room / "config.toml").write_text("cooldown = 0\n", encoding="utf-8")

    def start(self) -> dict[str, Any]:
        """Where it is."""
        config = str(self._room / "config.toml")
        ready: Ready = self._life.enter_context(
            bridge(self._room / "state", self._room / "work", "--config", config)
        )
        return {"url": ready.mcp, "headers": dict(ready.headers), "session": ready.session}

    def stop(self) -> None:
        self._life.close()


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str | None]]:
    """How each scenario went: None, or what failed."""
    chromium, place, program = had(browser), had(partial(environment, "npm", "browser")), had(node)
    room = tmp_path_factory.mktemp("browser")
    for part in PARTS:  # imports by name are looked up from where the script lies
        shutil.copy(HERE / part, place)
    stage = Stage(room)
    try:
        yield _played(stage, [str(program / "bin" / "node"), str(place / "scenarios.mjs")], chromium, place)
    finally:
        stage.stop()


def _played(stage: Stage, argv: list[str], chromium: str, place: Path) -> dict[str, str | None]:
    job = {
        **stage.start(),
        "chromium": chromium,
        "place": str(place),
        "only": os.environ.get("CHAPPIE_SCENARIOS", "").split(),
        "pictures": str(Path(os.environ["CHAPPIE_PICTURES"]).absolute())
        if "CHAPPIE_PICTURES" in os.environ
        else "",
    }
    outcomes: dict[str, str | None] = {}
    with subprocess.Popen(
        [*argv, json.dumps(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        watchdog = threading.Timer(SECONDS, process.kill)
        watchdog.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stdout:
                told = json.loads(line)
                if told.get("need") == "restart":
                    stage.stop()
                    print(json.dumps(stage.start()), file=process.stdin, flush=True)
                else:
                    outcomes[told["name"]] = told["failure"]
            errors = process.stderr.read()
        finally:
            watchdog.cancel()
            process.kill()
    assert outcomes, errors
    return outcomes


def _holds(outcomes: dict[str, str | None], name: str) -> None:
    if name not in outcomes and os.environ.get("CHAPPIE_SCENARIOS"):
        pytest.skip("not among CHAPPIE_SCENARIOS")
    assert name in outcomes, f"the browser ended before it; it had played {sorted(outcomes)}"
    assert outcomes[name] is None, outcomes[name]


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
def test_a_question_is_asked_and_answered(outcomes: dict[str, str | None], scenario: str, kind: str) -> None:
    _holds(outcomes, f"{scenario}-{kind}")


@pytest.mark.parametrize(
    "scenario",
    [
        "late_result-apps",
        "text_only-apps",
        "host_listens_late-apps",
        "initialize_is_never_answered-openai",
    ],
)
def test_a_host_that_does_less_is_enough(outcomes: dict[str, str | None], scenario: str) -> None:
    _holds(outcomes, scenario)


@pytest.mark.parametrize("kind", BOTH)
def test_an_answer_reaches_the_broker_s_next_life(outcomes: dict[str, str | None], kind: str) -> None:
    """B51 B55: the page was shown by the one before."""
    _holds(outcomes, f"restart_between-{kind}")


@pytest.mark.parametrize("kind", BOTH)
def test_of_two_pages_the_second_is_told_what_was_answered(
    outcomes: dict[str, str | None], kind: str
) -> None:
    """B53: and shows it."""
    _holds(outcomes, f"answered_elsewhere-{kind}")


@pytest.mark.parametrize("kind", BOTH)
def test_who_is_shown_a_question_late_still_answers_it(outcomes: dict[str, str | None], kind: str) -> None:
    """B52: what counted as skipped is answered, and delivered."""
    _holds(outcomes, f"late_answer-{kind}")


@pytest.mark.parametrize("kind", BOTH)
def test_what_looks_like_markup_is_text_and_long_things_fit(
    outcomes: dict[str, str | None], kind: str
) -> None:
    """S19: a question's words may come from anywhere; the page runs and loads nothing of them."""
    _holds(outcomes, f"hostile_and_long-{kind}")
