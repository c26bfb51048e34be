"""The dashboard of a real bridge, from the printed link to its last page."""

import re
from collections.abc import Iterator

import httpx2
import pytest

from tests.story.bridge import Home, Process


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Process]]:
    home = Home(tmp_path_factory.mktemp("dashboard"))
    with home.up() as running:
        yield home, running


def entered(http: httpx2.Client, link: str) -> int:
    """What is answered when the button of `link` is pressed."""
    address, _, code = link.partition("#")
    return http.post(address, data={"code": code}).status_code


def test_a_link_from_the_terminal_opens_every_page_once(bridge: tuple[Home, Process]) -> None:
    home, running = bridge
    link = home.json("dashboard")["link"]
    assert link.startswith(f"{running.ready['dashboard']}/login#")
    with httpx2.Client(trust_env=False) as http:
        assert entered(http, link) == 303
        front = http.get(running.ready["dashboard"])
        assert running.ready["session"] in front.text
        pages = set(re.findall(r'<a href="(/dashboard/[a-z]+)"', front.text))
        assert len(pages) >= 8
        for page in pages:
            answer = http.get(str(httpx2.URL(running.ready["dashboard"]).join(page)))
            assert answer.status_code == 200, page
    with httpx2.Client(trust_env=False) as again:
        assert entered(again, link) == 403


def test_neither_credential_opens_the_other_door(bridge: tuple[Home, Process]) -> None:
    home, running = bridge
    with httpx2.Client(trust_env=False) as http:
        assert entered(http, home.json("dashboard")["link"]) == 303
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert http.post(running.ready["mcp"], json=asked).status_code == 401
    with httpx2.Client(trust_env=False, headers=running.ready["headers"]) as client:
        assert client.get(running.ready["dashboard"]).status_code == 303
