"""The state directory: private, one broker at a time, its secrets and its paths.  Reads no configuration
and opens neither the database nor the socket.

The socket's path may hold 107 bytes (macOS: 103).  Where `broker.sock` inside the state directory would be
longer, the broker makes a private directory under `$XDG_RUNTIME_DIR` or the temporary directory, puts the
socket there and writes its path to `broker.sock.path`; everybody finds it by `StateDirectory.socket`.
"""

import os
import re
import secrets
import stat
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from inspect import cleandoc
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

MAX_SOCKET_PATH = 107 if sys.platform == "linux" else 103
"""Bytes of a unix socket's path, the closing NUL not counted."""

SecretName = Literal["install-secret", "link-token", "model-key"]

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43,256}")
_LOCKED_BYTE = 1 << 30
"""Windows keeps others from reading a locked byte, so that byte is far behind the pid."""


class StateError(Exception):
    """The state directory cannot be used."""

    def __init__(self, path: Path, message: str | None = None) -> None:
        """`message` defaults to the class's docstring, the text for the person."""
        text = message or cleandoc(type(self).__doc__ or "").replace("\n", " ")
        super().__init__(f"{text} ({path})")
        self.path = path


class StateLocked(StateError):
    """Another broker is using this state directory. Join that one, stop it, or choose another directory
    with `--state`."""

    def __init__(self, path: Path, pid: int | None) -> None:
        """`pid` is what the other broker wrote down, for people to look at; nothing is concluded from it."""
        text = cleandoc(type(self).__doc__ or "").replace("\n", " ")
        super().__init__(path, text if pid is None else f"{text} Its process id is {pid}.")
        self.pid = pid


class StateUnsafe(StateError):
    """Others could read or change this. Give it to your user alone, or choose another directory with
    `--state`."""


class StateUnwritable(StateError):
    """The state directory cannot be made or written. Look at its rights and at the room on its disk, or
    choose another directory with `--state`."""


class StateDirectory:
    """One state directory.  `open` is for its broker, `visit` for everybody else."""

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> Self:
        """Make the directory where there is none, lock it for as long as this process lives (or until
        `close`), and clear away the socket of a broker that died.

        The lock is the operating system's: it goes with its process, however that ends, and no program
        that this process starts inherits it.

        :raises StateLocked: when another broker holds it.
        :raises StateUnsafe: when others may write to it, or own it.
        :raises StateUnwritable: when it cannot be made or written."""
        path = _private_directory(path)
        with _writing(path):
            lock = _private_file(path / "broker.lock", os.O_RDWR | os.O_CREAT)
        try:
            with _writing(path):
                if not _try_lock(lock):
                    raise StateLocked(path, _noted_pid(path / "broker.lock"))
                os.ftruncate(lock, 0)
                os.write(lock, b"%d\n" % os.getpid())
                _make_directory(path / "logs")
            state = cls(path, lock)
            state._place_socket()
        except BaseException:
            os.close(lock)
            raise
        return state

    @classmethod
    def visit(cls, path: Path) -> Self:
        """The directory without its lock, made where there is none: for whoever looks for the broker, or
        for a secret.

        :raises StateUnsafe: see `open`.
        :raises StateUnwritable: see `open`."""
        return cls(_private_directory(path), None)

    @property
    def database(self) -> Path:
        return self.path / "broker.db"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def socket(self) -> Path:
        """Where the broker listens, if it runs.  Ask again for each attempt: it may move with a restart."""
        try:
            return Path(self._socket_note.read_text(encoding="utf-8", errors="surrogateescape"))
        except FileNotFoundError:
            return self.path / "broker.sock"

    @property
    def _socket_note(self) -> Path:
        return self.path / "broker.sock.path"

    def secret(self, name: SecretName) -> str:
        """The secret in the file `name`, 256 random bits as text, made the first time anybody asks; all
        processes get the same.

        :raises StateUnsafe: when others may read the file, or it holds no such secret.
        :raises StateUnwritable: when it cannot be made."""
        file = self.path / name
        with _writing(self.path):
            if not file.exists():
                self._publish_once(file, secrets.token_urlsafe(32))
            text, info = _read_small(file)
        _refuse_others(info, file, stat.S_IRWXG | stat.S_IRWXO)
        if not stat.S_ISREG(info.st_mode) or not _TOKEN.fullmatch(text.strip()):
            raise StateUnsafe(
                file, "This file holds no secret any more. Remove it: the next start makes one."
            )
        return text.strip()

    def private(self, name: str) -> str | None:
        """What the file `name` holds, at most 16 KiB; None: there is no such file.

        :raises StateUnsafe: when others may read it.
        :raises StateUnwritable: when it cannot be read."""
        file = self.path / name
        with _writing(self.path):
            if not file.exists():
                return None
            text, info = _read_small(file)
        _refuse_others(info, file, stat.S_IRWXG | stat.S_IRWXO)
        return text

    def keep(self, name: str, content: bytes) -> None:
        """Put `content` into the file `name`, 0600, whole or not at all.  :raises StateUnwritable:"""
        with _writing(self.path):
            self._replace(self.path / name, content)

    def close(self) -> None:
        """Give up the lock and what was put outside the directory.  May be called twice."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        with suppress(OSError):
            socket = self.socket
            socket.unlink(missing_ok=True)
            if socket.parent != self.path:
                socket.parent.rmdir()
                self._socket_note.unlink()
        with suppress(OSError):
            os.ftruncate(lock, 0)
        os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _place_socket(self) -> None:
        """Decide where the socket is, and remove a dead one from there: who holds the lock is alone."""
        with _writing(self.path):
            if _fits(self.path / "broker.sock"):
                self._socket_note.unlink(missing_ok=True)
            elif not (_fits(self.socket) and _is_private(self.socket.parent)):
                self._replace(self._socket_note, os.fsencode(_short_directory(self.path) / "broker.sock"))
            if self.socket.is_socket():
                self.socket.unlink()

    def _publish_once(self, file: Path, text: str) -> None:
        """Make `file` with all of `text`, unless somebody else has just made it."""
        part = self._write_part(file, text.encode("ascii"))
        try:
            with suppress(FileExistsError):
                if sys.platform == "win32":
                    part.rename(file)  # refuses to replace
                else:
                    file.hardlink_to(part)  # as well; a rename would replace
        finally:
            part.unlink(missing_ok=True)

    def _replace(self, file: Path, content: bytes) -> None:
        self._write_part(file, content).replace(file)

    def _write_part(self, file: Path, content: bytes) -> Path:
        part = file.with_name(f".{file.name}.{secrets.token_hex(8)}.part")
        descriptor = _private_file(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(descriptor, content)
            os.fsync(descriptor)  # an empty file after a power cut would be an empty secret
        finally:
            os.close(descriptor)
        return part


@contextmanager
def _writing(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        raise StateUnwritable(path) from error


def _private_directory(path: Path) -> Path:
    """`path` made absolute, and there, and nobody else's."""
    with _writing(path):
        path = path.absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_directory(path)
        info = path.stat()
        if not stat.S_ISDIR(info.st_mode):
            raise NotADirectoryError(path)
        _refuse_others(info, path, stat.S_IWGRP | stat.S_IWOTH)
        if sys.platform != "win32" and stat.S_IMODE(info.st_mode) != 0o700:
            # A directory that somebody made for us may be tightened; one that holds other things may not.
            if not (path / "broker.lock").exists() and any(path.iterdir()):
                raise StateUnsafe(path, "This directory holds other files and others may read it.")
            path.chmod(0o700)
    return path


