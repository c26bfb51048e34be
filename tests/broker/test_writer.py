"""Writes that nobody waits for, at the end of the process."""

import anyio
import anyio.lowlevel
import pytest
from chappie_broker.writer import Writer

pytestmark = pytest.mark.anyio


async def test_the_last_attempt_and_the_end_of_the_process_leave_none_out() -> None:
    """The first write comes to its end in the very moment in which the process does."""
    done: list[str] = []
    ready = anyio.Event()
    writer = Writer()

    async def first() -> None:
        await ready.wait()
        done.append("first")

    async def write(name: str) -> None:
        await anyio.lowlevel.checkpoint()
        done.append(name)

    writer.add(first)
    for name in ("second", "third"):
        writer.add(lambda name=name: write(name))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        await anyio.wait_all_tasks_blocked()
        ready.set()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await writer.drain()
    assert list(dict.fromkeys(done)) == ["first", "second", "third"]
