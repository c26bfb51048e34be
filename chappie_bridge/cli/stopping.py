"""How a process of ours ends: on a signal, in order, and within a bound.  Knows nothing of what it runs."""

import logging
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

log = logging.getLogger("chappie.end")

HURRY_AFTER = 1.0
"""Seconds after which programs that tools started and that ignore TERM are killed."""


async def on_signal(
    life: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Cancel `life` on Ctrl-C, TERM or the end of the terminal; a second signal ends the process at once."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for number in signals:
            if life.cancel_called:
                os._exit(128 + number)
            log.info("%s: stopping", signal.Signals(number).name)
            life.cancel()


def hurry() -> None:
    """Called when a process that runs tools begins to end: what still runs a second later is killed.

    Tools give their programs two seconds between TERM and KILL, more than the person at Ctrl-C has."""

    def kill() -> None:
        for child in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)

    timer = threading.Timer(HURRY_AFTER, kill)
    timer.daemon = True
    timer.start()


def _children() -> list[int]:
    """Own children that lead a process group; on systems without /proc none is known."""
    found: list[int] = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = status.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            pid, parent, group = int(status.parent.name), int(fields[1]), int(fields[2])
            if parent == os.getpid() and group == pid:
                found.append(pid)
    return found
