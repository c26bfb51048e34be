"""One session's queue: first in, first out within a caller, round robin between callers.  Pure."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from chappie_bridge.wire.errors import Overloaded

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Bounded by `limit` items, `per_caller` of one caller."""

    def __init__(self, limit: int, per_caller: int) -> None:
        self._limit, self._per_caller = limit, per_caller
        self._lines: OrderedDict[str, deque[Item]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, caller: str, item: Item) -> None:
        """:raises Overloaded: when the session's or the caller's bound is reached."""
        line = self._lines.get(caller)
        if self._size >= self._limit:
            raise Overloaded(f"{self._size} requests wait for this session already.")
        if line is not None and len(line) >= self._per_caller:
            raise Overloaded(f"{len(line)} of your requests wait for this session already.")
        if line is None:
            line = self._lines[caller] = deque()
        line.append(item)
        self._size += 1

    def pop(self) -> Item | None:
        """The next item; its caller goes to the end of the round."""
        if not self._lines:
            return None
        caller, line = next(iter(self._lines.items()))
        item = line.popleft()
        self._size -= 1
        if line:
            self._lines.move_to_end(caller)
        else:
            del self._lines[caller]
        return item

    def remove(self, caller: str, item: Item) -> bool:
        """Take one item out wherever it stands; False when it is not there."""
        line = self._lines.get(caller)
        if line is None or item not in line:
            return False
        line.remove(item)
        self._size -= 1
        if not line:
            del self._lines[caller]
        return True

    def __iter__(self) -> Iterator[Item]:
        """In the order in which they will be served if nothing else comes."""
        lines = [iter(line) for line in self._lines.values()]
        while lines:
            left = []
            for line in lines:
                for item in line:
                    yield item
                    left.append(line)
                    break
            lines = left

    def position(self, item: Item) -> int:
        """Counting from 1; 0 when it is not there."""
        for place, other in enumerate(self, start=1):
            if other is item:
                return place
        return 0

    def clear(self) -> list[Item]:
        items = list(self)
        self._lines.clear()
        self._size = 0
        return items
