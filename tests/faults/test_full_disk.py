"""A full disk below broker and agents, in a mount namespace where the system lets us have one."""

import subprocess
import sys
from pathlib import Path

from tests.required import required

from .machine import PATIENCE, REPOSITORY

ALONE = ("unshare", "--map-root-user", "--mount")


def allowed() -> bool:
    try:
        argv = [*ALONE, "mount", "-t", "tmpfs", "none", "/mnt"]
        return subprocess.run(argv, capture_output=True, check=False, timeout=PATIENCE).returncode == 0
    except FileNotFoundError:
        return False


def test_a_full_disk_refuses_and_loses_and_repeats_nothing(tmp_path: Path, seed: int) -> None:
    """B88: what could not be written down first did not run; afterwards all is as before."""
    required(allowed(), "a tmpfs in a mount namespace of our own")
    argv = [*ALONE, sys.executable, "-m", "tests.faults.full_disk", str(tmp_path), str(seed)]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=4 * PATIENCE, cwd=REPOSITORY
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
