"""Each secret that the bridge has is used; then it stands nowhere but where it is kept.  Real processes."""

import base64
import hashlib
import html
import json
import re
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import pytest

from tests.peer.flow import AUTHORIZATION, Call, Flow, Say
from tests.story.bridge import PATIENCE, Home, Process, until
from tests.story.test_flow_command import run as flow_run

pytestmark = pytest.mark.anyio

KEPT = {"install-secret", "link-token", "model-key", "link-key.pem", "joined.json"}
"""Files of a state directory that are made to hold a secret."""

BACK = "http://127.0.0.1:9/back"

TALKATIVE = ("--log-level", "debug")

Secrets = dict[str, str]


async def test_a_whole_story_with_every_secret_leaves_none_behind(tmp_path: Path) -> None:
    """S21: an app is let in and works, a device is paired and gets another token, a program asks its model, a
    conversation calls local functions, the owner logs in and somebody guesses: at the most talkative level,
    no log, no output, no page of the audit log and no file holds a secret in clear."""
    owner, laptop = _home(tmp_path / "owner"), _home(tmp_path / "laptop")
    (owner.work / "a.txt").write_text("one\n", encoding="utf-8")
    ports = ("--http", "127.0.0.1:0", "--link", "0.0.0.0:0")
    known: Secrets = {}
    told: list[str] = []
    with owner.started("up", "--json", *ports, "--directory", str(owner.work), *TALKATIVE) as up:
        up.ready = up.line()
        http = httpx2.Client(trust_env=False, timeout=PATIENCE)
        with http, _device(owner, laptop, up, known, told) as session:
            async with up.client("2026-07-28", "the story") as chat:
                await chat.tool("init", sessionId=up.ready["session"])
                head, _ = await chat.tool("call", calls=[{"name": "ls", "arguments": {}}])
                assert head["status"] == "done"
                head, _ = await chat.tool("call", sessionId=session, calls=[{"name": "ls", "arguments": {}}])
                assert head["status"] == "done"
                await anyio.to_thread.run_sync(_app, owner, up, http, known)
                await anyio.to_thread.run_sync(_dashboard, owner, up, http, known)
                await _program(owner, chat, known)
            await _functions(owner, tmp_path, up.ready["session"], known, told)
            _guesses(up, http, known)
        told += [
            owner.run(*said.split()).stdout for said in ("audit --json -n 1000", "doctor", "devices", "apps")
        ]
        for name in ("install-secret", "link-token", "model-key", "link-key.pem"):
            known[name] = (owner.state / name).read_text(encoding="utf-8").strip()
        known["link-key.pem"] = known["link-key.pem"].splitlines()[1]
        _nowhere([owner, laptop], known, told)
        told.append(up.stop(signal.SIGTERM)[1])
    _nowhere([owner, laptop], known, told)
    assert len(known) == 24, sorted(known)
    assert any("debug" in text.lower() for text in _logs(owner))


def _home(root: Path) -> Home:
    root.mkdir()
    return Home(root)


@contextmanager
def _device(owner: Home, laptop: Home, up: Process, known: Secrets, told: list[str]) -> Iterator[str]:
    """Paired, its token replaced while it works, revoked at the end; gives its session."""
    url = f"wss://127.0.0.1:{up.ready['link'].rpartition(':')[2]}"
    line = owner.json("pair", "--name", "laptop", "--url", url)["line"]
    known["pairing code"] = line.split()[1]
    joined = laptop.run("join", *TALKATIVE, stdin=line + "\n")
    assert joined.returncode == 0, joined.stderr
    known["device token"] = _token(laptop)
    with laptop.started("agent", "--json", "--directory", str(laptop.work), *TALKATIVE) as agent:
        session = agent.line()["session"]
        rotated = laptop.run("rotate", *TALKATIVE)
        assert rotated.returncode == 0, rotated.stderr
        known["device token, new"] = _token(laptop)
        until(lambda: _online(owner, session), "the device is back with its new token")
        yield session
        revoked = owner.run("revoke", "laptop", *TALKATIVE)
        assert revoked.returncode == 0, revoked.stderr
        agent.process.wait(timeout=PATIENCE)
        assert agent.process.stdout is not None
        told.append(agent.process.stdout.read())
    told += [done.stdout + done.stderr for done in (joined, rotated, revoked)]


def _token(device: Home) -> str:
    found: str = json.loads((device.state / "joined.json").read_text(encoding="utf-8"))["token"]
    return found


def _online(owner: Home, session: str) -> bool:
    rows = owner.json("sessions")["sessions"]
    return any(row["id"] == session and row["status"] not in ("offline", "adrift") for row in rows)


