"""Small records that outlive the process: one JSON file each, replaced in one step.  Knows no meaning."""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

Record = dict[str, object]

MAX_RECORDS = 10_000


class Records:
    """A directory (0700) of records by name.  Blocks, but only for a small file each."""

    def __init__(self, directory: Path) -> None:
        """Makes the directory.  Raises `OSError`."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory

    def put(self, name: str, record: Record) -> None:
        """Raises `OSError`."""
        part = self._directory / f".{secrets.token_hex(8)}.part"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(record, file)
        part.replace(self._path(name))

    def get(self, name: str) -> Record | None:
        """None: there is none, or it is damaged."""
        try:
            record = json.loads(self._path(name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self._path(name).unlink()

    def expired(self, before: float, spared: Callable[[Record], bool] = lambda _: False) -> Iterator[Record]:
        """Takes away, and gives, what was put before that (seconds since the epoch), and the oldest above
        `MAX_RECORDS`; but nothing that is `spared`."""
        found: list[tuple[float, Path]] = []
        for path in self._directory.iterdir():
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime, path))
        found.sort()
        for index, (at, path) in enumerate(found):
            if at >= before and index >= len(found) - MAX_RECORDS:
                break
            record: object = None
            with contextlib.suppress(OSError, ValueError):
                record = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(record, dict) and spared(record):
                continue
            with contextlib.suppress(OSError):
                path.unlink()
            if isinstance(record, dict):
                yield record

    def _path(self, name: str) -> Path:
        """Names come from others: their hash is a file name, whatever they are."""
        return self._directory / f"{hashlib.sha256(name.encode()).hexdigest()}.json"