def _make_directory(path: Path) -> None:
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        path.chmod(0o700)  # whatever the umask took away


def _private_file(path: Path, flags: int) -> int:
    """A descriptor of a file that has 0600, whatever the umask says or the file had before."""
    descriptor = os.open(path, flags, 0o600)
    if sys.platform != "win32":
        os.fchmod(descriptor, 0o600)
    return descriptor


def _refuse_others(info: os.stat_result, path: Path, forbidden: int) -> None:
    if sys.platform == "win32":
        return  # the user's data directory is private there by its access list, which modes do not show
    if info.st_uid != os.geteuid():
        raise StateUnsafe(path, "This belongs to another user. Choose another directory with `--state`.")
    if info.st_mode & forbidden:
        raise StateUnsafe(path)


def _is_private(directory: Path) -> bool:
    try:
        info = directory.lstat()
        _refuse_others(info, directory, stat.S_IRWXG | stat.S_IRWXO)
    except (OSError, StateUnsafe):
        return False
    return stat.S_ISDIR(info.st_mode)


def _fits(socket: Path) -> bool:
    return len(os.fsencode(socket)) <= MAX_SOCKET_PATH


def _short_directory(state: Path) -> Path:
    """A new directory, 0700 and of random name, whose path leaves room for a socket's."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):  # noqa: S108 - mkdtemp is private
        if base and Path(base).is_dir() and _fits(Path(base, "chappie-12345678", "broker.sock")):
            with suppress(OSError):
                return Path(tempfile.mkdtemp(prefix="chappie-", dir=base))
    raise StateUnwritable(state, "No directory has a path short enough for the broker's socket.")


def _read_small(file: Path) -> tuple[str, os.stat_result]:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return os.read(descriptor, 16 * 1024).decode("ascii", errors="replace"), os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _noted_pid(lock: Path) -> int | None:
    try:
        return int(lock.read_bytes()[:20])
    except (OSError, ValueError):
        return None  # it has the lock but has not written yet


def _try_lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
