"""Opens paths that `policy` resolved.  Follows no link: one met on the way is a swap, and is refused.

Every directory is opened from the one above it, so what was checked is what is opened, with or
without a root.  POSIX only: it stands on directory file descriptors.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Generator
from pathlib import Path

from chappie_bridge.wire.errors import Denied

_WALK = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)


class NotRegular(OSError):
    """The path is a directory, device, pipe or socket; `strerror` says which."""


class Changed(OSError):
    """The file is not the one that was read before."""


def kind(mode: int) -> str:
    """What a person calls a file of this mode."""
    names = {
        stat.S_IFREG: "a file",
        stat.S_IFDIR: "a directory",
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return names.get(stat.S_IFMT(mode), "not a file")


def _refuse_link(name: str, directory: int, path: Path, error: OSError | None = None) -> None:
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise Denied(
                f"{str(path)!r} goes through a link that was not there when it was checked."
            ) from error


def _step(name: str, above: int, path: Path, create: bool) -> int:
    try:
        return os.open(name, _WALK, dir_fd=above)
    except FileNotFoundError:
        if not create:
            raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
        return os.open(name, _WALK, dir_fd=above)
    except NotADirectoryError as error:
        _refuse_link(name, above, path, error)
        raise


@contextlib.contextmanager
def directory(path: Path, *, create: bool = False) -> Generator[int, None, None]:
    """A descriptor of the directory, good for `dir_fd` only.  `create` makes it and its parents.

    Raises `Denied` where a link was put in, `OSError`.
    """
    descriptor = os.open("/", _WALK)
    try:
        for name in path.parts[1:]:
            below = _step(name, descriptor, path, create)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def regular(name: str, above: int, path: Path) -> os.stat_result:
    """The status of the file `name` in the directory `above`; `path` is for the message.

    Raises `NotRegular`, `Denied`, `OSError`.
    """
    status = os.stat(name, dir_fd=above, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        _refuse_link(name, above, path)
    if not stat.S_ISREG(status.st_mode):
        raise NotRegular(0, f"is {kind(status.st_mode)}, not a file")
    return status


@contextlib.contextmanager
def reading(path: Path) -> Generator[int, None, None]:
    """A descriptor of the regular file, for reading; never waits for a writer or a device.

    Raises `NotRegular`, `Denied`, `OSError`.
    """
    if path == Path("/"):
        raise NotRegular(0, "is a directory, not a file")
    with directory(path.parent) as above:
        # Looking first: merely opening a device can act on it.
        regular(path.name, above, path)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(path.name, flags, dir_fd=above)
        except OSError as error:
            _refuse_link(path.name, above, path, error)
            raise
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise NotRegular(0, f"is {kind(mode)}, not a file")
        yield descriptor
    finally:
        os.close(descriptor)


def same(before: os.stat_result, after: os.stat_result) -> bool:
    """Is this the file it was, unchanged as far as its status tells?"""
    return (before.st_dev, before.st_ino, before.st_size, before.st_mtime_ns) == (
        after.st_dev,
        after.st_ino,
        after.st_size,
        after.st_mtime_ns,
    )


def replace(path: Path, data: bytes, *, expected: os.stat_result | None = None) -> bool:
    """Puts `data` at `path` in one step; the old file is whole until the new one is on the disk.

    Parents are made; mode and, where permitted, owner of an existing file are kept.  Returns whether
    the file is new.  `expected` is the status of the file the data was made from: raises `Changed` if
    it is another by now.  Raises `NotRegular`, `Denied`, `OSError`; nothing is left behind then.
    """
    if path == Path("/"):
        raise NotRegular(0, "is a directory, not a file")
    with directory(path.parent, create=expected is None) as above:
        try:
            old = regular(path.name, above, path)
        except FileNotFoundError:
            old = None
        if expected is not None and (old is None or not same(expected, old)):
            raise Changed(0, "was changed by somebody else in the meantime")
        if old is not None and not os.access(path.name, os.W_OK, dir_fd=above, effective_ids=True):
            # A rename asks the directory alone; the file's own answer counts too.
            raise PermissionError(errno.EACCES, "is write-protected")
        part = f".{secrets.token_hex(12)}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(part, flags, 0o666 if old is None else 0o600, dir_fd=above)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if old is not None:
                    with contextlib.suppress(PermissionError):
                        os.fchown(descriptor, old.st_uid, old.st_gid)
                    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            if expected is not None and not same(expected, regular(path.name, above, path)):
                raise Changed(0, "was changed by somebody else in the meantime")
            os.replace(part, path.name, src_dir_fd=above, dst_dir_fd=above)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=above)
            raise
        flush(above)
        return old is None


def flush(above: int) -> None:
    """Puts the rename itself on the disk, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
