"""A whole front door for hostile requests: MCP, OAuth and the dashboard, and what its visitors know."""

import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qs, urlsplit

import httpx2

from chappie_bridge.faces.chatgpt.gate import Gate
from chappie_bridge.faces.chatgpt.server import build
from chappie_bridge.wire.access import App
from chappie_bridge.wire.errors import Forbidden
from chappie_bridge.wire.ids import AppId
from chappie_bridge.wire.messages import Done
from chappie_bridge.wire.owner import RedeemCode
from tests.faces.chatgpt.oauth_rig import BACK, CHALLENGE, CIMD, every_route, opened
from tests.faces.chatgpt.scripted import SECRET, Scripted, settings
from tests.faces.dashboard.owner import Owner

BASE = "http://localhost"

BODY_MAX = 64 * 1024
"""Bytes that a request to `/mcp` may have."""

ROUTES = sorted(every_route(build(Scripted(), settings(), Owner(), cast("Any", object()))))
"""All that is served, as the tables of the application itself say."""

CODE = "AAAA-AAAA"


class House(NamedTuple):
    """`known`: what its visitors have, by the word in braces that stands for it in a request."""

    face: Gate
    known: dict[str, str]

    def browser(self) -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(self.face)
        return httpx2.AsyncClient(transport=transport, base_url=BASE, headers={"Origin": BASE})

    def tells(self, answer: bytes, asked: bytes) -> bool:
        """Is a secret in it that was not in the request?"""
        secrets = [self.known[name].encode() for name in ("{secret}", "{access}", "{refresh}")]
        return any(each in answer and each not in asked for each in secrets)


@asynccontextmanager
async def front_door(document: bytes = b"") -> AsyncGenerator[House]:
    """An app that is let in, another that waits, an owner who is logged in; `document` lies at `CIMD`."""
    with TemporaryDirectory() as room:
        async with opened(Path(room, "r.db"), BASE) as rig:
            rig.documents[CIMD] = document
            owner = Owner()
            owner.on[RedeemCode] = _redeemed
            house = House(build(Scripted(), settings(body_max=BODY_MAX), owner, rig.apps), {})
            app = App(AppId("an app"), "An app", (BACK,))
            tokens = await rig.apps.consented(app, f"{BASE}/mcp")
            house.known.update({"{secret}": SECRET, "{access}": tokens.access, "{refresh}": tokens.refresh})
            house.known.update({"{bearer}": f"Bearer {tokens.access}", "{client}": app.id, "{code}": CODE})
            asks = {
                "client_id": app.id,
                "redirect_uri": BACK,
                "response_type": "code",
                "code_challenge": CHALLENGE,
                "code_challenge_method": "S256",
            }
            async with house.browser() as http:
                waits = await http.get("/authorize", params=asks)
                query = parse_qs(urlsplit(waits.headers["location"]).query)
                house.known["{request}"] = query["request"][0]
                inside = await http.post("/dashboard/login", data={"code": CODE})
                house.known["{cookie}"] = inside.headers["set-cookie"].partition(";")[0]
            yield house


async def _redeemed(asked: RedeemCode) -> Done:
    if asked.code != CODE:
        raise Forbidden("This code is not valid.")
    return Done()


@contextmanager
def no_fault_is_logged() -> Generator[None]:
    """Nothing in here may write an error to the log, nor a task raise one."""
    faults = _Faults()
    logging.getLogger().addHandler(faults)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(faults)
    assert faults.seen == []


class _Faults(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(f"{record.getMessage()} {record.exc_info}")
