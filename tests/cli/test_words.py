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


@pytest.mark.parametrize("public", ["", "https://bridge.example"])
def test_the_start_says_how_an_app_is_let_in_where_it_can_be(public: str) -> None:
    ready = Ready(
        "http://127.0.0.1:1/mcp",
        "http://127.0.0.1:1/dashboard",
        "ws://127.0.0.1:2",
        Path("/state"),
        Path("/state/install-secret"),
        {"Authorization": "Bearer x"},
        None,
        None,
        public,
    )
    assert ("chappie-bridge code" in words(ready)) is bool(public)
    assert ("https://bridge.example/mcp" in words(ready)) is bool(public)
