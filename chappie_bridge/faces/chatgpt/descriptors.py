"""Stdin and stdout kept for one reader and one writer.  Imports nothing but the standard library, so that a
command can claim them before anything is imported that might print."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def claimed() -> Generator[tuple[int, int]]:
    """Descriptors of our own, to read and to write, for what were 0 and 1; these are given back at the end.

    Meanwhile descriptor 0 is the null device and descriptor 1 is stderr: nothing else in the process, nor
    its children, reads a request or spoils an answer.
    """
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        sys.stdout.flush()  # what was printed before goes where later prints go
        yield source, sink
    finally:
        os.close(nothing)
        sys.stdout.flush()
        os.dup2(source, 0)
        os.dup2(sink, 1)
