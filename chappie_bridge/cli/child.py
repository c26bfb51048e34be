"""Keeps the agent process of `up` alive.  A socket is its lifeline: when that ends, the child ends itself."""

import json
import logging
import socket
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import Process

log = logging.getLogger("chappie.up")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a restart; each doubles the one before."""

STEADY = 60.0
"""Seconds after which a crash counts as the first."""

GRACE = 1.8
"""Seconds that the child has to end what it runs before it is killed."""

_LINE = 64 * 1024


class Child:
    """`argv` gets `--lifeline FD`, a socket on which it names its `session` once that is registered.

    With `terminal` it has our stdin and stdout; what it shows there is the agent's own affair."""

    def __init__(self, argv: Sequence[str], *, terminal: bool) -> None:
        self._argv = list(argv)
        self._stdio = None if terminal else subprocess.DEVNULL
        self.told = anyio.Event()
        """Set when the first process named its session, or ended before it did."""
        self.session: str | None = None

    async def run(self) -> None:
        """Until cancelled; then the process has ended before this returns."""
        pause = FIRST_PAUSE
        while True:
            began = anyio.current_time()
            async with self._process() as (process, lifeline):
                await self._listen(lifeline)
                code = await process.wait()
            self.told.set()
            if anyio.current_time() - began > STEADY:
                pause = FIRST_PAUSE
            log.error("the agent process ended with %d; it starts again in %.1f s", code, pause)
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _listen(self, lifeline: socket.socket) -> None:
        line = b""
        while b"\n" not in line and len(line) < _LINE:
            await anyio.wait_readable(lifeline)
            try:
                data = lifeline.recv(_LINE)
            except OSError:
                data = b""
            if not data:
                return
            line += data
        with suppress(ValueError, KeyError, TypeError):
            self.session = str(json.loads(line)["session"])
            self.told.set()

    @asynccontextmanager
    async def _process(self) -> AsyncGenerator[tuple[Process, socket.socket]]:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = await anyio.open_process(
                    [*self._argv, "--lifeline", str(theirs.fileno())],
                    stdin=self._stdio,
                    stdout=self._stdio,
                    stderr=None,
                    pass_fds=[theirs.fileno()],
                    # Ctrl-C on the terminal reaches `up` alone, which then ends the child in order.
                    start_new_session=True,
                )
            try:
                yield process, ours
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(process)


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    with anyio.move_on_after(GRACE):
        await process.wait()
    if process.returncode is None:
        log.warning("the agent process did not end in time and is killed")
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
