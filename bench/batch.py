"""32 calls in one batch against the same 32 as single calls, one after the other.

python bench/batch.py [--rounds 15]
"""

import argparse
import asyncio
import contextlib
import tempfile
from pathlib import Path

from _bridges import calls, over_unix, until_online
from _measure import interleaved, record, table
from _wire_client import WireClient

WIDTH = 32


async def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        server, sessions = stack.enter_context(over_unix(Path(scratch)))
        client = WireClient(server.url, server.headers)
        await client.open()
        await until_online(client, sessions)
        one = client.prepared("call", calls(server.session, ("noop", {})), "bench")
        many = client.prepared("call", calls(server.session, *[("noop", {})] * WIDTH), "bench")
        await client.timed(one, 200)

        async def singles() -> list[float]:
            return [sum(await client.timed(one, WIDTH)) for _ in range(5)]

        async def batch() -> list[float]:
            return await client.timed(many, 5)

        figures = await interleaved(
            {"one batch of 32": batch, "32 single calls": singles}, floor="one batch of 32", rounds=rounds
        )
        client.close()
    record("batch", table(figures), "32 single calls >= 10x one batch of 32")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    asyncio.run(main(parser.parse_args().rounds))
