"""Replies dropped and requests brought twice by a tunnel, under load, while the broker is killed."""

from collections import Counter
from pathlib import Path
from random import Random

import anyio
import pytest

from tests.peer.chatgpt import ChatGPT
from tests.peer.tunnel import Tunnel

from .client import PATIENCE, Client
from .lengths import LONG
from .machine import machine

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("request_ids", [True, False], ids=["with ids", "without ids"])
async def test_what_a_tunnel_drops_and_repeats_is_neither_lost_nor_run_twice(
    tmp_path: Path, seed: int, request_ids: bool
) -> None:
    """B48 B04: with a key for every request the client asks until it is told, whatever the tunnel does."""
    random = Random(seed)
    with machine(tmp_path, seed, keys=1.0) as here:
        tunnel = Tunnel(here.job.url, here.job.headers, request_ids=request_ids)
        tunnel.script(*random.choices(("pass", "lose", "redeliver", "twice"), (4, 2, 2, 2), k=100_000))
        async with tunnel.open() as url:
            client = Client(here.job, ChatGPT(url, patience=PATIENCE))
            with anyio.fail_after(3 * PATIENCE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(client.run)
                    for _ in range(12 if LONG else 3):
                        await anyio.sleep(random.uniform(0.3, 1.0))
                        print("kill broker")
                        here.kill("broker")
                        await anyio.to_thread.run_sync(here.start, "broker")
                    here.job.over.touch()
        account, effects = here.account(), here.effects()
        print(len(effects), "ran,", tunnel.statistics, Counter(account.ends.values()))
        assert account.faults(effects) == []
        assert all(asked.told or asked.refused for asked in account.asked.values())
        assert tunnel.statistics.dropped > 3
