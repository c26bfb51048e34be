"""What the kernel knows of a process: memory now and at its highest.  Linux only."""

import contextlib
import os
from pathlib import Path

MIB = 2**20


def tree(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text(encoding="ascii").split():
            with contextlib.suppress(FileNotFoundError):
                found += tree(int(child))
    return found


def resident(pid: int) -> float:
    """Bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def forget_peak(pid: int) -> None:
    """From now on `peak` counts anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def peak(pid: int) -> float:
    """Bytes of memory at its highest since the start, or since `forget_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not tell")
