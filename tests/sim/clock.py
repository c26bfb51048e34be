"""Virtual time: an event loop that never waits, and processes in it that die or freeze without warning."""

import asyncio
import contextvars
import gc
import heapq
import os
import sys
import warnings
from asyncio import base_events, events
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, TypeVar
from unittest import mock

import anyio._backends._asyncio as _backend
import anyio._core._eventloop as _eventloop

_T = TypeVar("_T")

SPIN = 200
"""Rounds of the loop after which time goes by although something is ready."""


class Killed(BaseException):
    """Raised inside a process at the write in which it dies.  Nothing of that process runs after it."""


class Deadlock(AssertionError):
    """Somebody waits for something that nobody will do."""


class Process:
    """What is scheduled in its context belongs to it, and with it dies or stands still."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self.full = False
        """Its disk takes nothing more."""
        self.writes_left: int | None = None
        """It dies in the middle of the write after so many."""
        self.died: Callable[[], None] = lambda: None
        self.descriptors: set[int] = set()
        self.held: list[events.Handle] = []
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def kill(self) -> None:
        """As by `kill -9`: descriptors are closed and nothing else happens."""
        self.alive = False
        self.held.clear()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
"""Who runs at the moment; None: the simulation itself."""


class _Task(asyncio.Task[Any]):
    """Hashed by its number: sets of tasks have the same order in each run."""

    _numbers = 0

    def __init__(self, *args: Any, **more: Any) -> None:
        _Task._numbers += 1
        self._number = _Task._numbers  # before asyncio puts it into a set
        super().__init__(*args, **more)
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self._number


class Scope(_backend.CancelScope):
    """Hashed by its number, like tasks: cancelling visits sets of them."""

    __slots__ = ("_number",)
    _numbers = 0

    def __hash__(self) -> int:
        try:
            return self._number
        except AttributeError:  # few are ever in a set
            Scope._numbers += 1
            self._number = Scope._numbers
            return self._number


def _task(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> _Task:
    return _Task(coroutine, loop=loop, **more)


class Loop(base_events.BaseEventLoop):
    """Time jumps to the next timer as soon as nothing is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.faults: list[BaseException] = []
        """What no task caught."""
        self._rounds = self._timers = 0
        self._clock_resolution = 1e-9
        self.set_task_factory(_task)
        self.set_exception_handler(self._fault)
        _Task._numbers = Scope._numbers = 0

    def time(self) -> float:
        return self.now

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Timers of one moment in the order in which they were set."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers += 1
        heapq.heappush(self._scheduled, (when, self._timers, timer))
        timer._scheduled = True
        return timer

    def thaw(self, process: Process) -> None:
        """A frozen process goes on where it stood: before what has become ready for it only now."""
        process.frozen = False
        self._ready.extendleft(reversed(process.held))
        process.held.clear()

    def _fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, Killed):
            self.faults.append(error)

    def _write_to_self(self) -> None:
        """There is no other thread that could call."""

    def _run_once(self) -> None:
        timers, ready = self._scheduled, self._ready
        if not ready:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Deadlock("nothing is left to do and somebody still waits")
            self.now = max(self.now, timers[0][0])
            self._rounds = 0
        self._rounds += 1
        if self._rounds % SPIN == 0:
            # A cancellation is delivered again in each round until its task has ended: time goes by.
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers or self._rounds > 100 * SPIN:
                raise Deadlock("something goes round without ever waiting")
            self.now = max(self.now, timers[0][0])
        end = self.now + self._clock_resolution
        while timers and timers[0][0] <= end:
            _, _, timer = heapq.heappop(timers)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)
            if process is not None:
                if not process.alive:
                    continue
                if process.frozen:
                    process.held.append(handle)
                    continue
            handle._run()


def _library() -> str:
    return "asyncio"


@cache
def _settle_memory() -> None:
    """What is there before the first history stays; the collector need not look at it each time."""
    gc.collect()
    gc.freeze()


def simulate(main: Callable[[Loop], Coroutine[Any, Any, _T]]) -> _T:
    """Run `main` to its end on a loop of its own; what is then still under way is thrown away."""
    _settle_memory()
    loop = Loop()
    collecting, hook = gc.isenabled(), sys.unraisablehook
    gc.disable()
    sys.unraisablehook = lambda _: None  # coroutines of dead processes protest when they are thrown away
    asyncio.set_event_loop(loop)
    warned = warnings.catch_warnings()
    warned.__enter__()
    warnings.simplefilter("ignore")  # what a dead process had only just begun was never awaited
    try:
        with (
            mock.patch.object(_backend, "CancelScope", Scope),
            mock.patch.object(_eventloop, "current_async_library", _library),  # asked very often
        ):
            return loop.run_until_complete(main(loop))
    finally:
        asyncio.set_event_loop(None)
        loop._ready.clear()
        loop._scheduled.clear()
        loop.close()
        del loop
        asyncio.tasks._all_tasks.clear()  # the next history numbers, and so hashes, its tasks the same way
        gc.collect(0)
        warned.__exit__(None, None, None)
        sys.unraisablehook = hook
        if collecting:
            gc.enable()