def _app(owner: Home, up: Process, http: httpx2.Client, known: Secrets) -> None:
    """Registered, consented to, served, renewed, caught with an old refresh token."""
    base = up.ready["mcp"].removesuffix("/mcp")
    made = {"client_name": "an app", "redirect_uris": [BACK], "token_endpoint_auth_method": "none"}
    client = http.post(f"{base}/register", json=made).json()["client_id"]
    known["verifier"], known["state"] = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
    digest = hashlib.sha256(known["verifier"].encode()).digest()
    asked = {
        "client_id": client,
        "redirect_uri": BACK,
        "response_type": "code",
        "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
        "code_challenge_method": "S256",
        "state": known["state"],
        "resource": up.ready["mcp"],
    }
    page = http.get(f"{base}/authorize", params=asked, follow_redirects=True)
    hidden = re.search(r'name="request" value="([^"]+)"', page.text)
    assert hidden is not None, page.text
    known["consent code"] = owner.json("code")["code"]
    form = {"request": html.unescape(hidden[1]), "code": known["consent code"], "decision": "allow"}
    answer = http.post(f"{base}/consent", data=form)
    assert answer.status_code == 303, answer.text
    known["authorization code"] = parse_qs(urlsplit(answer.headers["location"]).query)["code"][0]
    exchange = {
        "grant_type": "authorization_code",
        "client_id": client,
        "code": known["authorization code"],
        "redirect_uri": BACK,
        "code_verifier": known["verifier"],
        "resource": up.ready["mcp"],
    }
    tokens = http.post(f"{base}/token", data=exchange).json()
    known["access token"], known["refresh token"] = tokens["access_token"], tokens["refresh_token"]
    renew = {"grant_type": "refresh_token", "client_id": client, "refresh_token": known["refresh token"]}
    tokens = http.post(f"{base}/token", data=renew).json()
    known["access token, new"], known["refresh token, new"] = tokens["access_token"], tokens["refresh_token"]
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "sessions", "arguments": {}},
    }
    for status, field in ((200, ""), (401, "x")):
        headers = {"Authorization": f"Bearer {known['access token, new']}{field}"}
        assert http.post(up.ready["mcp"], json=call, headers=headers).status_code == status
    assert http.post(f"{base}/token", data=renew).status_code == 400


def _dashboard(owner: Home, up: Process, http: httpx2.Client, known: Secrets) -> None:
    """A link opens it; each page and a wrong code."""
    address, _, code = owner.json("dashboard")["link"].partition("#")
    known["login code"] = code
    answer = http.post(address, data={"code": code})
    assert answer.status_code == 303
    known["cookie"] = answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
    front = http.get(up.ready["dashboard"])
    for page in sorted(set(re.findall(r'<a href="(/dashboard/[a-z]+)"', front.text))):
        shown = http.get(str(httpx2.URL(up.ready["dashboard"]).join(page)))
        assert shown.status_code == 200
    token = re.search(r'name="token" value="([^"]+)"', front.text + shown.text)
    known["form's token"] = known["cookie"] if token is None else token[1]
    assert http.post(address, data={"code": code}).status_code == 403


async def _program(owner: Home, chat: Any, known: Secrets) -> None:
    """A program asks the model `chappie`; ChatGPT answers."""
    said: list[httpx2.Response] = []
    with owner.started("model", "--json", "--port", "0", *TALKATIVE) as model:
        url = model.line()["url"].removesuffix("/v1") + "/v1/chat/completions"
        key = (owner.state / "model-key").read_text(encoding="utf-8").strip()
        known["wrong model key"] = secrets.token_urlsafe(32)

        def ask(given: str) -> None:
            body = {"model": "chappie", "messages": [{"role": "user", "content": "hello"}], "stream": False}
            headers = {"Authorization": f"Bearer {given}", "user-agent": "pi/1.6.0", "session_id": "its-own"}
            with httpx2.Client(trust_env=False, timeout=PATIENCE) as http:
                said.append(http.post(url, json=body, headers=headers))

        await anyio.to_thread.run_sync(ask, known["wrong model key"])
        assert said.pop().status_code == 403
        asking = threading.Thread(target=ask, args=(key,))
        asking.start()
        session = await anyio.to_thread.run_sync(_of_program, owner)
        head, _ = await chat.tool("chat", sessionId=session, text="a greeting")
        assert head["status"] == "done", head
        await anyio.to_thread.run_sync(asking.join, PATIENCE)
    assert "a greeting" in said[0].text


def _of_program(owner: Home) -> str:
    found: list[str] = []

    def look() -> bool:
        found[:] = [row["id"] for row in owner.json("sessions")["sessions"] if row["agent"] != "builtin"]
        return bool(found)

    until(look, "the program has a session")
    return found[0]


async def _functions(owner: Home, room: Path, session: str, known: Secrets, told: list[str]) -> None:
    """A conversation in which the model calls a local function."""
    flow = Flow([[Call("read", {"path": "a.txt"})], [Say("It says one.")]])
    arguments = ("--native", "--session", session, *TALKATIVE)
    done = await flow_run(owner, room, flow, *arguments, "what does a.txt say?")
    assert done.returncode == 0, done.stderr
    assert not flow.refused
    known |= {"flow's header": AUTHORIZATION, "flow's word": "never to be shown"}
    known |= {"flow's conduit": "conduit-", "flow's challenge": "challenge-"}  # as they begin
    told.append(done.stdout + done.stderr)


def _guesses(up: Process, http: httpx2.Client, known: Secrets) -> None:
    known["guess"] = secrets.token_urlsafe(24)
    for headers in ({"Authorization": f"Bearer {known['guess']}"}, {"X-Chappie-Key": known["guess"]}):
        answer = http.post(f"{up.ready['mcp']}?token={known['guess']}", headers=headers, json={})
        assert answer.status_code == 401
        assert known["guess"] not in answer.text


def _nowhere(homes: list[Home], known: Secrets, told: list[str]) -> None:
    assert all(len(value) >= 8 for value in known.values()), known
    found = [
        f"{path.relative_to(home.root.parent)} holds the {name}"
        for home in homes
        for path in home.root.rglob("*")
        if path.is_file() and not path.is_symlink() and path.name not in KEPT
        for name, value in known.items()
        if value.encode() in path.read_bytes()
    ]
    assert found == []
    assert [name for name, value in known.items() if any(value in text for text in told)] == []


def _logs(home: Home) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in home.root.glob("stderr-*")]
