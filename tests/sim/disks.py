"""Files and the registry of simulated processes: real ones, that fail and break off where a seed says."""

import asyncio
import errno
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import anyio
import anyio.lowlevel
import anyio.to_thread
from chappie_agents import batch, outbox, policy, transcript
from chappie_agents.tools import tool
from chappie_broker import janitor
from chappie_broker.store.port import StoreFull
from chappie_broker.store.sqlite import InlineSqliteStore, Options
from chappie_broker.store.sqlite.database import Database, open_connection

from chappie_bridge.codec.schema import flat_schema
from chappie_bridge.wire.ids import Mint
from chappie_bridge.wire.link import Window

from .clock import PROCESS, Killed, Process

_R = TypeVar("_R")

MEMORY = Path(":memory:")
TICK = 2.0
LEASE = 12.0
WINDOWS = (10, 400)
"""Messages kept for replay; with the fewer, a peer that is silent for a while fills its link."""


_schema = cache(flat_schema)
"""A tool's schema costs more than running it."""


class _Disk:
    """`os` as the agents' files see it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, data: bytes) -> int:
        process = PROCESS.get()
        if process is None:
            return os.write(descriptor, data)
        _check(process)
        if process.writes_left is not None:
            if process.writes_left == 0:
                os.write(descriptor, data[: len(data) // 2])
                process.kill()
                process.died()
                raise Killed
            process.writes_left -= 1
        if process.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data)

    def open(self, *args: Any) -> int:
        descriptor = os.open(*args)
        process = PROCESS.get()
        if process is not None:
            process.descriptors.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        process = PROCESS.get()
        _check(process)
        if process is not None:
            process.descriptors.discard(descriptor)
        os.close(descriptor)

    def ftruncate(self, descriptor: int, size: int) -> None:
        _check(PROCESS.get())
        os.ftruncate(descriptor, size)

    def fsync(self, descriptor: int) -> None:
        _check(PROCESS.get())


def _check(process: Process | None) -> None:
    if process is not None and not process.alive:
        raise Killed


class Registry(InlineSqliteStore):
    """The registry of one life of a broker; a thread of its own does one thing after the other.

    What was asked and not begun when the process dies never happens."""

    def __init__(self, connection: sqlite3.Connection, random: Random, slowness: float) -> None:
        super().__init__(MEMORY, connection)
        self._random, self._slowness = random, slowness
        self._asked: deque[tuple[Callable[[Database], Any], asyncio.Future[Any]]] = deque()
        self._working = False
        self.full = False

    async def _run(self, work: Callable[[Database], _R]) -> _R:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_R] = loop.create_future()
        self._asked.append((work, answer))
        if not self._working:
            self._working = True
            self._after(self._next)
        return await answer

    def _after(self, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        if self._slowness and self._random.random() < 0.5:
            loop.call_later(self._random.random() * self._slowness, call)
        else:
            loop.call_soon(call)

    def _next(self) -> None:
        work, answer = self._asked.popleft()
        try:
            result = work(self._database)
        except Exception as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(result)
        self._working = bool(self._asked)
        if self._working:
            self._after(self._next)

    async def _write(self, work: Callable[[Database], _R]) -> _R:
        def write(database: Database) -> _R:
            if self.full:
                raise StoreFull(MEMORY)
            return work(database)

        return await super()._write(write)


_TEMPLATE: list[sqlite3.Connection] = []


def new_registry() -> sqlite3.Connection:
    """The connection to an empty registry in memory; it outlives its brokers."""
    if not _TEMPLATE:
        _TEMPLATE.append(open_connection(MEMORY, Options()))
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    _TEMPLATE[0].backup(connection)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = OFF")
    return connection


@contextmanager
def simulated(random: Random) -> Iterator[None]:
    """Threads run in the caller, at a moment that the seed chooses; bounds are small enough to be met."""

    async def run_sync(work: Callable[..., _R], *args: Any, **_: Any) -> _R:
        chance = random.random()
        if chance < 0.3:
            await anyio.sleep(0 if chance < 0.2 else chance / 20)
        result = work(*args)
        if chance > 0.9:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
        return result

    loop = asyncio.get_running_loop()
    disk = _Disk()
    with (
        mock.patch.object(anyio.to_thread, "run_sync", run_sync),
        mock.patch.object(outbox, "os", disk),
        mock.patch.object(transcript, "os", disk),
        mock.patch.object(tool, "flat_schema", _schema),
        mock.patch.object(batch, "time", SimpleNamespace(perf_counter=loop.time)),
        mock.patch.object(policy, "_mint", Mint(random.randbytes)),
        mock.patch.object(janitor, "TICK", TICK),
        mock.patch.object(janitor, "SLOW", 8),
        mock.patch.object(janitor, "LEASE", LEASE),
        mock.patch.object(Window.__init__, "__defaults__", (random.choice(WINDOWS), 1 << 20)),
    ):
        yield
