"""One-time codes of the owner: pairing a device, opening the dashboard, consenting to an app.  In memory.

A code is told once, works once, for one purpose, and dies after its lifetime or with the process.
"""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable

from chappie_bridge.wire.errors import Forbidden, Overloaded
from chappie_bridge.wire.owner import Purpose

LIFETIME = 600.0
"""Seconds."""

MAX_CODES = 64
"""Codes that wait at once, all purposes together; the oldest goes first."""

GUESSES = 10
"""Wrong codes of one address within `WINDOW`; then it waits."""

ALL_GUESSES = 1000
"""Wrong codes of all addresses within `WINDOW`."""

WINDOW = 60.0
"""Seconds."""

MAX_ADDRESSES = 4096

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's: nothing that is read as something else
_READ = str.maketrans("OIL", "011", "- \t\r\n")

_SYMBOLS = 16
"""80 bits: ten lifetimes of guesses by all addresses find one with less than 1 in 10^17."""


class OneTimeCodes:
    """`clock` gives seconds that only grow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._codes: OrderedDict[tuple[Purpose, bytes], tuple[float, str]] = OrderedDict()
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._all: tuple[int, float] = (0, 0.0)

    def make(self, purpose: Purpose, *, note: str = "") -> str:
        """A new code, in groups of four.  `note` is told to whoever redeems it."""
        symbols = "".join(secrets.choice(_ALPHABET) for _ in range(_SYMBOLS))
        self._codes[purpose, _digest(symbols)] = (self._clock() + LIFETIME, note)
        while len(self._codes) > MAX_CODES:
            self._codes.popitem(last=False)
        return "-".join(symbols[at : at + 4] for at in range(0, _SYMBOLS, 4))

    def redeem(self, purpose: Purpose, code: str, *, by: str) -> str:
        """Use a code up and give its note; case, spaces and dashes do not matter.  `by` is the address that
        sent it.

        :raises Forbidden: it was never made, is used up, too old, or for another purpose.
        :raises Overloaded: too many wrong ones came before it."""
        now = self._clock()
        count, since = self._recent(self._wrong.get(by), now)
        everybody, beginning = self._recent(self._all, now)
        if count >= GUESSES or everybody >= ALL_GUESSES:
            raise Overloaded("Too many wrong codes; wait a minute.")
        ends, note = self._codes.pop((purpose, _digest(code.upper().translate(_READ))), (now, ""))
        if now < ends:
            return note
        self._all = (everybody + 1, beginning)
        self._wrong[by] = (count + 1, since)
        self._wrong.move_to_end(by)
        if len(self._wrong) > MAX_ADDRESSES:
            self._wrong.popitem(last=False)
        raise Forbidden("This code is not valid, or no longer.", hint="Each works once, for ten minutes.")

    @staticmethod
    def _recent(noted: tuple[int, float] | None, now: float) -> tuple[int, float]:
        return noted if noted is not None and now - noted[1] < WINDOW else (0, now)


def _digest(symbols: str) -> bytes:
    """Looking a digest up tells nothing about the code by its time."""
    return hashlib.sha256(symbols.encode("utf-8", "surrogatepass")).digest()
