"""What can be wrong with the registry's file and its disk, and what the person is told."""

import errno
import os
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from chappie_broker.store.port import (
    Retention,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnreadable,
    StoreUnsupported,
)
from chappie_broker.store.rows import AuditLine, Device
from chappie_broker.store.sqlite import InlineSqliteStore, Options, SqliteStore, move_aside
from chappie_broker.store.sqlite.database import translated

from chappie_bridge.wire.errors import BY_CODE, Executed, PathExists
from chappie_bridge.wire.ids import DeviceId

pytestmark = pytest.mark.anyio

LINE = AuditLine(at=1.0, who="me" * 400, what="call", target="s", size=1, outcome="ok")
DEVICE = Device(DeviceId("d"), "laptop", "hash", 1.0, 1.0)


@pytest.fixture(params=[SqliteStore, InlineSqliteStore])
def adapter(request: pytest.FixtureRequest) -> type[SqliteStore]:
    kind: type[SqliteStore] = request.param
    return kind


async def test_a_full_registry_says_so_keeps_what_it_has_and_works_again_after_tidying(
    adapter: type[SqliteStore], tmp_path: Path
) -> None:
    store = await adapter.open(tmp_path / "broker.db", Options(max_bytes=256 * 1024))
    await store.save_device(DEVICE)
    with pytest.raises(StoreFull, match="Free some space") as caught:
        await write_for_ever(store)
    assert caught.value.path == tmp_path / "broker.db"
    assert (await store.load(0.0)).devices == (DEVICE,)
    assert await store.integrity_check() == ()
    kept = len(await store.audit_page(limit=10_000))
    assert kept % 10 == 0, "a group of lines is written whole or not at all"
    while await store.prune(now=1.0, keep=Retention(audit_lines=10)):
        pass
    await store.append_audit([LINE] * 10)
    assert (tmp_path / "broker.db").stat().st_size <= 256 * 1024
    await store.close()


async def write_for_ever(store: SqliteStore) -> None:
    for _ in range(1000):
        await store.append_audit([LINE] * 10)


async def test_a_disk_without_room_for_a_new_registry_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreFull):
        await SqliteStore.open(tmp_path / "broker.db", Options(max_bytes=8 * 1024))
    store = await SqliteStore.open(tmp_path / "broker.db")
    assert await store.integrity_check() == ()
    await store.close()


