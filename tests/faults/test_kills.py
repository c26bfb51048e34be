"""`kill -9` and SIGSTOP of broker, agents and client at random moments under load: nothing lost or twice."""

import time
from pathlib import Path
from random import Random

import pytest

from .lengths import LONG
from .machine import machine


def test_nothing_is_lost_or_repeated_by_kills_under_load(tmp_path: Path, seed: int) -> None:
    """B48 B88: each accepted call is delivered or reported, none ran twice, none in another conversation."""
    random = Random(seed)
    with machine(tmp_path, seed) as here:
        here.start_client()
        for _ in range(40 if LONG else 10):
            time.sleep(random.uniform(0.05, 0.8))
            victim = random.choice(("broker", "client", *here.agents))
            print("kill", victim)
            here.kill(victim)
            here.start(victim)
        here.finish()
        account, effects = here.account(), here.effects()
        print(len(account.asked), "asked,", len(effects), "ran")
        assert account.faults(effects) == []
        assert len(effects) > 10


def test_who_stands_still_for_a_moment_loses_and_repeats_nothing(tmp_path: Path, seed: int) -> None:
    """B31: broker and agents under load, for less than it takes to count as dead."""
    random = Random(seed)
    with machine(tmp_path, seed) as here:
        here.start_client()
        for _ in range(12 if LONG else 4):
            time.sleep(random.uniform(0.05, 0.8))
            victim = random.choice(("broker", *here.agents))
            print("stop", victim)
            here.stopped(victim, random.uniform(0.2, 2.0))
        here.finish()
        assert here.account().faults(here.effects()) == []


@pytest.mark.skipif(not LONG, reason="takes a minute for each: `make test-faults` runs it")
@pytest.mark.parametrize("victim", ["broker", "agent0"])
def test_a_half_open_link_is_noticed_and_comes_back(tmp_path: Path, seed: int, victim: str) -> None:
    """B36 B31: silent for longer than two pings; its sockets are open all the time."""
    with machine(tmp_path, seed) as here:
        here.start_client()
        time.sleep(1.0)
        here.stopped(victim, 25.0)
        time.sleep(1.0)
        here.finish()
        account, effects = here.account(), here.effects()
        assert account.faults(effects) == []
        assert {token.partition("-")[0] for token in effects} == {"c0", "c1", "c2", "c3"}
