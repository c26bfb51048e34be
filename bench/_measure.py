"""How figures are taken: interleaved rounds, medians, ratios to a floor of the same run.

The machine is shared, so single absolute times mean little; ratios within a round mean something.
"""

import datetime as dt
import platform
import shlex
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).parent / "results.md"


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one case: medians over rounds, in milliseconds; `ratio` to the floor, round by round."""

    p50: float
    p99: float
    ratio: float
    ratio_low: float
    ratio_high: float
    p99_ratio: float


def quantile(samples: Sequence[float], q: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


async def interleaved(
    cases: Mapping[str, Callable[[], Awaitable[list[float]]]], *, floor: str, rounds: int
) -> dict[str, Figures]:
    """Run each case once a round, `rounds` times; a case gives the seconds of its samples."""
    samples: dict[str, list[list[float]]] = {name: [] for name in cases}
    for number in range(rounds):
        names = list(cases)
        for name in names if number % 2 else reversed(names):
            samples[name].append(await cases[name]())
    return {name: _figures(samples[name], samples[floor]) for name in cases}


def _figures(rounds: list[list[float]], floor: list[list[float]]) -> Figures:
    p50 = [quantile(r, 0.5) for r in rounds]
    p99 = [quantile(r, 0.99) for r in rounds]
    ratios = [mine / quantile(theirs, 0.5) for mine, theirs in zip(p50, floor, strict=True)]
    p99_ratios = [mine / quantile(theirs, 0.99) for mine, theirs in zip(p99, floor, strict=True)]
    return Figures(
        p50=statistics.median(p50) * 1e3,
        p99=statistics.median(p99) * 1e3,
        ratio=statistics.median(ratios),
        ratio_low=quantile(ratios, 0.1),
        ratio_high=quantile(ratios, 0.9),
        p99_ratio=statistics.median(p99_ratios),
    )


def table(figures: Mapping[str, Figures]) -> str:
    lines = [f"{'case':<26}{'p50 ms':>9}{'p99 ms':>9}{'ratio':>8}{'spread':>14}{'p99 ratio':>11}"]
    for name, f in figures.items():
        spread = f"{f.ratio_low:.2f}-{f.ratio_high:.2f}"
        lines.append(f"{name:<26}{f.p50:>9.3f}{f.p99:>9.3f}{f.ratio:>8.2f}{spread:>14}{f.p99_ratio:>11.2f}")
    return "\n".join(lines)


def record(bench: str, text: str, goal: str) -> None:
    """Print, and append to results.md with date, machine, versions and command."""
    print(text)
    print(f"goal: {goal}")
    versions = ", ".join(
        f"{name} {_version(name)}" for name in ("mcp", "websockets", "uvloop", "httptools", "pydantic")
    )
    machine = f"{platform.machine()}, {_cores()} cores, Python {platform.python_version()}"
    command = shlex.join(["python", *sys.argv])
    when = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    entry = f"\n## {bench}: {when}\n{machine}; {versions}\n\n`{command}`; goal: {goal}\n\n```\n{text}\n```\n"
    with RESULTS.open("a", encoding="utf-8") as results:
        results.write(entry)


def _cores() -> int:
    import os

    return os.cpu_count() or 1


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
