"""The model endpoint's tests run in virtual time."""

from typing import Any

import anyio.to_thread
import pytest

from tests.agents.model.rig import VirtualLoop, watched


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture(autouse=True)
def threads_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anyio.to_thread, "run_sync", watched(anyio.to_thread.run_sync))
