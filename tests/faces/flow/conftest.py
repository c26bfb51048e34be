"""What an owner configures, for the peer."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chappie_bridge.faces.flow.settings import FlowSettings
from tests.peer.flow import AUTHORIZATION, CONDUIT

ECHO = (sys.executable, "-c", "import sys; print(sys.stdin.read())")
"""The test's own answer to the test's own challenge."""


def owners(room: Path, url: str, **more: object) -> FlowSettings:
    headers = room / "headers"
    headers.write_text(f"# the test's\nAuthorization: {AUTHORIZATION}\n", encoding="utf-8")
    headers.chmod(0o600)
    given: dict[str, object] = {
        "endpoint": url,
        "challenge": "/challenge",
        "read": "/conversation/{conversation_id}",
        "headers_file": str(headers),
        "answer_command": ECHO,
        "conduit_header": CONDUIT,
        **more,
    }
    return FlowSettings.model_validate(given)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., FlowSettings]:
    return lambda url, **more: owners(tmp_path, url, **more)
