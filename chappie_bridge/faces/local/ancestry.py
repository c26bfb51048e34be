"""The processes above this one.  Reads the system's table of processes and nothing else."""

import os
import subprocess
from pathlib import Path

from chappie_bridge.local_tools.which import Process

MOST = 32
"""Ancestors looked at."""


def ancestors() -> tuple[Process, ...]:
    """The parent first, without the first process of the system.  Blocks; empty where nothing can be read."""
    found: list[Process] = []
    pid = os.getppid()
    while pid > 1 and len(found) < MOST:
        known = _look(pid)
        if known is None:
            break
        name, above = known
        found.append(Process(pid, name))
        pid = above
    return tuple(found)


def _look(pid: int) -> tuple[str, int] | None:
    """Its program and its parent."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        head, _, rest = text.rpartition(")")
        return head.partition("(")[2], int(rest.split()[1])
    except (OSError, ValueError, IndexError):
        return _ask_ps(pid)


def _ask_ps(pid: int) -> tuple[str, int] | None:
    """Where there is no /proc."""
    try:
        done = subprocess.run(
            ["/bin/ps", "-o", "ppid=,comm=", "-p", str(pid)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=2,
            check=True,
        )
        above, name = done.stdout.split(None, 1)
        return Path(name.strip()).name, int(above)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
