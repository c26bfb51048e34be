"""`kill -9` of broker, source and sink all through a transfer: the right bytes, or the old file."""

import contextlib
import hashlib
from pathlib import Path
from random import Random

import anyio
import pytest
from anyio import to_thread
from chappie_broker.state import StateDirectory

from chappie_bridge.cli.reach import SHELL, reached
from chappie_bridge.wire.batch import OPEN
from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.requests import OperationView, Submit, Transfer
from chappie_bridge.wire.values import RemotePaths

from .lengths import LONG
from .machine import machine

pytestmark = pytest.mark.anyio

MIB, KILLS = (256, 40) if LONG else (96, 8)
"""`python bench/transfer.py --cuts 200` does the same to 1 GiB."""

OLD = b"old"


async def test_a_transfer_through_kills_of_every_process_has_the_right_bytes(
    tmp_path: Path, seed: int
) -> None:
    """B81 B82: spread over the whole file; until its end the target is what it was."""
    random = Random(seed)
    with machine(tmp_path, seed) as here:
        source, sink = here.root / here.agents[0] / "file", here.root / here.agents[1] / "file"
        expected = _make(source, random)
        sink.write_bytes(OLD)
        sessions = here.job.sessions
        request = Transfer(
            caller=SHELL,
            session=sessions[1],
            paths=("file",),
            source=RemotePaths(session=sessions[0], paths=("file",)),
            overwrite=True,
            wait=0,
        )
        state = StateDirectory.visit(here.state)
        with anyio.fail_after(300):
            async with reached(state) as broker:
                view = await broker.transfer(request)
            killed = 0
            while view.status in OPEN:
                goal = MIB * 2**20 * killed // KILLS if killed < KILLS else None
                view = await _until(state, view, goal)
                if view.status in OPEN:
                    victim = random.choice(("broker", *here.agents))
                    print("kill", victim, "at", view.files[0].moved)
                    await to_thread.run_sync(here.kill, victim)
                    assert _sha(sink) in (hashlib.sha256(OLD).hexdigest(), expected)
                    await to_thread.run_sync(here.start, victim)
                    killed += 1
        assert view.status == "done", view
        assert (view.files[0].sha256, _sha(sink)) == (expected, expected)
        assert list(sink.parent.glob(".*.part")) == []
        assert killed > KILLS // 2


async def _until(state: StateDirectory, view: OperationView, moved: int | None) -> OperationView:
    """So many bytes are written, or it is over."""
    while True:
        with contextlib.suppress(BridgeError):  # the broker is on its way back
            async with reached(state) as broker:
                while view.status in OPEN and (moved is None or view.files[0].moved < moved):
                    view = await broker.call(Submit(caller=SHELL, operation=view.operation, wait=0.005))
                return view


def _make(path: Path, random: Random) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(MIB):
            block = random.randbytes(2**20)
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _sha(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
