"""What `doctor` says of agent programs: the model endpoint that runs, and each program's configuration."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from chappie_agents.hosts.model.install import PROGRAMS, plan

from chappie_bridge.doctor import Finding
from chappie_bridge.wire.errors import BridgeError

if TYPE_CHECKING:
    from chappie_broker.state import StateDirectory

MODEL_DOOR = "model-door.json"
"""In the state directory while the model endpoint runs: its address."""

_WITHIN = 5.0


def local(state: StateDirectory) -> tuple[str, ...]:
    """The command with which a program starts the server of the local tools."""
    return (sys.executable, "-m", "chappie_bridge.cli", "local", "--state", str(state.path))


def findings(state: StateDirectory, home: Path, port: int) -> Iterator[Finding]:
    """`port`: where the endpoint listens when it runs.  Nothing is said of programs that were never
    configured.  Blocks."""
    if not (state.path / "model-key").exists():
        return
    key = state.secret("model-key")
    try:
        url = json.loads((state.path / MODEL_DOOR).read_text(encoding="utf-8"))["url"]
    except (OSError, ValueError, KeyError):
        url = None
    if url is None:
        yield Finding("model endpoint", "ok", "not running; `chappie-bridge model` starts it")
    else:
        yield _endpoint(url, key)
    configured = f"http://127.0.0.1:{port}"
    elsewhere = f" --port {urlsplit(url).port}" if url is not None and url != configured else ""
    for program in PROGRAMS:
        try:
            made = plan(program, url or configured, key, home, local(state))
        except (BridgeError, OSError, UnicodeDecodeError) as error:
            yield Finding(program, "warning", str(error), f"chappie-bridge model install {program}")
            continue
        ours = [change for change in made.changes if "chappie" in (change.before or "")]
        if not ours:
            continue
        wrong = [str(change.path) for change in made.changes if change.needed]
        if wrong:
            todo = f"chappie-bridge model install {program} --write{elsewhere}"
            yield Finding(program, "warning", f"not as this version needs it: {', '.join(wrong)}", todo)
        else:
            yield Finding(program, "ok", f"configured; start it with `{made.start}`")


def _endpoint(url: str, key: str) -> Finding:
    """A real request, as a program would send it."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=_WITHIN)
    try:
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
        status = connection.getresponse().status
    except OSError as error:
        return Finding("model endpoint", "fault", f"{url}: {error}", "Restart `chappie-bridge model`.")
    finally:
        connection.close()
    if status != 200:
        todo = "Restart `chappie-bridge model`."
        return Finding("model endpoint", "fault", f"{url} answers with HTTP {status}", todo)
    return Finding("model endpoint", "ok", f"{url} answers")
