"""Files through the whole program: a person's commands, and a client that reads what it was given."""

import base64
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chappie_bridge.wire.link import CHUNK_BYTES
from tests.story.bridge import Home, Process

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("moving"))


@pytest.fixture(scope="module")
def up(home: Home) -> Iterator[Process]:
    with home.up() as process:
        yield process


@pytest.fixture(scope="module")
def session(home: Home, up: Process) -> str:
    (row,) = home.json("sessions")["sessions"]
    found: str = row["id"]
    return found


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 3_000_001])
def test_a_file_is_sent_and_fetched_back(home: Home, session: str, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "a file").write_bytes(data)
    sent = home.json("send", session, str(tmp_path / "a file"), "--to", f"deep/{size}")
    assert (sent["status"], sent["files"][0]["sha256"]) == ("done", sha(data))
    assert (home.work / "deep" / str(size)).read_bytes() == data
    got = home.json("get", session, f"deep/{size}", "--to", str(tmp_path / "back"))
    assert got["files"][0]["sha256"] == sha(data)
    assert (tmp_path / "back").read_bytes() == data
    again = home.run("get", session, f"deep/{size}", "--to", str(tmp_path / "back"))
    assert again.returncode == 1
    assert "exists" in again.stderr


def test_each_file_is_told_of_and_what_failed_is_no_success(home: Home, session: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    (home.work / "in").mkdir()
    (home.work / "in" / "two").write_text("old", encoding="utf-8")
    done = home.run("send", session, str(tmp_path / "one"), str(tmp_path / "two"), "--to", "in/")
    assert done.returncode == 1
    assert sha(b"one") in done.stdout
    assert "in/two" in done.stderr
    assert (home.work / "in" / "two").read_text(encoding="utf-8") == "old"
    done = home.run("get", session, "in/one", "in/nothing", "--to", f"{tmp_path}/out/", "--json")
    assert done.returncode == 1
    good, bad = json.loads(done.stdout)["files"]
    assert good["sha256"] == sha(b"one")
    assert bad["error"]["message"].endswith("No such file or directory")
    assert (tmp_path / "out" / "one").read_bytes() == b"one"


def test_a_file_is_copied_between_two_sessions(home: Home, session: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    data = os.urandom(2_000_000)
    (home.work / "build.tar").write_bytes(data)
    with home.started("agent", "--directory", str(other), "--json") as agent:
        there = agent.line()["session"]
        done = home.run("copy", f"{session}:build.tar", f"{there}:out/")
        assert done.returncode == 0, done.stderr
        assert (other / "out" / "build.tar").read_bytes() == data
        again = home.run("copy", f"{session}:build.tar", f"{there}:out/")
        assert again.returncode == 1
        assert "it exists there; --overwrite replaces it" in again.stderr
        wrong = home.run("copy", f"{session}:build.tar", "nowhere:")
        assert wrong.returncode == 1
        assert home.run("copy", "no-colon", f"{there}:x").returncode == 2


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_exports_a_file_and_reads_it(home: Home, up: Process, mode: Any) -> None:
    """B73: the SHA-256 of what was read is the file's, in both eras."""
    data = os.urandom(1_234_567)
    (home.work / f"{mode}.zip").write_bytes(data)
    async with up.client(mode, f"chat-{mode}") as chat:
        (row,) = home.json("sessions", "--online", "--directory", str(home.work))["sessions"]
        result = await chat._mcp.call_tool(
            "transfer",
            {"paths": [f"{mode}.zip"], "sessionId": row["id"]},
            meta={"openai/session": f"chat-{mode}"},
        )
        (link,) = [block for block in result.content if block.type == "resource_link"]
        assert (link.size, link.mime_type) == (len(data), "application/zip")
        read = await chat._mcp.read_resource(link.uri)
        assert sha(base64.b64decode(read.contents[0].blob)) == sha(data)
        templates = await chat._mcp.list_resource_templates()
        assert templates.resource_templates[0].uri_template.startswith("chappie://session/")


def test_help_names_the_three() -> None:
    import sys

    argv = [sys.executable, "-m", "chappie_bridge.cli", "--help"]
    told = subprocess.run(argv, capture_output=True, text=True, encoding="utf-8", check=True).stdout
    assert {"send", "get", "copy"} <= set(told.split())
