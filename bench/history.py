"""A page of a transcript of 1,000,000 entries against one of 1,000: both ends and the middle; and opening it.

python bench/history.py [--rounds 9] [--pages 50] [--entries 1000000]
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from _measure import quantile, record
from chappie_agents.spool import Spool
from chappie_agents.transcript import Transcript

from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.ids import EntryId
from chappie_bridge.wire.values import Entry, HistoryRange

SMALL = 1_000
TEXT = "The quick brown fox jumps over the lazy dog. " * 4


def write(directory: Path, count: int) -> float:
    """A transcript with its index; the seconds that building the index took."""
    directory.mkdir()
    entry = Entry(
        id=EntryId("NAME"),
        at="2026-01-02T03:04:05.678Z",
        kind="assistant",
        content=(Text(text=TEXT),),
        parent=EntryId("BEFORE"),
    )
    record_ = entry.model_dump_json(exclude_none=True)
    first = entry.model_copy(update={"parent": None}).model_dump_json(exclude_none=True)
    with (directory / "transcript.jsonl").open("w", encoding="utf-8") as file:
        file.write(first.replace("NAME", "e0") + "\n")
        for number in range(1, count):
            file.write(record_.replace("NAME", f"e{number}").replace("BEFORE", f"e{number - 1}") + "\n")
    began = time.perf_counter()
    opened(directory).close()
    return time.perf_counter() - began


def opened(directory: Path) -> Transcript:
    return Transcript(directory, Spool(directory / "spool"))


def places(count: int) -> dict[str, HistoryRange]:
    def at(**given: str) -> HistoryRange:
        return HistoryRange.model_validate({"limit": 20, **given})

    return {
        "newest": at(),
        "newest on disk": at(before=f"e{count - 300}"),
        "middle": at(before=f"e{count // 2}"),
        "oldest": at(after="e0"),
    }


async def main(rounds: int, pages: int, entries: int) -> None:
    sizes = {"small": SMALL, "large": entries}
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        built = {name: write(root / name, count) for name, count in sizes.items()}
        opening: dict[str, list[float]] = {name: [] for name in sizes}
        for _ in range(rounds):
            for name in sizes:
                began = time.perf_counter()
                transcript = opened(root / name)
                opening[name].append(time.perf_counter() - began)
                transcript.close()
        lines.append(f"index of {entries} entries built in {built['large']:.0f} s, once")
        lines.append(_line("open", opening["small"], opening["large"]))
        transcripts = {name: opened(root / name) for name in sizes}
        for place in places(SMALL):
            took: dict[str, list[float]] = {name: [] for name in sizes}
            for number in range(rounds):
                for name in sizes if number % 2 else reversed(sizes):
                    span = places(sizes[name])[place]
                    took[name].append(await _timed(transcripts[name].page, span, pages))
            lines.append(_line(place, took["small"], took["large"]))
        for transcript in transcripts.values():
            transcript.close()
    record("history", "\n".join(lines), "<= 1.2x a page of 1,000 entries; opening does not read all of it")


async def _timed(page: Callable[[HistoryRange], Awaitable[object]], span: HistoryRange, count: int) -> float:
    """The median of `count` pages, in seconds."""
    samples = []
    for _ in range(count):
        began = time.perf_counter()
        await page(span)
        samples.append(time.perf_counter() - began)
    return quantile(samples, 0.5)


def _line(what: str, small: list[float], large: list[float]) -> str:
    ratios = [mine / theirs for mine, theirs in zip(large, small, strict=True)]
    return (
        f"{what:<16}{statistics.median(small) * 1e3:8.2f} ms of {SMALL}, "
        f"{statistics.median(large) * 1e3:8.2f} ms of all: ratio {statistics.median(ratios):.2f} "
        f"({quantile(ratios, 0.1):.2f}-{quantile(ratios, 0.9):.2f})"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--entries", type=int, default=1_000_000)
    options = parser.parse_args()
    asyncio.run(main(options.rounds, options.pages, options.entries))
