"""A file on its way to its final name: written beside its target, hashed as it grows, published in one step.

All of it blocks on the disk: call it from a worker thread.  Decides nothing about who may write where.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from chappie_agents.resolved import directory, flush, reading, regular
from chappie_bridge.wire.errors import PathExists
from chappie_bridge.wire.link import CHUNK_BYTES

BLOCK = CHUNK_BYTES
"""Bytes that are left out of the file, as a hole, when all of them are zero."""

WRITE_BACK = 8 * 1024 * 1024
"""Bytes after which the system is told to begin with the disk; left alone, it leaves most for the end."""

_ZEROS = bytes(BLOCK)
_READ = 1024 * 1024
_NAME_MAX = 255
_RENAME_NOREPLACE = 1
_SYNC_FILE_RANGE_WRITE = 2
_NO_LINKS = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EINVAL}
)
"""How file systems without hard links refuse one."""


class Part:
    """An open part.  `position` bytes are written, and `digest` is theirs."""

    def __init__(self, path: Path, name: str, descriptor: int) -> None:
        self.path, self.name = path, name
        self.position = 0
        self._descriptor = descriptor
        self._hash = hashlib.sha256()
        self._under_way = 0  # bytes that the system was told to write

    @classmethod
    def create(cls, path: Path, *, parents: bool) -> "Part":
        """Beside `path`, under a random name.  Raises `OSError`, `Denied`."""
        name = _part_name(path.name)
        with directory(path.parent, create=parents) as above:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return cls(path, name, os.open(name, flags, 0o600, dir_fd=above))

    @classmethod
    def reopen(cls, path: Path, name: str) -> "Part":
        """One that another process left: all that it holds is hashed again.  Raises `OSError`, `Denied`."""
        with directory(path.parent) as above:
            regular(name, above, path.with_name(name))
            part = cls(path, name, os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above))
        try:
            while data := os.pread(part._descriptor, _READ, part.position):
                part._hash.update(data)
                part.position += len(data)
            part._under_way = part.position
        except BaseException:
            part.close()
            raise
        return part

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def write(self, chunks: Sequence[bytes]) -> None:
        """Append.  Raises `OSError`; then what is in the file beyond `position` means nothing."""
        run: list[bytes] = []
        start = end = self.position
        for chunk in chunks:
            self._hash.update(chunk)
            if chunk == _ZEROS[: len(chunk)]:
                self._put(run, start)
                run, start = [], end + len(chunk)
            else:
                run.append(chunk)
            end += len(chunk)
        self._put(run, start)
        self.position = end
        if end - self._under_way >= WRITE_BACK:
            _begin_writing(self._descriptor, self._under_way, end - self._under_way)
            self._under_way = end

    def _put(self, run: list[bytes], at: int) -> None:
        while run:
            done = os.pwritev(self._descriptor, run, at)
            at += done
            while run and done >= len(run[0]):
                done -= len(run.pop(0))
            if run and done:
                run[0] = run[0][done:]

    def settle(self) -> None:
        """All of it, holes included, on the disk."""
        os.ftruncate(self._descriptor, self.position)
        os.fsync(self._descriptor)

    def publish(self, *, overwrite: bool) -> None:
        """Give it its final name, in one step; without `overwrite` only where nothing has that name.

        Mode and, where permitted, owner of a file that is replaced are kept.
        Raises `PathExists`, `NotRegular`, `Denied`, `OSError`; the part is still there then.
        """
        with directory(self.path.parent) as above:
            old = target(above, self.path, overwrite=overwrite)
            if old is None:
                os.fchmod(self._descriptor, 0o666 & ~_umask())
            else:
                with contextlib.suppress(PermissionError):
                    os.fchown(self._descriptor, old.st_uid, old.st_gid)
                os.fchmod(self._descriptor, stat.S_IMODE(old.st_mode))
            if overwrite:
                os.replace(self.name, self.path.name, src_dir_fd=above, dst_dir_fd=above)
            else:
                _rename_new(self.name, self.path.name, above)
            flush(above)

    def remove(self) -> None:
        """Close it and take it away.  Never fails: what cannot be removed is left."""
        self.close()
        remove(self.path, self.name)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def target(above: int, path: Path, *, overwrite: bool) -> os.stat_result | None:
    """The file that has the name of `path` in the directory `above`, if it may be replaced.

    Raises `PathExists`, `NotRegular`, `Denied`, `OSError`.
    """
    try:
        old = regular(path.name, above, path)
    except FileNotFoundError:
        return None
    if not overwrite:
        raise PathExists(f"{str(path)!r} exists. Pass `overwrite:true` to replace it.")
    if not os.access(path.name, os.W_OK, dir_fd=above, effective_ids=True):
        # A rename asks the directory alone; the file's own answer counts too.
        raise PermissionError(errno.EACCES, "is write-protected")
    return old


def remove(path: Path, name: str) -> None:
    """Take the part `name` of `path` away.  Never fails."""
    with contextlib.suppress(OSError, PermissionError), directory(path.parent) as above:
        os.unlink(name, dir_fd=above)


def published(path: Path, name: str) -> bool:
    """Did a process that died while publishing the part `name` come to give it its final name?  Then the
    part's own name is removed as well.  Raises `OSError`, `Denied`."""
    with directory(path.parent) as above:
        try:
            part = os.stat(name, dir_fd=above, follow_symlinks=False)
        except FileNotFoundError:
            return True
        try:
            final = os.stat(path.name, dir_fd=above, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if (part.st_dev, part.st_ino) != (final.st_dev, final.st_ino):
            return False
        os.unlink(name, dir_fd=above)
        return True


def digest(path: Path) -> str:
    """The SHA-256 of a file.  Raises `NotRegular`, `Denied`, `OSError`."""
    hashed = hashlib.sha256()
    with reading(path) as descriptor:
        offset = 0
        while data := os.pread(descriptor, _READ, offset):
            hashed.update(data)
            offset += len(data)
    return hashed.hexdigest()


def _part_name(name: str) -> str:
    """Hidden, random, and no longer than a name may be."""
    end = f".{secrets.token_hex(6)}.part"
    head = os.fsencode(name)[: _NAME_MAX - len(end) - 1]
    return f".{head.decode('utf-8', 'ignore')}{end}"


def _rename_new(part: str, name: str, above: int) -> None:
    """As a rename that never replaces: by a second link, by the system's own call, or, where a file system
    has neither, by reserving the name first.  Raises `FileExistsError`, `OSError`."""
    try:
        os.link(part, name, src_dir_fd=above, dst_dir_fd=above, follow_symlinks=False)
    except FileExistsError:
        raise PathExists from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        os.unlink(part, dir_fd=above)
        return
    if _renameat2(part, name, above):
        return
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=above))
    except FileExistsError:
        raise PathExists from None
    try:
        os.replace(part, name, src_dir_fd=above, dst_dir_fd=above)
    except OSError:
        os.unlink(name, dir_fd=above)
        raise


def _begin_writing(descriptor: int, at: int, length: int) -> None:
    """Without waiting for it.  No promise: `settle` finds out what could not be written."""
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call(descriptor, ctypes.c_int64(at), ctypes.c_int64(length), _SYNC_FILE_RANGE_WRITE)


def _renameat2(part: str, name: str, above: int) -> bool:
    """False: this system or file system has no such call."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(above, os.fsencode(part), above, os.fsencode(name), _RENAME_NOREPLACE) == 0:
        return True
    number = ctypes.get_errno()
    if number == errno.EEXIST:
        raise PathExists
    if number in _NO_LINKS:
        return False
    raise OSError(number, os.strerror(number))


def _umask() -> int:
    """The process's own; Linux tells it without changing it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077
