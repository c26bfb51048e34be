"""The floor of `transfer.py`: one file through `websockets` over three processes, unresumed.

python bench/_relay.py relay SOCKET | send SOCKET FILE [--check] | receive SOCKET FILE [--check]

`--check`: hashed at both ends, and synced.
"""

import asyncio
import hashlib
import os
import sys
from pathlib import Path

from websockets.asyncio.client import unix_connect
from websockets.asyncio.server import ServerConnection, unix_serve

CHUNK = 64 * 1024


async def relay(path: str) -> None:
    receiver: asyncio.Future[ServerConnection] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def serve(connection: ServerConnection) -> None:
        if connection.request is not None and connection.request.path == "/receive":
            receiver.set_result(connection)
            await connection.wait_closed()
            return
        target = await receiver
        async for data in connection:
            await target.send(data)
        await target.close()
        over.set()

    async with unix_serve(serve, path, compression=None, max_size=None, ping_interval=None):
        print("ready", flush=True)
        await over.wait()


async def send(path: str, file: Path, check: bool) -> None:
    digest = hashlib.sha256()
    async with unix_connect(path, uri="ws://x/send", compression=None, ping_interval=None) as connection:
        with file.open("rb") as source:
            while data := source.read(CHUNK):
                if check:
                    digest.update(data)
                await connection.send(data)


async def receive(path: str, file: Path, check: bool) -> None:
    digest = hashlib.sha256()
    async with unix_connect(
        path, uri="ws://x/receive", compression=None, max_size=None, ping_interval=None
    ) as connection:
        print("ready", flush=True)
        with file.open("wb") as target:
            async for data in connection:
                assert isinstance(data, bytes)
                if check:
                    digest.update(data)
                target.write(data)
            if check:
                target.flush()
                os.fsync(target.fileno())


if __name__ == "__main__":
    role, socket, *rest = sys.argv[1:]
    if role == "relay":
        asyncio.run(relay(socket))
    else:
        asyncio.run((send if role == "send" else receive)(socket, Path(rest[0]), "--check" in rest))
