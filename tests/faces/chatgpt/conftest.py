"""Every answer of the face in these tests is short enough for who reads it."""

from collections.abc import Iterator
from typing import Any

import pytest

from chappie_bridge.faces.chatgpt.kernel import Answer, Kernel
from tests.peer.budget import Budget


@pytest.fixture(autouse=True)
def budget(monkeypatch: pytest.MonkeyPatch) -> Iterator[Budget]:
    """Looks at what the kernel hands to HTTP and stdio alike: they send these bytes and no others."""
    budget, real = Budget(), Kernel.answer

    async def answer(self: Kernel, *given: Any, **more: Any) -> Answer:
        found = await real(self, *given, **more)
        budget.look(found.body)
        return found

    monkeypatch.setattr(Kernel, "answer", answer)
    yield budget
    assert not budget.over
