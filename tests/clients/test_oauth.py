"""OAuth with apps that nobody here wrote: they find their way from a 401, and the owner lets them in."""

import json
import secrets
import selectors
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest

from chappie_bridge.demo.bridge import Ready, ended
from tests.clients.conftest import NOTE, had
from tests.clients.environments import environment, node
from tests.clients.owner import command, lets_in

HERE = Path(__file__).parent

BACK = "http://127.0.0.1:9/back"
"""Nobody listens there: what a browser would bring is handed over by the test."""

CALLS = [{"name": "read", "arguments": {"path": "note.txt"}}]

SECONDS = 90
"""For one line, the app's start included."""

APPS = [
    ("app_v1.mjs", "ts_v1", []),
    ("app_v2.mjs", "ts_v2", ["legacy"]),
    ("app_v2.mjs", "ts_v2", ["2026-07-28"]),
]


class App:
    """A running app: what it says next, and what it is told."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._in, self._out = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)

    def says(self) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            assert selector.select(SECONDS), "it says nothing"
        line = self._out.readline()
        assert line, "it ended"
        told: dict[str, Any] = json.loads(line)
        return told

    def hears(self, told: str) -> None:
        self._in.write(json.dumps(told).encode() + b"\n")
        self._in.flush()


@contextmanager
def app(ready: Ready, script: str, package: str, options: Sequence[str]) -> Iterator[App]:
    place = had(partial(environment, "npm", package))
    for each in (script, "app.mjs"):  # imports by name are looked up from where the script lies
        shutil.copy(HERE / each, place)
    job = {
        "url": ready.mcp,
        "session": ready.session,
        "name": f"app {secrets.token_hex(4)}",
        "redirect": BACK,
        "calls": CALLS,
        "meta": {"openai/session": f"v1/{secrets.token_hex(8)}"},
    }
    argv = [str(had(node) / "bin" / "node"), str(place / script), json.dumps(job), *options]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with ended(process):
        yield App(process)


@pytest.mark.parametrize(("script", "package", "options"), APPS)
def test_an_app_finds_the_owner_is_let_in_works_renews_and_is_revoked(
    ready: Ready, script: str, package: str, options: Sequence[str]
) -> None:
    with app(ready, script, package, options) as running:
        asks = running.says()
        assert asks["strange"] is True
        client = asks["client"]["client_id"]
        asked = {name: value[0] for name, value in parse_qs(urlsplit(asks["page"]).query).items()}
        assert asks["page"].startswith(ready.mcp.removesuffix("/mcp") + "/authorize?")
        assert (asked["client_id"], asked["resource"]) == (client, ready.mcp)
        assert asked["code_challenge_method"] == "S256"
        running.hears(lets_in(ready.state, asks["page"]))

        used = running.says()
        first, second = used["letIn"], used["refreshed"]
        assert first["token_type"] == second["token_type"] == "Bearer"
        assert {first["access_token"], first["refresh_token"]}.isdisjoint(
            {second["access_token"], second["refresh_token"]}
        )
        assert _head(used["init"])["initialization"]["sessionId"] == ready.session
        assert _head(used["batch"])["status"] == "done"
        assert NOTE.strip() in used["batch"]["content"][2]["text"]
        assert not used["renewed"].get("isError")

        command(ready.state, "apps", "revoke", client)
        running.hears("go on")
        after = running.says()
        assert after["revoked"] is True
        assert after["held"] is None
        assert after["anew"] is True  # it registered as a stranger does, and asks the owner once more
        assert after["page"] != asks["page"]


def _head(result: dict[str, Any]) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(result["content"][0]["text"])
    return head
