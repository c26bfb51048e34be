"""Runs one program in its own process group and sees to its end.  POSIX; decides nothing about its output."""

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio
from anyio import to_thread

PIPE = 256 * 1024
"""Bytes the pipe holds and one read takes; measured: half the time of the system's 64 KiB."""

TERM_GRACE = 2.0
"""Seconds between TERM and KILL."""

KILL_GRACE = 2.0
"""Seconds to wait for a killed group to vanish; only the system's own waits outlive that."""

Keep = Callable[[bytes], Awaitable[bool]]
"""Takes the next bytes of output; False: that is enough, stop the program."""


@dataclass(frozen=True)
class Ending:
    """`code` as a shell says it (128 + signal); `open` means that something still holds the output."""

    code: int
    signal: str | None
    stopped: Literal["timeout", "enough"] | None
    open: bool


async def run(
    argv: Sequence[str], *, cwd: Path, environment: Mapping[str, str], keep: Keep, timeout: float
) -> Ending:
    """Runs `argv` with an empty input, both outputs in one pipe in the order they were written.

    Ends with the program itself: a process it left behind lives on, but what that writes afterwards is
    nobody's (its next write finds a closed pipe).  After `timeout` seconds, when `keep` has enough, and
    on cancellation, the group gets TERM, and KILL two seconds later; it is gone before this returns or
    raises.  A process that made a session of its own cannot be followed.  CHAPPIE_ variables are not
    handed on.  Raises `OSError` (nothing ran).
    """
    clean = {name: value for name, value in environment.items() if not name.startswith("CHAPPIE_")}
    process, output = await to_thread.run_sync(_spawn, argv, cwd, clean)
    try:
        return await _attend(process, _Pump(output, keep), timeout)
    finally:
        try:
            with anyio.CancelScope(shield=True):
                await _stop(process)
        finally:
            os.close(output)


def _spawn(
    argv: Sequence[str], cwd: Path, environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], int]:
    reading, writing = os.pipe()
    try:
        with contextlib.suppress(AttributeError, OSError):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE)
        os.set_blocking(reading, False)
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            start_new_session=True,
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return process, reading


class _Pump:
    """Moves output from the pipe to `keep`; loses nothing when it is told to finish."""

    def __init__(self, output: int, keep: Keep) -> None:
        self._output = output
        self._keep = keep
        self._left: int | None = None  # bytes still taken, once the program has ended
        self._waiting = anyio.CancelScope()
        self.enough = anyio.Event()
        self.ended = False

    def finish(self) -> None:
        """Take what is in the pipe by now, no more."""
        # One byte more than the pipe holds: getting it means that somebody goes on writing.
        self._left = PIPE + 1 if self._left is None else self._left
        self._waiting.cancel()

    async def run(self) -> None:
        while not self.enough.is_set() and self._left != 0:
            try:
                chunk = os.read(self._output, PIPE if self._left is None else min(PIPE, self._left))
            except BlockingIOError:
                if self._left is not None:
                    return
                with anyio.CancelScope() as self._waiting:
                    await anyio.wait_readable(self._output)
                continue
            if not chunk:
                self.ended = True
                return
            if self._left is not None:
                self._left -= len(chunk)
            # A timeout must not fall between reading and keeping.
            with anyio.CancelScope(shield=True):
                if not await self._keep(chunk):
                    self.enough.set()


async def _attend(process: "subprocess.Popen[bytes]", pump: _Pump, timeout: float) -> Ending:
    stopped: Literal["timeout", "enough"] | None = None

    async def pump_until_enough() -> None:
        await pump.run()
        if pump.enough.is_set():
            running.cancel_scope.cancel()

    with anyio.move_on_after(timeout) as clock:
        async with anyio.create_task_group() as running:
            running.start_soon(pump_until_enough)
            await _exit(process)
            pump.finish()
    if pump.enough.is_set():
        stopped = "enough"
        await _stop(process)
    elif clock.cancelled_caught:
        stopped = "timeout"
        async with anyio.create_task_group() as ending:
            # What it says on TERM is worth having.
            ending.start_soon(pump.run)
            await _stop(process)
            pump.finish()
    code = process.wait()
    name = None
    if code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
    return Ending(code if code >= 0 else 128 - code, name, stopped, not pump.ended)


async def _exit(process: "subprocess.Popen[bytes]") -> None:
    """Returns when the program has ended; on Linux without reaping it, so that its group id stays its own."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        await to_thread.run_sync(process.wait, abandon_on_cancel=True)
        return
    try:
        await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)


def _send(process: "subprocess.Popen[bytes]", number: int) -> bool:
    """Signals the group; False if there is none any more."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's process: nothing we may do
    return True


def _lives(group: int) -> bool:
    """Does a process of the group still run?  A zombie does not: in a container without an init that
    collects orphans they lie about for ever."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    found = False
    for file in Path("/proc").glob("[0-9]*/stat"):
        found = True
        with contextlib.suppress(OSError):
            state, _, of_group = file.read_bytes().rpartition(b")")[2].split()[:3]
            if int(of_group) == group and state not in (b"Z", b"X"):
                return True
    return not found  # no /proc to look into: believe the signal


async def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ends the whole group, the program's own children included.  Nothing to do once it was reaped."""
    if process.returncode is not None:
        return
    for number, grace in ((signal.SIGTERM, TERM_GRACE), (signal.SIGKILL, KILL_GRACE)):
        if not _send(process, number):
            break
        _send(process, signal.SIGCONT)  # a stopped process would not hear TERM
        with anyio.move_on_after(grace):
            if process.returncode is None:
                await _exit(process)
                process.wait()
            while _lives(process.pid):  # noqa: ASYNC110 - the system has no event for the end of a group
                await anyio.sleep(0.01)
            return
    process.poll()
