"""A backup made while work goes on, restored into a new home; and a registry that is too new."""

import sqlite3
from pathlib import Path

import anyio
import pytest
from chappie_broker.state import StateDirectory

from tests.story.bridge import Home

pytestmark = pytest.mark.anyio

ECHO = [{"name": "bash", "arguments": {"command": "echo done"}}]


async def test_a_backup_under_load_has_the_bindings_and_what_nobody_fetched(tmp_path: Path) -> None:
    """B88: taken online, restored into an empty state directory; the outcome comes with the next response."""
    home = Home(tmp_path)
    copy = tmp_path / "copy.db"
    with home.up() as running:
        session = running.ready["session"]
        async with running.client("2026-07-28", "mine") as chat:
            await chat.tool("init", sessionId=session)
            calls = [{"name": "bash", "arguments": {"command": "sleep 0.3; echo unfetched"}}]
            left, _ = await chat.tool("call", calls=calls, wait=0)
            assert left["status"] == "running"

            async def load() -> None:
                async with running.client("2026-07-28", "other") as other:
                    while True:
                        await other.tool("call", sessionId=session, calls=ECHO)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(load)
                with anyio.fail_after(60):
                    while not home.run("audit", "-n", "500").stdout.count(f"{left['operation']}\t") > 1:
                        await anyio.to_thread.run_sync(home.run, "version")
                await anyio.to_thread.run_sync(home.run, "backup", str(copy))
                tasks.cancel_scope.cancel()
    (home.state / "broker.db").unlink()
    for rest in home.state.glob("broker.db-*"):
        rest.unlink()
    assert home.run("doctor", "--restore", str(copy)).returncode == 0
    with home.up() as running:
        async with running.client("legacy", "mine") as chat:
            head, blocks = await chat.tool("call", calls=ECHO)
            assert head["sessionId"] == session
            assert any("deferredResult" in block and left["operation"] in block for block in blocks)
            assert any("unfetched" in block for block in blocks)


def test_a_registry_of_a_newer_version_is_refused_in_words_and_left_alone(tmp_path: Path) -> None:
    """B88: who goes back a version is told so before anything is changed."""
    home = Home(tmp_path)
    assert home.run("backup", str(tmp_path / "x")).returncode == 1
    database = StateDirectory.visit(home.state).database
    with home.started("serve", "--json", "--no-ports") as running:
        running.line()
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = database.read_bytes()
    done = home.run("serve", "--no-ports")
    assert done.returncode == 1
    assert "newer version" in done.stderr
    assert database.read_bytes() == before
