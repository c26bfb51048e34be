"""What a start tells a person."""

from pathlib import Path

import pytest

from chappie_bridge.cli.words import Ready, words


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"Authorization": "Bearer x"}, "Authorization: Bearer x"),
        ({}, "none: whoever reaches the port is let in"),
    ],
)
def test_the_start_says_who_is_let_in(headers: dict[str, str], said: str) -> None:
    """S25: nobody runs an open server without having read so."""
    secret = Path("/state/install-secret") if headers else None
    page = "http://127.0.0.1:1/dashboard/login#CODE"
    ready = Ready(
        "http://127.0.0.1:1/mcp", page, "ws://127.0.0.1:2", Path("/state"), secret, headers, None, None
    )
    assert said in words(ready)
    assert page in words(ready)
