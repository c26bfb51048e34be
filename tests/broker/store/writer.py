"""A process that works on a registry until it is killed, for the tests of many processes.

`writer.py start FILE`: waits for a line, opens, writes one row, prints what it found.
`writer.py write FILE NAME`: commits operations for ever and prints each number once it is committed.
"""

import asyncio
import sys
from itertools import count
from pathlib import Path

from chappie_broker.store.rows import Operation
from chappie_broker.store.sqlite import SqliteStore

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import Executed
from chappie_bridge.wire.ids import OperationId, SessionId


def operation(name: str, number: int) -> Operation:
    return Operation(
        OperationId(f"{name}-{number}"),
        "batch",
        "shell",
        name,
        SessionId("s"),
        "/w" * 200,
        Status.RUNNING,
        Executed.UNKNOWN,
        "owner",
        created_at=float(number),
    )


async def start(path: Path) -> None:
    sys.stdin.readline()
    store = await SqliteStore.open(path)
    print(await store.meta_once("key", str(path.stat().st_ino)), await store.integrity_check(), flush=True)
    await store.close()


async def write(path: Path, name: str) -> None:
    store = await SqliteStore.open(path)
    for number in count():
        await store.save_operation(operation(name, number))
        print(number, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "start":
        asyncio.run(start(Path(sys.argv[2])))
    else:
        asyncio.run(write(Path(sys.argv[2]), sys.argv[3]))
