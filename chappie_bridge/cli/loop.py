"""The event loop of what runs for long: uvloop where it is installed.  Short commands do without."""

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

import anyio


def run(work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """`anyio.run` on the fastest loop that there is."""
    anyio.run(work, *arguments, backend_options={"use_uvloop": find_spec("uvloop") is not None})
