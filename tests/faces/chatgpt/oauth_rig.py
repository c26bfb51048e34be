"""OAuth to be tried: a bridge's own parts, its owner's codes and its clock; what an app does.  No tests."""

import base64
import hashlib
import html
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from chappie_broker.apps import Apps
from chappie_broker.audit import Audit
from chappie_broker.codes import OneTimeCodes
from chappie_broker.download import Bounds
from chappie_broker.store.sqlite import InlineSqliteStore

from chappie_bridge.faces.chatgpt.gate import Gate
from chappie_bridge.faces.chatgpt.server import build
from chappie_bridge.wire.errors import DownloadFailed
from chappie_bridge.wire.messages import Done
from chappie_bridge.wire.owner import RedeemCode
from tests.faces.chatgpt.scripted import Scripted, request, settings
from tests.peer.switchboard import ScriptedSwitchboard

PUBLIC = "https://bridge.example"
BACK = "https://chatgpt.com/connector_platform_oauth_redirect"
VERIFIER = "v" * 64
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")
CIMD = "https://chatgpt.com/oauth/client.json"


class Rig:
    """One bridge, its owner's codes and its clock."""

    def __init__(self, store: InlineSqliteStore, base: str = PUBLIC) -> None:
        self.now = 1_000_000.0
        self.base = base
        self.documents: dict[str, bytes] = {}
        self.fetched: list[str] = []
        self.codes = OneTimeCodes(lambda: self.now)
        audit = Audit(store, now=lambda: self.now, limit=1000)
        later: list[Callable[[], Any]] = []
        self.apps = Apps(store, audit, later.append, now=lambda: self.now, bounds=Bounds())
        self.apps.document = self._fetch
        self.board = Scripted()
        self.http = self.client()

    def client(self, base: str | None = None) -> httpx2.AsyncClient:
        public = base or self.base
        face = build(
            self.board,
            settings(public_url="" if public.startswith("http://") else public),
            ScriptedSwitchboard(self._office),
            self.apps,
        )
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(face), base_url=public)

    async def _fetch(self, url: str) -> bytes:
        self.fetched.append(url)
        if url not in self.documents:
            raise DownloadFailed
        return self.documents[url]

    async def _office(self, asked: Any) -> Done:
        assert isinstance(asked, RedeemCode)
        self.codes.redeem(asked.purpose, asked.code, by=asked.by)
        return Done()

    async def register(self, **more: Any) -> httpx2.Response:
        given = {"client_name": "ChatGPT", "redirect_uris": [BACK], **more}
        return await self.http.post("/register", json=given)

    async def authorize(self, client: str, **more: Any) -> httpx2.Response:
        given = {
            "client_id": client,
            "redirect_uri": BACK,
            "response_type": "code",
            "code_challenge": CHALLENGE,
            "code_challenge_method": "S256",
            "state": "a state",
            "resource": f"{self.base}/mcp",
            **more,
        }
        params = {name: value for name, value in given.items() if value is not None}
        return await self.http.get("/authorize", params=params)

    async def decide(self, asked: httpx2.Response, **more: str) -> httpx2.Response:
        page = await self.http.get(asked.headers["location"])
        assert page.status_code == 200
        found = re.search(r'name="request" value="([^"]+)"', page.text)
        assert found
        form = {"request": html.unescape(found[1]), "decision": "allow", **more}
        return await self.http.post("/consent", data=form)

    async def consented(self, client: str) -> dict[str, str]:
        """What the redirect to the client carries."""
        done = await self.decide(await self.authorize(client), code=self.codes.make("consent"))
        assert done.status_code == 303, done.text
        return told(done)

    async def exchange(self, client: str, code: str, **more: Any) -> httpx2.Response:
        given = {
            "grant_type": "authorization_code",
            "client_id": client,
            "code": code,
            "redirect_uri": BACK,
            "code_verifier": VERIFIER,
            "resource": f"{self.base}/mcp",
            **more,
        }
        form = {name: value for name, value in given.items() if value is not None}
        return await self.http.post("/token", data=form)

    async def tokens(self, client: str) -> dict[str, Any]:
        answer = await self.exchange(client, (await self.consented(client))["code"])
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def refresh(self, client: str, token: str) -> httpx2.Response:
        form = {"grant_type": "refresh_token", "client_id": client, "refresh_token": token}
        return await self.http.post("/token", data=form)

    async def use(self, access: str, http: httpx2.AsyncClient | None = None) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {access}"}
        return await (http or self.http).post("/mcp", json=request("sessions", {}), headers=headers)


def every_route(face: Gate) -> frozenset[str]:
    """The paths that it serves, from its own tables and those of what stands behind it."""
    assert face._door is not None
    assert face._dashboard is not None
    pages = face._dashboard._made()._app
    return frozenset({*face._own, *face._door.routes, *(route.path for route in pages.routes)})


def told(response: httpx2.Response) -> dict[str, str]:
    location = response.headers["location"]
    assert location.startswith(BACK + "?")
    return {name: value[0] for name, value in parse_qs(urlsplit(location).query).items()}


@asynccontextmanager
async def opened(path: Path, base: str = PUBLIC) -> AsyncIterator[Rig]:
    store = await InlineSqliteStore.open(path)
    rig = Rig(store, base)
    rig.apps.load(await store.access())
    try:
        async with rig.http:
            yield rig
    finally:
        await store.close()


async def registered(rig: Rig) -> str:
    answer = await rig.register()
    assert answer.status_code == 201, answer.text
    return str(answer.json()["client_id"])
