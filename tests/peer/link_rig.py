"""A hub and a dial on sockets of their own, for tests."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
from chappie_agents.dial import Dial
from chappie_broker.hub import Hub

from chappie_bridge.wire.ids import DeviceId, InstanceId
from chappie_bridge.wire.ports import Attendant

TOKEN = "token-of-device-one"
DEVICE = DeviceId("device-one")
LOCAL = DeviceId("device-local")


@contextmanager
def room() -> Iterator[Path]:
    """A directory whose path is short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="chp") as directory:
        yield Path(directory)


def a_hub(attendant: Attendant, instance: str = "i_broker", **options: Any) -> Hub:
    options.setdefault("authenticate", {TOKEN: DEVICE}.get)
    return Hub(
        attendant,
        instance=InstanceId(instance),
        local_device=LOCAL,
        version="1",
        **options,
    )


def a_dial(address: Path | str, attendant: Attendant, instance: str = "i_dial", **options: Any) -> Dial:
    target = f"unix:{address}" if isinstance(address, Path) else address
    options.setdefault("role", "agent")
    options.setdefault("jitter", lambda: 0.0)
    return Dial(target, attendant, instance=InstanceId(instance), **options)


@asynccontextmanager
async def running(*dials: Dial) -> AsyncIterator[None]:
    """The dials run until the end of the context, then say goodbye."""
    async with anyio.create_task_group() as tasks:
        for dial in dials:
            tasks.start_soon(dial.run)
        yield
        tasks.cancel_scope.cancel()
