"""Programs that wait for ChatGPT in silence, all at the same time."""

from pathlib import Path

import anyio
import pytest

from tests.hosts.programs import DRIVERS
from tests.hosts.rig import results, until_status
from tests.hosts.test_hosts import stage

pytestmark = pytest.mark.anyio

SILENCE = 90.0
"""Seconds."""


async def test_every_program_waits_ninety_seconds_without_a_word(
    tmp_path: Path, chosen: tuple[str, ...]
) -> None:
    async def wait(name: str) -> None:
        async with stage(tmp_path / name, name) as on:
            await on.program.prompt("hello")
            session = await on.joined()
            await anyio.sleep(SILENCE)
            await until_status(on.chat, session, "ready")
            answer = await on.chat.call("call", calls=[on.program.sh("echo patient").as_json])
            assert "patient" in results(answer)[0].text

    async with anyio.create_task_group() as tasks:
        for name in chosen:
            assert name in DRIVERS
            tasks.start_soon(wait, name)
