"""The local tools, through a client that nobody here wrote: two built-in agents on links of their own."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chappie_bridge.demo.bridge import environment as without_settings
from tests.clients.local_client import TOOLS, LocalClient, local_client
from tests.story.bridge import Home


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Home, str, str, LocalClient]]:
    home = Home(tmp_path)
    (tmp_path / "far").mkdir()
    with (
        home.up() as near,
        home.started("agent", "--json", "--directory", str(tmp_path / "far"), "--name", "far") as far,
    ):
        there, here = far.line()["session"], near.ready["session"]
        known = {**without_settings(), "HOME": str(tmp_path)}
        with local_client(home.state, here, known, home.work) as client:
            yield home, here, there, client


def test_a_foreign_client_discovers_calls_chats_follows_and_moves_files(
    two: tuple[Home, str, str, LocalClient],
) -> None:
    home, here, there, client = two
    assert client.tools == TOOLS
    found = client.call("sessions")
    assert found.head["self"] == here
    assert {row["id"]: row.get("name") for row in found.head["sessions"]}[there] == "far"
    about = client.call("remote_tools", sessionId=there, names=["bash"])
    assert "command" in about.head["tools"][0]["parameters"]["properties"]
    calls = [{"name": "bash", "arguments": {"command": "printf '%s' built; pwd > where.txt"}}]
    ran = client.call("remote_call", sessionId=there, calls=calls)
    assert (ran.head["status"], ran.is_error) == ("done", False)
    assert "built" in ran.texts

    page = client.call("history", sessionId=there)
    newest = [json.loads(text)["entry"] for text in page.texts if text.startswith('{"entry"')][-1]
    waiting = client.begin("history", sessionId=there, after=newest, wait=True)
    said = client.call("remote_chat", sessionId=there, text="The build completed.")
    assert said.head["status"] == "done"
    assert any("> The build completed." in text for text in client.end(waiting).texts)
    own = client.call("history")
    assert own.head["sessionId"] == here

    payload = os.urandom(3_000_000)
    far = home.root / "far"
    (far / "artefact.bin").write_bytes(payload)
    fetch = {"from": {"sessionId": there, "paths": ["artefact.bin"]}}
    assert client.call("transfer", paths=["got.bin"], **fetch).head["status"] == "done"
    assert (home.work / "got.bin").read_bytes() == payload
    send = {"to": {"sessionId": there, "paths": ["again/artefact.bin"]}}
    assert client.call("transfer", paths=["got.bin"], **send).head["status"] == "done"
    assert (far / "again" / "artefact.bin").read_bytes() == payload


def test_a_foreign_client_gets_clear_errors(two: tuple[Home, str, str, LocalClient]) -> None:
    _, here, there, client = two
    calls = [{"name": "bash", "arguments": {"command": "true"}}]
    for arguments, code in (
        ({"sessionId": here, "calls": calls}, "bad_arguments"),
        ({"sessionId": "s_nobody", "calls": calls}, "unknown_session"),
        ({"sessionId": there, "calls": calls, "sesionId": there}, "bad_arguments"),
    ):
        refused = client.call("remote_call", **arguments)
        assert refused.is_error
        assert refused.head["error"]["code"] == code
        assert refused.head["error"]["executed"] == "no"
