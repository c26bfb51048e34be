"""A person at an agent's terminal: an agent on a pseudo-terminal, and lines typed into it."""

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from chappie_bridge.demo.bridge import ended, environment


class Person:
    """Types; what the terminal shows is read and thrown away."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def type(self, line: str) -> None:
        """A line and the return key."""
        os.write(self._descriptor, f"{line}\n".encode())

    def look(self) -> None:
        """Read the terminal until it is gone: a full one would hold the agent up."""
        with suppress(OSError):  # how the end of a pseudo-terminal is told
            while os.read(self._descriptor, 65536):
                pass


@contextmanager
def at_a_terminal(state: Path, directory: Path, *options: str) -> Generator[Person]:
    """The agent of `directory`, linked to the bridge of `state`, with somebody at its terminal."""
    argv = [sys.executable, "-m", "chappie_bridge.cli", "agent", "--state", str(state)]
    argv += ["--directory", str(directory), *options]
    ours, theirs = pty.openpty()
    person = Person(ours)
    looking = threading.Thread(target=person.look, daemon=True)
    try:
        with ended(subprocess.Popen(argv, stdin=theirs, stdout=theirs, env=environment())):
            os.close(theirs)
            looking.start()
            yield person
    finally:
        looking.join()
        os.close(ours)
