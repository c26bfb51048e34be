"""How many requests wait in a broker at once.  Keeps none of them."""

from typing import Self

from chappie_bridge.wire.errors import Overloaded


class Parking:
    """`with parking():` around a wait; cheaper than a generator on the way of each call."""

    __slots__ = ("_limit", "waiting")

    def __init__(self, limit: int) -> None:
        self._limit, self.waiting = limit, 0

    def __call__(self) -> Self:
        """:raises Overloaded: as many wait as may."""
        if self.waiting >= self._limit:
            raise Overloaded("Too many requests wait in this broker.")
        return self

    def __enter__(self) -> None:
        self.waiting += 1

    def __exit__(self, *_: object) -> None:
        self.waiting -= 1
