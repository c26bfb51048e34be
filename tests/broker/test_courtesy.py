"""Files give way to calls."""

import anyio
import anyio.lowlevel
import pytest
from chappie_broker.courtesy import AFTER, PACE, Courtesy

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await anyio.lowlevel.checkpoint()


async def test_without_calls_no_turn_is_waited_for() -> None:
    clock = Clock()
    courtesy = Courtesy(lambda: clock.now, clock.sleep)
    for _ in range(100):
        await courtesy.turn()
    assert clock.now == 0
    courtesy.called()
    clock.now = AFTER
    await courtesy.turn()
    await courtesy.turn()
    assert clock.now == AFTER


async def test_while_calls_come_turns_are_a_pace_apart_however_many_files_move() -> None:
    clock = Clock()
    courtesy = Courtesy(lambda: clock.now, clock.sleep)
    courtesy.called()
    took: list[float] = []
    for _ in range(5):
        await courtesy.turn()
        took.append(clock.now)
    assert took == pytest.approx([PACE * number for number in range(5)])


async def test_turns_nobody_took_are_not_saved_up() -> None:
    clock = Clock()
    courtesy = Courtesy(lambda: clock.now, clock.sleep)
    courtesy.called()
    await courtesy.turn()
    clock.now = 10 * PACE
    courtesy.called()
    await courtesy.turn()
    await courtesy.turn()
    assert clock.now == pytest.approx(11 * PACE)
