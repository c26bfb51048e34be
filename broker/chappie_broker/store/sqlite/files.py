"""The registry as a file: copied, checked, moved aside.  Synchronous; knows no event loop and no table."""

import os
import secrets
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from chappie_bridge.wire.errors import PathExists

from .database import translated


def copy(source: sqlite3.Connection, path: Path, target: Path) -> None:
    """Copy the registry at `path`, open as `source`, to the new file `target` (0600): complete under its
    name, or not there at all.

    :raises PathExists: when there is such a file.
    :raises StoreError: when either file fails; its `path` says which directory to look at."""
    if target.exists():
        raise PathExists(f"There is a file {target.name} already; it was left alone. Choose another name.")
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    with translated(target):
        try:
            os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            # All pages in one step: a reader of the log sees one moment and keeps no writer waiting.
            with closing(sqlite3.connect(part)) as copied:
                source.backup(copied)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


def faults(connection: sqlite3.Connection) -> tuple[str, ...]:
    """What SQLite finds wrong, at most 20 lines; empty when the registry is sound."""
    try:
        found = [str(line) for (line,) in connection.execute("PRAGMA integrity_check(20)") if line != "ok"]
        for table, _, parent, _ in connection.execute("PRAGMA foreign_key_check"):
            found.append(f"a row of {table} refers to a {parent} that is not there")
    except sqlite3.DatabaseError as error:
        found = [str(error)]  # too damaged to be walked through
    return tuple(found[:20])


def move_aside(path: Path, now: float) -> Path:
    """Move a damaged registry away, with what belongs to it, and return its new path.  Only for a person who
    asked for it, with the state directory locked.

    :raises StoreError: when the files cannot be moved.
    :raises PathExists: when that new path is taken; nothing was moved."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%S")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    if aside.exists():
        raise PathExists(f"There is a file {aside.name} already; it was left alone.")
    with translated(path):
        # The log first: beside a new, empty file it would be played back into that.
        for suffix in ("-wal", "-shm", ""):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
    return aside
