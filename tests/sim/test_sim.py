"""Five hundred histories of the whole bridge below the SDK, and that a history is a function of its seed."""

import pytest

from tests.sim.shrink import described, shrink
from tests.sim.world import plan_of, play

SEEDS = 500
BLOCK = 25


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_nothing_is_lost_repeated_or_misplaced(first: int) -> None:
    """B33 B35 B38 B40 B41 B42 B45 B46 B47 B48 B54 B86 B88 S22:"""
    for seed in range(first, first + BLOCK):
        failure, _ = play(seed)
        assert failure is None, "\n" + described(*shrink(failure))


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_a_seed_is_one_history(seed: int) -> None:
    assert len(plan_of(seed)) >= 60
    assert play(seed) == play(seed)
