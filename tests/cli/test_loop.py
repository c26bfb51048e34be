"""How often the collector may stop the loop for all that there is."""

import gc

import pytest

from chappie_bridge.cli import loop
from chappie_bridge.cli.loop import WALK_SHARE

OFTEN = (700, 10, 10)


@pytest.fixture
def thresholds(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """What is set, instead of setting it."""
    told: list[tuple[int, ...]] = []
    monkeypatch.setattr(gc, "set_threshold", lambda *given: told.append(given))
    return told


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def test_after_a_walk_over_everything_none_follows_for_as_long_as_it_was_dear(
    thresholds: list[tuple[int, ...]], clock: list[float]
) -> None:
    walks = loop._Walks(OFTEN)
    walks("stop", {"generation": 0})
    assert thresholds == []
    walks("start", {"generation": 2})
    clock[0] += 0.5
    walks("stop", {"generation": 2})
    assert [given[:2] for given in thresholds] == [OFTEN[:2]]
    assert thresholds[0][2] > 1_000_000
    clock[0] += 0.5 * WALK_SHARE - 1
    walks("start", {"generation": 1})
    assert len(thresholds) == 1
    clock[0] += 2
    walks("start", {"generation": 0})
    walks("stop", {"generation": 0})
    assert thresholds[1:] == [OFTEN]


def test_what_was_set_before_is_set_again_when_the_loop_ends() -> None:
    before, callbacks = gc.get_threshold(), list(gc.callbacks)

    async def work() -> None:
        assert len(gc.callbacks) == len(callbacks) + 1
        gc.collect()
        assert gc.get_threshold() != before

    loop.run(work)
    assert (gc.get_threshold(), gc.callbacks) == (before, callbacks)
