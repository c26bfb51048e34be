"""The owner of a bridge before a browser: reads the page that an app opened, and decides."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import httpx2

from chappie_bridge.demo.bridge import environment

SECONDS = 60.0
"""For one command, and for one page."""


def lets_in(state: Path, address: str, decision: str = "allow") -> str:
    """Opens `address`, types a new code, presses a button; gives where the browser is sent."""
    code = command(state, "code")["code"]
    with httpx2.Client(follow_redirects=True, timeout=SECONDS) as browser:
        page = browser.get(address)
        assert page.status_code == 200, page.text
        action = re.search(r'<form method="post" action="([^"]+)"', page.text)
        hidden = re.search(r'name="request" value="([^"]+)"', page.text)
        assert action is not None, page.text
        assert hidden is not None, page.text
        form = {"request": html.unescape(hidden[1]), "code": code, "decision": decision}
        to = page.url.join(html.unescape(action[1]))
        answer = browser.post(to, data=form, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def command(state: Path, *arguments: str) -> dict[str, str]:
    """What a command of the owner's says with `--json`."""
    argv = [sys.executable, "-m", "chappie_bridge.cli", *arguments, "--json", "--state", str(state)]
    done = subprocess.run(
        argv, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, str] = json.loads(done.stdout)
    return told