UNPRIVILEGED = """
import asyncio, os, sys
from pathlib import Path
from chappie_broker.store.port import StoreError
from chappie_broker.store.sqlite import SqliteStore
os.chmod(sys.argv[1], 0o755)
if os.geteuid() == 0:
    os.chown(sys.argv[1], 65534, 65534)
    os.setgid(65534), os.setuid(65534)
async def attempt(rights):
    os.chmod(sys.argv[1], rights)
    try:
        store = await SqliteStore.open(Path(sys.argv[1], "broker.db"))
        await store.meta_once("a", "b")
        await store.close()
        return "written"
    except StoreError as error:
        return type(error).__name__
for rights in (0o500, 0o700, 0o500):
    print(asyncio.run(attempt(rights)))
os.chmod(sys.argv[1], 0o700)
os.chmod(Path(sys.argv[1], "broker.db"), 0o400)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="wrong platform: rights there are access lists")
def test_a_read_only_directory_is_named_as_such() -> None:
    """Before there is a registry in it, and after: the log cannot be made then."""
    with tempfile.TemporaryDirectory() as directory:  # where a user without rights may go, too
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, directory],
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    assert (done.stdout.split(), done.stderr) == (["StoreReadOnly", "written", "StoreReadOnly"], "")


async def test_a_missing_directory_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreReadOnly, match="missing or read-only"):
        await SqliteStore.open(tmp_path / "none" / "broker.db")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(params=["text", "truncated", "scrambled"])
async def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "broker.db"
    store = await SqliteStore.open(path)
    await store.append_audit([LINE] * 500)
    await store.close()
    whole = path.read_bytes()
    if request.param == "text":
        path.write_bytes(b"This was a registry once. " * 500)
    elif request.param == "truncated":
        path.write_bytes(whole[: len(whole) // 2 + 100])
    else:
        path.write_bytes(whole[:4096] + bytes(reversed(whole[4096:])))
    return path


async def test_a_damaged_registry_is_never_overwritten(adapter: type[SqliteStore], damaged: Path) -> None:
    """B88: whether it is found at the start or on the way."""
    before = damaged.read_bytes()
    with pytest.raises(StoreDamaged, match="left as it is"):
        await use(adapter, damaged)
    assert damaged.read_bytes() == before


async def use(adapter: type[SqliteStore], path: Path) -> None:
    store = await adapter.open(path)
    try:
        assert await store.integrity_check() != ()
        await store.load(0.0)
        await store.audit_page(limit=10_000)
    finally:
        await store.close()


async def test_a_damaged_registry_is_moved_aside_when_somebody_asks(damaged: Path) -> None:
    before = damaged.read_bytes()
    log = damaged.with_name("broker.db-wal")
    log.write_bytes(b"log")
    aside = move_aside(damaged, now=0.0)
    assert aside.name == "broker.db.damaged-19700101T000000"
    assert aside.read_bytes() == before
    assert aside.with_name(aside.name + "-wal").read_bytes() == b"log"
    store = await SqliteStore.open(damaged)
    assert (await store.load(0.0)).devices == ()
    await store.close()
    with pytest.raises(PathExists):
        move_aside(damaged, now=0.0)


async def test_a_registry_held_too_long_is_busy_and_can_be_asked_again(
    adapter: type[SqliteStore], tmp_path: Path
) -> None:
    store = await adapter.open(tmp_path / "broker.db", Options(busy_timeout=0.01))
    other = sqlite3.connect(tmp_path / "broker.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="Try again"):
        await store.save_device(DEVICE)
    assert await store.meta("a") is None, "reading goes on"
    other.execute("ROLLBACK")
    other.close()
    await store.save_device(DEVICE)
    await store.close()


async def test_a_registry_that_cannot_be_opened_alone_is_busy(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "broker.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreBusy):
        await SqliteStore.open(tmp_path / "broker.db", Options(busy_timeout=0.05))
    other.close()


async def test_an_old_sqlite_is_named_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(StoreUnsupported, match=r"3\.37"):
        await SqliteStore.open(tmp_path / "broker.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o377])
async def test_the_files_are_private_whatever_the_umask_says(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = await SqliteStore.open(tmp_path / "broker.db")
        await store.save_device(DEVICE)
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        await store.close()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("broker.db", "broker.db-wal", "broker.db-shm"), 0o600)


@pytest.fixture
def path() -> Path:
    return Path("somewhere")


def sqlite_error(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = getattr(sqlite3, name)
    return error


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (sqlite_error("SQLITE_IOERR_READ"), StoreUnreadable),
        (sqlite_error("SQLITE_IOERR_SHMSIZE"), StoreFull),
        (sqlite_error("SQLITE_READONLY_DIRECTORY"), StoreReadOnly),
        (sqlite_error("SQLITE_BUSY_SNAPSHOT"), StoreBusy),
        (sqlite_error("SQLITE_CORRUPT_INDEX"), StoreDamaged),
        (OSError(errno.ENOSPC, "full"), StoreFull),
        (OSError(errno.EDQUOT, "full"), StoreFull),
        (PermissionError(errno.EACCES, "no"), StoreReadOnly),
    ],
)
def test_each_cause_becomes_what_a_person_can_act_on(
    cause: Exception, kind: type[StoreError], path: Path
) -> None:
    with pytest.raises(kind) as caught, translated(path):
        raise cause
    assert caught.value.__cause__ is cause
    assert caught.value.path == path


def test_a_bug_passes_the_boundary_as_it_is(path: Path) -> None:
    for bug in (sqlite_error("SQLITE_CONSTRAINT_CHECK"), sqlite_error("SQLITE_ERROR"), KeyError("query")):
        with pytest.raises(type(bug)) as caught, translated(path):
            raise bug
        assert caught.value is bug


@pytest.mark.parametrize("kind", StoreError.__subclasses__())
def test_each_failure_is_an_error_of_the_closed_list_and_says_what_to_do(
    kind: type[StoreError], path: Path
) -> None:
    error = kind(path)
    told = error.bridge_error(Executed.YES)
    assert type(told) is BY_CODE[kind.code]
    assert (str(told), told.executed) == (str(error), Executed.YES)
    assert "\n" not in str(error)
    assert str(error).count(". ") >= 1, "what happened, and what to do"


async def test_a_write_that_fails_half_way_is_undone(adapter: type[SqliteStore], tmp_path: Path) -> None:
    store = await adapter.open(tmp_path / "broker.db")
    with pytest.raises(sqlite3.IntegrityError):
        await store.append_audit([LINE, replace(LINE, who=None)])
    assert await store.audit_page() == ()
    await store.append_audit([LINE])
    await store.close()
