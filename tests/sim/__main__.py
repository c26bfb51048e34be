"""`python -m tests.sim --seeds N`: many histories over all cores; a failing one is made short and printed."""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from .shrink import chosen, described, shrink
from .world import STEPS, Failure, plan_of, play, template

BLOCK = 50


def repeatable(module: str) -> None:
    """Start over with a fixed order of sets of text: it belongs to a history, too."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])  # noqa: S606 - no shell


def block(first: int, count: int) -> list[Failure]:
    """The failures among some seeds."""
    failures = (play(seed)[0] for seed in range(first, first + count))
    return [failure for failure in failures if failure is not None]


def blocks(first: int, count: int) -> Iterator[tuple[int, int]]:
    for start in range(first, first + count, BLOCK):
        yield start, min(BLOCK, first + count - start)


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
    started, failures = time.perf_counter(), list[Failure]()
    template()
    with ProcessPoolExecutor(given.jobs) as pool:
        for done in as_completed([pool.submit(block, *each) for each in blocks(given.first, given.seeds)]):
            failures += done.result()
            if len(failures) > 10:
                pool.shutdown(cancel_futures=True)
                break
    took = time.perf_counter() - started
    if failures:
        print(described(*shrink(min(failures, key=lambda each: each.seed))))
        print("failing seeds: " + " ".join(str(each.seed) for each in failures[:20]))
    rate = given.seeds * STEPS / took
    what = f"{given.seeds} seeds from {given.first}, {STEPS} steps each"
    print(f"{what}: {len(failures)} violations, {took:.0f} s, {rate:.0f} steps/s")
    return 1 if failures else 0


if __name__ == "__main__":
    repeatable("tests.sim")
    sys.exit(main())
