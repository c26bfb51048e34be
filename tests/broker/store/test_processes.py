"""Several processes, and processes that die, on one registry."""

import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from chappie_broker.store.rows import AuditLine, Operation
from chappie_broker.store.sqlite import SqliteStore

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import Executed
from chappie_bridge.wire.ids import OperationId, SessionId

pytestmark = pytest.mark.anyio

WRITER = Path(__file__).with_name("writer.py")

OPERATION = Operation(
    OperationId("op"),
    "batch",
    "shell",
    "me",
    SessionId("s"),
    "/w",
    Status.RUNNING,
    Executed.UNKNOWN,
    "owner",
    1.0,
)


def spawn(stack: ExitStack, *arguments: str) -> subprocess.Popen[str]:
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, str(WRITER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
    )
    stack.callback(process.kill)  # runs before the wait of Popen's own exit
    return process


def read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def test_eight_writers_and_eight_readers_never_find_the_registry_locked(tmp_path: Path) -> None:
    """B86: each with a connection and a thread of its own; nobody is refused, nothing is missing."""
    stores = [await SqliteStore.open(tmp_path / "broker.db") for _ in range(8)]
    line = AuditLine(at=1.0, who="me", what="call", target="s", size=1, outcome="ok")

    async def write(store: SqliteStore, name: str) -> None:
        for number in range(40):
            await store.save_operation(replace(OPERATION, id=OperationId(f"{name}-{number}")))
            await store.append_audit([line] * 5)

    async def read_all(store: SqliteStore) -> None:
        for _ in range(20):
            await store.load(now=0.0)

    async with anyio.create_task_group() as group:
        for number, store in enumerate(stores):
            group.start_soon(write, store, f"op{number}")
            group.start_soon(read_all, store)
    found = await stores[0].load(now=0.0)
    lines = await stores[0].audit_page(limit=9999)
    for store in stores:
        await store.close()
    assert len(found.operations) == 8 * 40
    assert len(lines) == 8 * 40 * 5


def test_five_processes_start_at_once_on_nothing(tmp_path: Path) -> None:
    """B87: one makes the schema, the others wait for it, all of them work."""
    path = tmp_path / "broker.db"
    with ExitStack() as stack:
        processes = [spawn(stack, "start", str(path)) for _ in range(5)]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        said = {read(process) for process in processes}
        codes = [process.wait(timeout=30) for process in processes]
    assert codes == [0] * 5
    assert said == {f"{path.stat().st_ino} ()"}


async def test_a_killed_writer_damages_nothing_and_loses_nothing_it_was_told(tmp_path: Path) -> None:
    """B88: twenty writers, each killed with `kill -9` in the middle of its writes."""
    path = tmp_path / "broker.db"
    told: set[str] = set()
    for wave in range(10):
        with ExitStack() as stack:
            pair = [(name, spawn(stack, "write", str(path), name)) for name in (f"a{wave}", f"b{wave}")]
            for name, process in pair:
                # One more number is being committed while this one is read: the kill falls into it.
                for _ in range(1 + wave * 7):
                    told.add(f"{name}-{read(process)}")
                process.kill()
        store = await SqliteStore.open(path)
        assert await store.integrity_check() == ()
        kept = {operation.id for operation in (await store.load(now=0.0)).operations}
        await store.close()
        assert told - kept == set()


async def test_a_busy_registry_is_waited_for(tmp_path: Path) -> None:
    """B86: a transaction of another process delays a write, it does not refuse it."""
    store = await SqliteStore.open(tmp_path / "broker.db")
    other = sqlite3.connect(tmp_path / "broker.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with anyio.create_task_group() as group:
        group.start_soon(store.save_operation, OPERATION)
        await anyio.wait_all_tasks_blocked()
        other.execute("COMMIT")
    other.close()
    assert await store.operation(OPERATION.id) == OPERATION
    await store.close()
