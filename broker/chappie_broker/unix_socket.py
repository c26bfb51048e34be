"""The socket file of the local link: made for this user alone, a dead one replaced, ours removed."""

import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from chappie_bridge.wire.errors import PathExists


@contextmanager
def listening_at(path: Path) -> Generator[socket.socket, None, None]:
    """A listening socket at `path` that only this user can open; its file goes when it closes.

    Two brokers that start at the same moment are kept apart by the lock on their state directory.
    :raises PathExists: when somebody listens there, it is no socket, or the path is too long for one."""
    _clear(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        try:
            end.bind(str(path))
        except OSError as error:
            raise PathExists(f"Cannot listen on {path}: {error.strerror or error}") from error
        path.chmod(0o600)  # nobody could connect before: it does not listen yet
        made = path.stat().st_ino
        try:
            end.listen(128)
            yield end
        finally:
            if path.exists() and path.stat().st_ino == made:
                path.unlink()


def _clear(path: Path) -> None:
    """Remove a socket file that nobody listens on.  :raises PathExists: when it is alive or no socket."""
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise PathExists(f"{path} is no socket.", hint="Remove it, or choose another state directory.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # busy, but there
    raise PathExists(f"A broker already listens on {path}.", hint="Use it, or stop it first.")
