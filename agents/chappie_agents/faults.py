"""What the system says of a file, as an error of the closed list.  Opens nothing."""

import contextlib
import errno
import os
from collections.abc import Generator
from pathlib import Path

from chappie_agents.resolved import NotRegular
from chappie_agents.tools.tool import shown
from chappie_bridge.wire.errors import (
    BadArguments,
    BridgeError,
    Denied,
    DiskFull,
    Internal,
    NotAFile,
    PathExists,
    PathMissing,
)

_KINDS: dict[int, type[BridgeError]] = {
    errno.ENOENT: PathMissing,
    errno.EEXIST: PathExists,
    errno.ENOTDIR: NotAFile,
    errno.EISDIR: NotAFile,
    errno.EACCES: Denied,
    errno.EPERM: Denied,
    errno.EROFS: Denied,
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
    errno.EFBIG: DiskFull,
    errno.ENAMETOOLONG: BadArguments,
    errno.ELOOP: BadArguments,
    errno.EINVAL: BadArguments,
    errno.EILSEQ: BadArguments,
}

ARCHIVE = "Make an archive of a directory first, for instance with `tar`."


def fault(error: OSError, path: Path | str) -> BridgeError:
    """The error to tell for what happened at `path`."""
    name = shown(path)
    if isinstance(error, NotRegular):
        directory = "directory" in (error.strerror or "")
        return NotAFile(f"{name} {error.strerror}.", hint=ARCHIVE if directory else None)
    kind = _KINDS.get(error.errno or 0, Internal)
    return kind(f"{name}: {error.strerror or os.strerror(error.errno or 0)}")


@contextlib.contextmanager
def told_of(path: Path | str) -> Generator[None, None, None]:
    """:raises BridgeError: what an `OSError` in here becomes."""
    try:
        yield
    except OSError as error:
        raise fault(error, path) from error
