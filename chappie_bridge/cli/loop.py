"""The event loop of what runs for long: uvloop where it is installed.  Short commands do without."""

import gc
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

import anyio


def run(work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """`anyio.run` on the fastest loop that there is."""
    anyio.run(work, *arguments, backend_options={"use_uvloop": find_spec("uvloop") is not None})


def settled() -> None:
    """What was imported stays for good: from now on the collector does not walk it.  A twelfth of the CPU
    time of a `call`, and its longest pauses."""
    gc.collect()
    gc.freeze()
