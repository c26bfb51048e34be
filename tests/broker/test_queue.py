"""The fair queue of one session."""

import pytest
from chappie_broker.queue import FairQueue
from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge.wire.errors import Overloaded


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=80))
def test_each_caller_is_served_in_its_own_order(steps: list[tuple[str, bool]]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(32, 8)
    pushed = 0
    served: list[tuple[str, int]] = []
    for caller, push in steps:
        if push:
            try:
                queue.push(caller, (caller, pushed))
                pushed += 1
            except Overloaded:
                continue
        elif (item := queue.pop()) is not None:
            served.append(item)
    while (item := queue.pop()) is not None:
        served.append(item)
    assert len(served) == pushed
    assert len(queue) == 0
    for caller in "abcd":
        numbers = [number for who, number in served if who == caller]
        assert numbers == sorted(numbers)


def test_a_busy_caller_does_not_starve_another() -> None:
    queue: FairQueue[str] = FairQueue(32, 8)
    for n in range(8):
        queue.push("busy", f"busy{n}")
    queue.push("quiet", "quiet0")
    assert [queue.pop(), queue.pop()] == ["busy0", "quiet0"]


def test_the_iteration_is_the_order_of_service() -> None:
    queue: FairQueue[str] = FairQueue(32, 8)
    for caller, item in (("a", "a0"), ("a", "a1"), ("b", "b0"), ("c", "c0"), ("b", "b1")):
        queue.push(caller, item)
    promised = list(queue)
    assert queue.position("b1") == promised.index("b1") + 1
    assert [queue.pop() for _ in range(5)] == promised


def test_both_bounds_answer_overloaded() -> None:
    """S22"""
    queue: FairQueue[int] = FairQueue(10, 8)
    for n in range(8):
        queue.push("a", n)
    with pytest.raises(Overloaded):
        queue.push("a", 8)
    queue.push("b", 0)
    queue.push("c", 0)
    with pytest.raises(Overloaded):
        queue.push("d", 0)


def test_an_item_leaves_from_wherever_it_stands() -> None:
    queue: FairQueue[str] = FairQueue(32, 8)
    for item in ("x", "y", "z"):
        queue.push("a", item)
    assert queue.remove("a", "y")
    assert not queue.remove("a", "y")
    assert list(queue) == ["x", "z"]
    assert queue.position("y") == 0
