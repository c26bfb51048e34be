"""Starting: `up` until its self-check passed, `--help`, idle memory and CPU, what an agent imports.

python bench/start.py [--rounds 7]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median as middle

from _bridges import CLI, LOOPBACK
from _measure import record
from _processes import MIB, resident, tree


def seconds(*argv: str) -> float:
    began = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def cpu(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def up(root: Path, number: int, idle: float) -> tuple[float, list[float], float]:
    """Seconds to ready; MiB of the bridge and of its agent; CPU share while idle."""
    work = root / f"work{number}"
    work.mkdir()
    state = root / f"state{number}"
    argv = (*CLI, "up", "--json", "--state", str(state), "--directory", str(work), *LOOPBACK)
    began = time.perf_counter()
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ready"]
        ready = time.perf_counter() - began
        share, memory = 0.0, []
        if idle:
            time.sleep(2)
            pids = tree(process.pid)
            before = cpu(pids)
            time.sleep(idle)
            share = (cpu(pids) - before) / idle
            memory = [resident(pid) / MIB for pid in pids]
        process.send_signal(signal.SIGINT)
        process.wait(10)
    return ready, memory, share


def main(rounds: int) -> None:
    import_sdk, to_ready, bare, help_ = [], [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for number in range(rounds):
            import_sdk.append(seconds(sys.executable, "-c", "import mcp.server.lowlevel, uvicorn"))
            to_ready.append(up(root, number, 0)[0])
            bare.append(seconds(sys.executable, "-c", "pass"))
            help_.append(seconds(str(Path(sys.executable).with_name("chappie-bridge")), "--help"))
        _, memory, share = up(root, rounds, 10)
    code = (
        "import sys, chappie_agents.session, chappie_agents.dial\n"
        "print([m for m in ('mcp', 'starlette', 'uvicorn') if m in sys.modules])"
    )
    argv = [sys.executable, "-c", code]
    imported = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    ratio = middle(a / b for a, b in zip(to_ready, import_sdk, strict=True))
    ratio_help = middle(a / b for a, b in zip(help_, bare, strict=True))
    text = (
        f"up to ready {middle(to_ready):.2f} s, importing the SDK {middle(import_sdk):.2f} s: "
        f"ratio {ratio:.2f}\n"
        f"--help {middle(help_) * 1e3:.0f} ms, bare interpreter {middle(bare) * 1e3:.0f} ms: "
        f"ratio {ratio_help:.1f}\n"
        f"idle memory by process {', '.join(f'{m:.0f}' for m in memory)} MiB, together {sum(memory):.0f}; "
        f"idle CPU {share:.2%}\n"
        f"an agent imports of mcp, starlette, uvicorn: {imported}"
    )
    goal = "ready <= 3x the import; --help <= 8x; together <= 130 MiB, agent <= 40; idle CPU <= 1 %"
    record("start", text, goal)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    main(parser.parse_args().rounds)
