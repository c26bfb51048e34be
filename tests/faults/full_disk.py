"""Fills the disk below a bridge under load, and frees it: `python -m tests.faults.full_disk ROOT SEED`.

For a mount namespace of its own, in which ROOT/state becomes a small tmpfs."""

import errno
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from .machine import machine

SIZE = 8 * 1024 * 1024


def fill(path: Path) -> None:
    """Until not one byte more fits."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for size in (65_536, 4_096, 1):
        try:
            while True:
                os.write(descriptor, b"x" * size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    os.close(descriptor)


def main(root: Path, seed: int) -> None:
    state = root / "state"
    state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "none", str(state)], check=True)
    with machine(root, seed) as here:
        here.start_client()
        for _ in range(2):
            time.sleep(1.0)
            fill(state / "filler")
            time.sleep(2.0)
            (state / "filler").unlink()
        time.sleep(1.0)
        here.finish()
        account, effects = here.account(), here.effects()
        assert account.faults(effects) == []
        refused = Counter(code for asked in account.asked.values() for code, _ in asked.refused)
        assert refused["disk_full"], "it never mattered that the disk was full"
        assert effects[-1] in account.asked
        for name in (*here.agents, "broker"):
            here.kill(name)
        print(len(effects), "ran, refused:", dict(refused), "ends:", dict(Counter(account.ends.values())))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
