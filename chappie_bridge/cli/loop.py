"""The event loop of what runs for long: uvloop where it is installed.  Short commands do without."""

import contextlib
import ctypes
import gc
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

import anyio

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's `mallopt`."""

KEPT = 16 * 1024 * 1024
"""Bytes of freed memory that a process may keep for what comes next."""

WALK_SHARE = 1000
"""So many times as long as a walk over all objects took, none follows."""


def run(work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """`anyio.run` on the fastest loop that there is."""
    _keep_memory()
    thresholds = gc.get_threshold()
    walks = _Walks(thresholds)
    gc.callbacks.append(walks)
    try:
        anyio.run(work, *arguments, backend_options={"use_uvloop": find_spec("uvloop") is not None})
    finally:
        gc.callbacks.remove(walks)
        gc.set_threshold(*thresholds)


def _keep_memory() -> None:
    """Chunks of files come and go all the time.  glibc gives such blocks back to the system and asks for
    them again, and each of their pages is cleared anew: a quarter of the CPU time of a transfer.  Other
    libraries have no such setting."""
    with contextlib.suppress(OSError, AttributeError):
        tune = ctypes.CDLL(None).mallopt
        tune(_TRIM_THRESHOLD, KEPT)
        tune(_MMAP_THRESHOLD, KEPT // 4)


class _Walks:
    """Bounds the share of time in which the collector walks everything there is.

    By itself it does so after each growth by a quarter: while thousands of requests come to wait, most of the
    time, and each walk stops the loop for longer.  What dies young, which is nearly all, it finds as ever."""

    def __init__(self, thresholds: tuple[int, int, int]) -> None:
        self._often, self._never = thresholds, (*thresholds[:2], 1 << 30)
        self._began = self._next = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if info["generation"] < 2:
            if now >= self._next > 0:
                self._next = 0.0
                gc.set_threshold(*self._often)
        elif phase == "start":
            self._began = now
        else:
            self._next = now + WALK_SHARE * (now - self._began)
            gc.set_threshold(*self._never)


def settled() -> None:
    """What was imported stays for good: from now on the collector does not walk it.  A twelfth of the CPU
    time of a `call`, and its longest pauses."""
    gc.collect()
    gc.freeze()
