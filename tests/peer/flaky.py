"""A relay between a dialling end and a broker that fails exactly where a test says."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

import anyio
from websockets.asyncio.client import unix_connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from chappie_bridge.wire.link import SUBPROTOCOL

Fault = Literal["cut", "cut after", "drop", "twice", "hold", "garble"]
"""What happens at a frame: both sockets are cut instead of passing it on, or after it; it is dropped; it
is passed on twice; from it on nothing passes and nobody notices (a half-open connection); it becomes
nonsense."""


class Flaky:
    """Listens at `front`, passes frames on to `back`.  Faults are keyed by the frame's number, counted
    from 1 in each direction over all connections (the first is the Hello, or the Welcome)."""

    def __init__(
        self,
        front: Path,
        back: Path,
        *,
        to_broker: dict[int, Fault] | None = None,
        to_dial: dict[int, Fault] | None = None,
    ) -> None:
        self.front = front
        self.connections = 0
        self.passed = {"broker": 0, "dial": 0}
        self._back = back
        self._faults = {"broker": to_broker or {}, "dial": to_dial or {}}

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Flaky"]:
        async with unix_serve(
            self._relay,
            self.front,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            max_size=None,
            ping_interval=None,
            close_timeout=1,
        ):
            yield self

    async def _relay(self, dial: ServerConnection) -> None:
        self.connections += 1
        try:
            async with (
                unix_connect(
                    self._back,
                    subprotocols=[Subprotocol(SUBPROTOCOL)],
                    compression=None,
                    max_size=None,
                    ping_interval=None,
                    close_timeout=1,
                ) as broker,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(self._pump, "broker", dial, broker)
                await self._pump("dial", broker, dial)
                tasks.cancel_scope.cancel()
        except OSError:
            dial.transport.abort()  # nobody is at the back

    async def _pump(self, to: str, source: Connection, target: Connection) -> None:
        try:
            async for frame in source:
                self.passed[to] += 1
                fault = self._faults[to].pop(self.passed[to], None)
                if fault == "hold":
                    source.transport.pause_reading()
                    target.transport.pause_reading()
                    await source.wait_closed()
                for _ in range({"cut": 0, "drop": 0, "twice": 2}.get(fault or "", 1)):
                    await target.send("nonsense" if fault == "garble" else frame)
                if fault in ("cut", "cut after"):
                    source.transport.abort()
                    target.transport.abort()
        except ConnectionClosed:
            pass
        with suppress(ConnectionClosed):
            await source.wait_closed()
        if source.close_code is None or source.close_code in (1005, 1006):
            target.transport.abort()
        else:
            await target.close(source.close_code, source.close_reason or "")
