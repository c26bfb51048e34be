"""A result of 20 MB trimmed, against reading and JSON-decoding it; then one end to end through `up`.

    python bench/trim.py [--rounds 7] [--megabytes 20]

A step is what runs on the loop between two chances for others; its longest is given in CPU time, too,
because other programs of this machine interrupt it.  Memory is the kernel's high-water mark.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path

from _bridges import calls, up
from _measure import interleaved, quantile, record, table
from _processes import MIB, forget_peak, peak, resident, tree
from _wire_client import WireClient

from chappie_bridge.codec.parts import Part, Pointer
from chappie_bridge.codec.trim import trim_in_steps
from chappie_bridge.faces.chatgpt.tokens import Tokenizer

LINE = "2026-01-02T03:04:05.678Z worker[{}]: request {} took 12 ms, 200, /items/{}?page=3\n"


def output(megabytes: int) -> str:
    """A log."""
    lines: list[str] = []
    size = number = 0
    while size < megabytes * 1_000_000:
        lines.append(LINE.format(number % 8, number, number * 7))
        size += len(lines[-1])
        number += 1
    return "".join(lines)


async def inside(root: Path, rounds: int, megabytes: int) -> str:
    """The face's own way, in this process."""
    text = output(megabytes)
    file = root / "result.json"
    file.write_text(json.dumps({"content": [{"type": "text", "text": text}]}), encoding="utf-8")
    parts = [
        Part("head", '{"sessionId":"s_1"}'),
        Part("text", text, call=0, read=Pointer("history", {"entry": "e_1"})),
    ]
    tokenizer = Tokenizer()
    counter = await tokenizer.counter()

    async def trimmed() -> list[float]:
        began = time.perf_counter()
        assert (await tokenizer.trim(parts)).trimmed
        return [time.perf_counter() - began]

    async def decoded() -> list[float]:
        began = time.perf_counter()
        json.loads(file.read_bytes())
        return [time.perf_counter() - began]

    cases = {"read and decoded": decoded, "trimmed": trimmed}
    figures = await interleaved(cases, floor="read and decoded", rounds=rounds)
    wall: list[float] = []
    used: list[float] = []
    steps = trim_in_steps(parts, counter)
    while True:
        began, cpu = time.perf_counter(), time.thread_time()
        done = next(steps, "done") == "done"
        wall.append(time.perf_counter() - began)
        used.append(time.thread_time() - cpu)
        if done:
            break
    longest = f"longest of {len(wall)} steps {max(wall) * 1e3:.1f} ms, of CPU {max(used) * 1e3:.1f}"
    return f"{table(figures)}\n{longest}"


async def through(root: Path, rounds: int, megabytes: int) -> str:
    """`bash` printing as much, through the whole bridge, while `/healthz` asks whether it is alive."""
    work = root / "work"
    work.mkdir()
    (work / "log").write_text(output(megabytes), encoding="utf-8")
    with up(root, work) as server:
        client = WireClient(server.url, server.headers)
        await client.open()
        command = calls(server.session, ("bash", {"command": "cat log"}))
        small = calls(server.session, ("bash", {"command": "head -c 1000000 log"}))
        await client.call("call", small)  # the tokenizer is loaded, which is no part of a result's cost
        bridge, agent, *_ = tree(server.processes[0].pid)
        before = {pid: resident(pid) for pid in (bridge, agent)}
        for pid in before:
            forget_peak(pid)
        seconds: list[float] = []
        alive: list[float] = []
        watch = asyncio.create_task(_watch(server.url.removesuffix("/mcp") + "/healthz", alive))
        for _ in range(rounds):
            began = time.perf_counter()
            result = await client.call("call", command)
            seconds.append(time.perf_counter() - began)
            assert "trimmed" in json.loads(result["content"][0]["text"])
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        more = {pid: (peak(pid) - before[pid]) / MIB for pid in before}
        client.close()
    size = megabytes * 1_000_000 / MIB
    return (
        f"through `up`: {statistics.median(seconds) * 1e3:.0f} ms; memory above idle: bridge "
        f"{more[bridge]:.1f} MiB, agent {more[agent]:.1f} ({more[agent] / size:.2f}x the output)\n"
        f"/healthz meanwhile: p50 {quantile(alive, 0.5) * 1e3:.1f} ms, longest {max(alive) * 1e3:.1f}"
        f" of {len(alive)}"
    )


async def _watch(url: str, took: list[float]) -> None:
    place, _, path = url.removeprefix("http://").partition("/")
    host, _, port = place.partition(":")
    while True:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            began = time.perf_counter()
            writer.write(f"GET /{path} HTTP/1.1\r\nHost: {place}\r\nConnection: close\r\n\r\n".encode())
            await reader.read()
            took.append(time.perf_counter() - began)
        finally:
            writer.close()
        await asyncio.sleep(0.002)


async def main(rounds: int, megabytes: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        text = await inside(root, rounds, megabytes) + "\n" + await through(root, rounds, megabytes)
    goal = "<= 2x reading and decoding; no step above 5 ms; memory: agent <= 2x, bridge <= 8 MiB"
    record("trim", text, goal)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=20)
    options = parser.parse_args()
    asyncio.run(main(options.rounds, options.megabytes))
