"""A chat starts an agent on a device whose owner allowed it; the person at a shell watches."""

import json
import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from tests.story.bridge import PATIENCE, Home

pytestmark = pytest.mark.anyio


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    (home.work / "project").mkdir()
    home.environment["CHAPPIE_AGENT_ROOTS"] = json.dumps([str(home.work)])
    home.environment["CHAPPIE_SESSION"] = "s_0123456789abcdef0123"
    return home


async def test_a_chat_starts_an_agent_which_survives_a_kill_of_the_daemon(home: Home) -> None:
    """B34: two chats that start one in the same directory have two; a stale id of the environment is none."""
    project = str(home.work / "project")
    with home.up("--no-agent") as up:
        with home.started("agent", "--daemon", "--json") as daemon:
            assert daemon.line()["sessions"] == []
            found = set()
            for name in ("one", "two"):
                async with up.client("auto", name) as chat:
                    head, _ = await chat.tool("init", directory=project, create=True)
                    assert head["selection"] == "created"
                    found.add(head["session"]["id"])
                    head, texts = await chat.tool(
                        "call", calls=[{"name": "bash", "arguments": {"command": "pwd"}}]
                    )
                    assert head["cwd"] == project
                    assert project in "".join(texts)
            assert len(found - {home.environment["CHAPPIE_SESSION"]}) == 2
            daemon.process.kill()
            daemon.process.wait()
        with home.started("agent", "--daemon", "--json") as daemon:
            assert set(daemon.line()["sessions"]) == found
            async with up.client("auto", "one") as chat:
                head, _ = await chat.tool("init", directory=project, create=True)
                assert head["selection"] == "existing"
                head, _ = await chat.tool("init", directory="/etc", create=True)
                assert head["error"]["code"] == "denied"
            assert daemon.stop(signal.SIGTERM)[0] == 0


async def test_the_agent_of_up_starts_others_too(home: Home) -> None:
    with home.up() as up:
        async with up.client("auto", "one") as chat:
            head, _ = await chat.tool("init", directory=str(home.work / "project"), create=True)
            assert head["selection"] == "created"
            assert head["session"]["id"] != up.ready["session"]


def test_a_daemon_without_roots_is_wrong_use(home: Home) -> None:
    del home.environment["CHAPPIE_AGENT_ROOTS"]
    done = home.run("agent", "--daemon")
    assert done.returncode == 2
    assert "agent_roots" in done.stderr
    assert home.run("agent", "--daemon", "--directory", ".").returncode == 2


def test_what_runs_is_watched_until_ctrl_c(home: Home) -> None:
    with home.up() as up, home.started("watch", "--json", "--every", "0.1") as watching:
        session = up.ready["session"]
        assert watching.line()["id"] == session
        begun = home.json("call", session, "bash", "command=sleep 600", "--wait", "0")
        row = watching.line()
        while row.get("running") is None:
            row = watching.line()
        assert (row["id"], row["running"], row["status"]) == (session, begun["operation"], "executing")
        home.run("call", "--operation", begun["operation"], "--cancel")
        while row.get("running") is not None:
            row = watching.line()
        assert watching.stop(signal.SIGINT)[0] == 0
        assert watching.stderr == ""


def test_on_a_terminal_the_table_stays_and_ctrl_c_ends_it(home: Home) -> None:
    with home.up() as up:
        ours, theirs = os.openpty()
        process = subprocess.Popen(
            home.argv("watch"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**home.environment, "COLUMNS": "250", "TERM": "xterm"},
        )
        os.close(theirs)
        seen = b""
        while up.ready["session"].encode() not in seen:
            ready, _, _ = select.select([ours], [], [], PATIENCE)
            assert ready, seen
            seen += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        os.close(ours)
