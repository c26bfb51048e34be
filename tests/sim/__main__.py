"""`python -m tests.sim --seeds N`: many histories over all cores; a failing one is made short and printed."""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator

from .shrink import chosen, described, shrink
from .world import STEPS, Failure, plan_of, play, template

BLOCK = 50
BLOCKS_OF_A_WORKER = 4
"""Killed tasks stay in memory, for their `finally` must not run: half a MiB a history."""
PATIENCE = 600.0
"""Seconds without the end of any block after which a worker is dead."""


def repeatable(module: str) -> None:
    """Start over with a fixed order of sets of text: it belongs to a history, too."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])  # noqa: S606 - no shell


def block(seeds: range) -> list[Failure]:
    """The failures among some seeds."""
    failures = (play(seed)[0] for seed in seeds)
    return [failure for failure in failures if failure is not None]


def blocks(seeds: range) -> Iterator[range]:
    for start in range(0, len(seeds), BLOCK):
        yield seeds[start : start + BLOCK]


def search(seeds: range, jobs: int) -> tuple[list[Failure], int]:
    """The failures among many seeds, over some processes, and how many were looked at: it ends early when
    there are many failures.  Its memory does not grow with their number.

    :raises multiprocessing.TimeoutError: a worker is dead."""
    failures, looked_at = list[Failure](), 0
    play(0)  # what is made once is made before the processes part
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=BLOCKS_OF_A_WORKER) as pool:
        done = pool.imap_unordered(block, blocks(seeds))
        while looked_at < len(seeds) and len(failures) <= 10:
            failures += done.next(PATIENCE)
            looked_at = min(looked_at + BLOCK, len(seeds))
    return failures, looked_at


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="print one history")
    parser.add_argument("--keep", help="with --seed: numbers of the steps that happen")
    given = parser.parse_args()
    if given.seed is not None:
        plan = plan_of(given.seed)
        if given.keep is not None:
            plan = chosen(plan, [int(each) for each in given.keep.split(",") if each])
        failure, trace = play(given.seed, plan)
        print("\n".join(trace))
        print("VIOLATION  " + failure.message if failure else "no promise was broken")
        return 1 if failure else 0
    template()
    started = time.perf_counter()
    failures, seeds = search(range(given.first, given.first + given.seeds), given.jobs)
    took = time.perf_counter() - started
    if failures:
        print(described(*shrink(min(failures, key=lambda each: each.seed))))
        print("failing seeds: " + " ".join(str(each.seed) for each in failures[:20]))
    what = f"{seeds} seeds from {given.first}, {STEPS} steps each"
    rate = f"{seeds / took:.1f} seeds/s, {seeds * STEPS / took:.0f} steps/s"
    print(f"{what}: {len(failures)} violations, {took:.0f} s, {rate}")
    return 1 if failures else 0


if __name__ == "__main__":
    repeatable("tests.sim")
    sys.exit(main())
