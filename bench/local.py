"""Starting `local` until its first `tools/list` is answered, beside a bare MCP stdio server of the SDK.

python bench/local.py [--rounds 15]
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from _bridges import CLI
from measure import interleaved, record, table

FLOOR = (sys.executable, str(Path(__file__).with_name("_floor_stdio.py")))

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


def listed(argv: tuple[str, ...], environment: dict[str, str]) -> float:
    """Seconds from the start of the process to the last byte of the list."""
    began = time.perf_counter()
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def say(**message: object) -> None:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            process.stdin.flush()

        say(id=1, method="initialize", params=INITIALIZE)
        assert json.loads(process.stdout.readline())["id"] == 1
        say(method="notifications/initialized")
        say(id=2, method="tools/list", params={})
        assert json.loads(process.stdout.readline())["result"]["tools"]
        took = time.perf_counter() - began
        process.stdin.close()
        process.wait(20)
    return took


async def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        ours = ("CHAPPIE_", "XDG_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environment = {**kept, "HOME": scratch}

        def case(argv: tuple[str, ...], **more: str) -> Callable[[], Awaitable[list[float]]]:
            async def run() -> list[float]:
                return [listed(argv, {**environment, **more})]

            return run

        state = ("--state", str(Path(scratch) / "state"))
        cases = {
            "floor: bare SDK stdio": case(FLOOR),
            "local, transfer alone": case((*CLI, "local", *state)),
            "local, all tools": case((*CLI, "local", *state), CHAPPIE_LOCAL_TOOLS="true"),
        }
        for run in cases.values():
            await run()  # what is compiled once is compiled now
        figures = await interleaved(cases, floor="floor: bare SDK stdio", rounds=rounds)
    record("local", table(figures), "until tools/list <= 1.5x a bare MCP stdio server")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    asyncio.run(main(parser.parse_args().rounds))
