"""One SQLite connection: opened, run, and its errors translated.  Synchronous; knows no event loop and no
table."""

import errno
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from chappie_broker.store.port import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    StoreUnreadable,
    StoreUnsupported,
)
from chappie_broker.store.queries import QUERIES

from .schema import SCHEMA, ForeignDatabase, NewerSchema, Schema, bring_up, found_version

Row = TypeVar("Row")
Result = TypeVar("Result")

PAGE = 4096
"""Bytes of a database page; SQLite's own default, fixed here because `max_bytes` counts in it."""

WAL_KEPT = 16 * 1024 * 1024
"""The write-ahead log is cut back to this many bytes after a checkpoint."""

_BY_PRIMARY_CODE: Mapping[int, type[StoreError]] = {
    sqlite3.SQLITE_FULL: StoreFull,
    sqlite3.SQLITE_READONLY: StoreReadOnly,
    sqlite3.SQLITE_PERM: StoreReadOnly,
    sqlite3.SQLITE_CANTOPEN: StoreReadOnly,  # most often: a directory where -wal cannot be made
    sqlite3.SQLITE_CORRUPT: StoreDamaged,
    sqlite3.SQLITE_NOTADB: StoreDamaged,
    sqlite3.SQLITE_BUSY: StoreBusy,
    sqlite3.SQLITE_LOCKED: StoreBusy,
    sqlite3.SQLITE_IOERR: StoreUnreadable,
}
_NO_ROOM = {sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMMAP}
"""What a full disk looks like to the shared memory of the log."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to open the registry."""

    max_bytes: int = 1 << 30
    """The file never grows beyond this; then StoreFull, until `prune` has made room inside it."""
    busy_timeout: float = 5.0
    """Seconds to wait for another process's transaction; then StoreBusy."""
    synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    """NORMAL: what was committed survives the end of the process, by `kill -9` too; a power cut or a crash
    of the whole machine may lose the last moments' commits, though it never damages the file.  FULL loses
    nothing and pays one disk flush for each commit."""
    schema: Schema = SCHEMA


DEFAULTS = Options()


def open_connection(path: Path, options: Options) -> sqlite3.Connection:
    """A connection to an up-to-date registry at `path`, made (0600) where there is none.

    Any number of processes may do this to one file at the same moment.

    :raises StoreError: any kind; a file that is newer, damaged or another program's is left as it was."""
    if sqlite3.sqlite_version_info < (3, 37):
        raise StoreUnsupported(path)
    with translated(path):
        if str(path) != ":memory:":
            _make_file(path)
        connection = sqlite3.connect(
            path,
            timeout=options.busy_timeout,
            isolation_level=None,  # transactions are written out
            check_same_thread=False,  # one thread opens it, another one uses it
        )
        try:
            _prepare_patiently(connection, options)
        except BaseException:
            connection.close()
            raise
        return connection


def _make_file(path: Path) -> None:
    # SQLite would make it by the umask; -wal and -shm copy the mode that they find here.
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform != "win32":
            os.fchmod(file, 0o600)
    finally:
        os.close(file)


def _prepare_patiently(connection: sqlite3.Connection, options: Options) -> None:
    # The change to WAL and the recovery after a crash need the file alone and may answer "busy" without
    # asking the busy timeout, so opening it waits by itself.
    deadline = time.monotonic() + options.busy_timeout
    while True:
        try:
            return _prepare(connection, options)
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _prepare(connection: sqlite3.Connection, options: Options) -> None:
    version = found_version(connection, options.schema)
    connection.execute(f"PRAGMA max_page_count = {max(1, options.max_bytes // PAGE)}")
    if version == 0:
        connection.execute(f"PRAGMA page_size = {PAGE}")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    # Where the file system cannot do WAL, SQLite stays with its old journal: that needs FULL to be safe.
    connection.execute(f"PRAGMA synchronous = {options.synchronous if mode == 'wal' else 'FULL'}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT}")
    connection.execute("PRAGMA trusted_schema = OFF")
    if version != options.schema.version:
        bring_up(connection, options.schema)
    connection.execute("PRAGMA foreign_keys = ON")


@contextmanager
def translated(path: Path) -> Generator[None, None, None]:
    """The one boundary between SQLite's errors and ours.  What is neither the disk's nor another process's
    doing (a broken constraint, a wrong statement) is a bug of this program and passes as it is."""
    try:
        yield
    except NewerSchema as error:
        raise StoreTooNew(path) from error
    except ForeignDatabase as error:
        message = "The registry's file is the database of another program and was left as it is."
        raise StoreDamaged(path, message) from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            raise
        kind = StoreFull if code in _NO_ROOM else _BY_PRIMARY_CODE.get(code & 0xFF)
        if kind is None:
            raise
        raise kind(path) from error
    except OSError as error:
        no_room = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise (StoreFull if no_room else StoreReadOnly)(path) from error


class Database:
    """Runs named queries on one connection.  For one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection = connection
        self.path = path

    def transaction(
        self, mode: Literal["DEFERRED", "IMMEDIATE"], work: Callable[["Database"], Result]
    ) -> Result:
        """All of `work` or nothing of it.  DEFERRED is for reading: one moment's view of everything.

        IMMEDIATE takes the write lock first: a transaction that begins by reading could not get it later
        if another process wrote in between."""
        with translated(self.path):
            self.connection.execute(f"BEGIN {mode}")
            try:
                result = work(self)
                self.connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # the first error tells more
                    if self.connection.in_transaction:
                        self.connection.execute("ROLLBACK")
                raise
            return result

    def run(self, query: str, **parameters: object) -> int:
        """How many rows it changed."""
        return self.connection.execute(QUERIES[query].sql, parameters).rowcount

    def run_each(self, query: str, rows: Iterable[Mapping[str, object]]) -> None:
        self.connection.executemany(QUERIES[query].sql, rows)

    def rows(self, kind: type[Row], query: str, **parameters: object) -> tuple[Row, ...]:
        return tuple(map(_maker(kind), self.connection.execute(QUERIES[query].sql, parameters)))

    def row(self, kind: type[Row], query: str, **parameters: object) -> Row | None:
        return next(iter(self.rows(kind, query, **parameters)), None)

    def value(self, query: str, **parameters: object) -> Any:
        """The first column of the first row, or None."""
        found = self.connection.execute(QUERIES[query].sql, parameters).fetchone()
        return None if found is None else found[0]


def columns(row: Any) -> dict[str, object]:
    """A row as parameters.  (`asdict` copies deeply, at ten times the price.)"""
    return {name: getattr(row, name) for name in type(row).__slots__}


_WORDS: dict[type, tuple[tuple[int, type[Enum]], ...]] = {}
"""Which columns of a row hold a word of an enum: place and enum."""


def _maker(kind: type[Row]) -> Callable[[tuple[Any, ...]], Row]:
    """Makes a row of `kind` of its columns."""
    if kind not in _WORDS:
        hints = enumerate(get_type_hints(kind).values())
        _WORDS[kind] = tuple(
            (place, hint) for place, hint in hints if isinstance(hint, type) and issubclass(hint, Enum)
        )
    words = _WORDS[kind]
    if not words:
        return lambda found: kind(*found)

    def make(found: tuple[Any, ...]) -> Row:
        values = list(found)
        for place, enum in words:
            values[place] = enum(values[place])
        return kind(*values)

    return make
