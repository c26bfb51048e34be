"""The event loop of what runs for long: uvloop where it is installed.  Short commands do without."""

import contextlib
import ctypes
import gc
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

import anyio

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's `mallopt`."""

KEPT = 16 * 1024 * 1024
"""Bytes of freed memory that a process may keep for what comes next."""


def run(work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """`anyio.run` on the fastest loop that there is."""
    _keep_memory()
    anyio.run(work, *arguments, backend_options={"use_uvloop": find_spec("uvloop") is not None})


def _keep_memory() -> None:
    """Chunks of files come and go all the time.  glibc gives such blocks back to the system and asks for
    them again, and each of their pages is cleared anew: a quarter of the CPU time of a transfer.  Other
    libraries have no such setting."""
    with contextlib.suppress(OSError, AttributeError):
        tune = ctypes.CDLL(None).mallopt
        tune(_TRIM_THRESHOLD, KEPT)
        tune(_MMAP_THRESHOLD, KEPT // 4)


def settled() -> None:
    """What was imported stays for good: from now on the collector does not walk it.  A twelfth of the CPU
    time of a `call`, and its longest pauses."""
    gc.collect()
    gc.freeze()
