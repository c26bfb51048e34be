"""The v1 delta decoder: megabytes of stream per second of one core.

    python bench/delta.py [--rounds 5] [--profile]

CPU time, so that what else the machine does counts less.  `a turn` is a stream as they come: mostly bare
texts of a few characters, a control object now and then, a patch at the end of each message.
"""

import argparse
import cProfile
import json
import pstats
import statistics
import time
from functools import partial
from random import Random

from _measure import record

from chappie_bridge.codec.delta import Broken, Decoder

SIZE = 8 * 1024 * 1024
CHUNK = 64 * 1024
GOAL = 50

ROOT = {"message": {"id": "m", "content": {"parts": [""]}, "metadata": {}, "status": "in_progress"}}
MARKER = {
    "type": "message_marker",
    "conversation_id": "C",
    "message_id": "m",
    "marker": "x",
    "event": "first",
}
FINISH = {
    "p": "",
    "o": "patch",
    "v": [
        {"p": "/message/status", "o": "replace", "v": "finished_successfully"},
        {"p": "/message/metadata", "o": "append", "v": {"is_complete": True}},
    ],
}


def frame(value: object, name: str = "event: delta\n") -> str:
    return f"{name}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"


def opened(channel: int) -> str:
    begin = frame({"c": channel, "p": "", "o": "add", "v": ROOT})
    return begin + frame({"p": "/message/content/parts/0", "o": "append", "v": "The"})


def turn(random: Random) -> bytes:
    words = ("the ", "of\n", "a", 'say "yes"', "größer ", " morn", "ing, ", "    return x\n", "😀")
    parts = ['event: delta_encoding\ndata: "v1"\n\n']
    size = channel = 0
    while size < SIZE:
        message = [opened(channel)]
        message += [frame({"v": random.choice(words)}) for _ in range(random.randint(50, 800))]
        for _ in range(3):
            message.insert(random.randint(2, len(message)), frame(MARKER, ""))
        message.append(frame(FINISH))
        parts += message
        size += sum(map(len, message))
        channel += 1
    return "".join(parts).encode()


def alike(unit: str) -> bytes:
    text = f'event: delta_encoding\ndata: "v1"\n\n{opened(0)}'
    return (text + unit * (SIZE // len(unit))).encode()


def decode(stream: bytes) -> None:
    decoder = Decoder()
    for at in range(0, len(stream), CHUNK):
        for event in decoder.feed(stream[at : at + CHUNK]):
            assert not isinstance(event, Broken), event
    assert decoder.root(0) is not None


def speed(stream: bytes) -> float:
    began = time.process_time()
    decode(stream)
    return len(stream) / (time.process_time() - began) / 1e6


def main(rounds: int, profile: bool) -> None:
    cases = {
        "a turn": turn(Random(1)),  # noqa: S311 - the same in each run
        "bare texts alone": alike(frame({"v": " morn"})),
        "texts of 2 KB": alike(frame({"v": "x" * 2000})),
        "each delta written out": alike(frame({"p": "/message/content/parts/0", "o": "append", "v": " m"})),
        "control objects alone": alike(frame(MARKER, "")),
        "patches alone": alike(frame(FINISH)),
    }
    lines = [f"{'case':<26}{'MB/s':>8}{'spread':>16}"]
    for name, stream in cases.items():
        found = sorted(speed(stream) for _ in range(rounds))
        lines.append(f"{name:<26}{statistics.median(found):>8.0f}{f'{found[0]:.0f}-{found[-1]:.0f}':>16}")
    record("delta", "\n".join(lines), f"a turn >= {GOAL} MB/s of one core")
    if profile:
        profiler = cProfile.Profile()
        profiler.runcall(partial(decode, cases["each delta written out"]))
        pstats.Stats(profiler).sort_stats("tottime").print_stats(10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="Where the time of written-out deltas goes.")
    options = parser.parse_args()
    main(options.rounds, options.profile)
