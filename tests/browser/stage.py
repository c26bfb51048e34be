"""A whole bridge, a real Chromium and the script that plays in it.  Hosts and driver come from npm by
`tests/clients/versions.toml`, the browser is the system's.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chappie_bridge.demo.bridge import Ready, bridge
from chappie_bridge.demo.bridge import environment as own_settings_aside
from tests.clients.conftest import had
from tests.clients.environments import NotToBeHad, environment, node

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

SECONDS = 300
"""For all of a script, the browser's start included."""

Outcomes = dict[str, str | None]
"""How each scenario went: None, or what failed."""


def browser() -> str:
    """`CHAPPIE_CHROMIUM`, or the first that the system has.  :raises NotToBeHad: there is none."""
    found = os.environ.get("CHAPPIE_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise NotToBeHad("no Chromium here; install the package `chromium`, or name one in CHAPPIE_CHROMIUM")
    return found


class Stage:
    """A whole bridge that can be started once more on the same state."""

    def __init__(self, room: Path, *settings: str) -> None:
        self._room = room
        self._life = ExitStack()
        (room / "work").mkdir()
        (room / "work" / "note.txt").write_text("a note\n", encoding="utf-8")
        (room / "config.toml").write_text("\n".join(["cooldown = 0", *settings, ""]), encoding="utf-8")

    def start(self) -> dict[str, Any]:
        """Where it is."""
        config = str(self._room / "config.toml")
        ready: Ready = self._life.enter_context(
            bridge(self._room / "state", self._room / "work", "--config", config)
        )
        return {"url": ready.mcp, "headers": dict(ready.headers), "session": ready.session}

    def stop(self) -> None:
        self._life.close()

    def restart(self) -> dict[str, Any]:
        self.stop()
        return self.start()

    def link(self) -> dict[str, Any]:
        """A login link for the dashboard."""
        argv = [sys.executable, "-m", "chappie_bridge.cli", "dashboard", "--json"]
        argv += ["--state", str(self._room / "state")]
        told = subprocess.run(argv, capture_output=True, check=True, timeout=60, env=own_settings_aside())
        found: dict[str, Any] = json.loads(told.stdout)
        return found


def played(stage: Stage, script: str) -> Outcomes:
    """Every scenario of a script beside this one, or of `CHAPPIE_SCENARIOS`."""
    chromium, place, program = had(browser), had(partial(environment, "npm", "browser")), had(node)
    for part in (*HERE.glob("*.mjs"), *HERE.glob("*.js")):
        shutil.copy(part, place)  # imports by name are looked up from where the script lies
    try:
        return _played(stage, [str(program / "bin" / "node"), str(place / script)], chromium, place)
    finally:
        stage.stop()


def _played(stage: Stage, argv: list[str], chromium: str, place: Path) -> Outcomes:
    job = {
        **stage.start(),
        "chromium": chromium,
        "place": str(place),
        "only": os.environ.get("CHAPPIE_SCENARIOS", "").split(),
        "pictures": str(Path(os.environ["CHAPPIE_PICTURES"]).absolute())
        if "CHAPPIE_PICTURES" in os.environ
        else "",
    }
    outcomes: Outcomes = {}
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
                if "need" in told:
                    given = {"restart": stage.restart, "link": stage.link}[told["need"]]()
                    print(json.dumps(given), file=process.stdin, flush=True)
                else:
                    outcomes[told["name"]] = told["failure"]
            errors = process.stderr.read()
        finally:
            watchdog.cancel()
            process.kill()
    assert outcomes, errors
    return outcomes


def holds(outcomes: Outcomes, name: str) -> None:
    """It was played, and nothing failed."""
    if name not in outcomes and os.environ.get("CHAPPIE_SCENARIOS"):
        pytest.skip("not among CHAPPIE_SCENARIOS")
    assert name in outcomes, f"the browser ended before it; it had played {sorted(outcomes)}"
    assert outcomes[name] is None, outcomes[name]
