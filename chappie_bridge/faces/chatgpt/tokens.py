"""The tokenizer of the models behind ChatGPT (o200k_base), loaded when it is first needed, and the one
place that drives `codec.trim` between other work.  Counts only text that is about to be sent."""

import importlib
from collections.abc import Callable, Sequence

import anyio
import anyio.lowlevel
import anyio.to_thread

from chappie_bridge.codec.parts import Part, Trimming
from chappie_bridge.codec.tokens import Counter, estimate
from chappie_bridge.codec.trim import LIMIT, fits, trim_in_steps

ENCODING = "o200k_base"


def load_counter() -> Counter:
    """The exact counter of the `tokens` extra, or `estimate` where it is not installed.

    Takes about 0.3 s and 64 MiB once, most of it with the interpreter's lock held (docs/adr/0004).
    """
    try:
        batch_count: Callable[..., list[int]] = importlib.import_module("toktok").batch_count
    except ImportError:
        return estimate

    def count(text: str) -> int:
        return batch_count([text], ENCODING, threads=1)[0]

    count("")
    return count


class Tokenizer:
    """One per process.  Costs nothing until a response is long enough to be counted."""

    def __init__(self, load: Callable[[], Counter] = load_counter) -> None:
        self._load = load
        self._counter: Counter | None = None
        self._loading = anyio.Lock()

    async def counter(self) -> Counter:
        """The counter; loaded in a thread by the first who asks."""
        if self._counter is None:
            async with self._loading:
                if self._counter is None:
                    self._counter = await anyio.to_thread.run_sync(self._load)
        return self._counter

    async def trim(self, parts: Sequence[Part], limit: int = LIMIT) -> Trimming:
        """`codec.trim.trim`, giving way to others every few milliseconds."""
        if fits(parts, limit):
            return Trimming(tuple(parts), ())
        steps = trim_in_steps(parts, await self.counter(), limit)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                trimming: Trimming = stop.value
                return trimming
            await anyio.lowlevel.checkpoint()
