"""The seed of a test with real processes."""

import os
from random import Random

import pytest


@pytest.fixture
def seed() -> int:
    """Another one each time; it is printed, and CHAPPIE_SEED asks for one again."""
    chosen = int(os.environ.get("CHAPPIE_SEED") or Random().getrandbits(32))
    print(f"CHAPPIE_SEED={chosen}")
    return chosen
