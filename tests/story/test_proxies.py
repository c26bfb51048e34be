"""MCP, OAuth's metadata and a device's link behind proxies that nobody here wrote, set up by `deploy/proxy`:
one name, one certificate, TLS in front and loopback behind."""

import hashlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.peer.authority import Pem, certify
from tests.required import required
from tests.story.bridge import PATIENCE, Chat, Home, Process, until

pytestmark = pytest.mark.anyio

DEPLOY = Path(__file__).parents[2] / "deploy" / "proxy"

NGINX = """
daemon off; pid nginx.pid; error_log stderr; worker_processes 1; {user}
events {{}}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy;
    fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    include server.conf;
}}
"""


class Place(NamedTuple):
    """Where a proxy is to listen and to lead; `directory` is its own."""

    directory: Path
    pem: Pem
    port: int
    http: str
    link: str


def nginx(place: Place) -> tuple[list[str], dict[str, str]]:
    """Command and further environment."""
    program = required(shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin"), "the program nginx")
    text = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{place.port} ssl;")
    text = text.replace("bridge.example;", "localhost;")
    for name, file in zip(("fullchain.pem", "privkey.pem"), place.pem, strict=True):
        text = text.replace(f"/etc/letsencrypt/live/bridge.example/{name}", str(file))
    (place.directory / "server.conf").write_text(_led(text, place), encoding="utf-8")
    user = "user root;" if os.geteuid() == 0 else ""
    (place.directory / "nginx.conf").write_text(NGINX.format(user=user), encoding="utf-8")
    return [program, "-p", str(place.directory), "-c", "nginx.conf", "-e", "stderr"], {}


def caddy(place: Place) -> tuple[list[str], dict[str, str]]:
    """The same."""
    program = required(shutil.which("caddy"), "the program caddy")
    text = (DEPLOY / "Caddyfile").read_text(encoding="utf-8")
    # What it does by itself where it is in public: a port, and a certificate from an authority.
    tls = f"tls {place.pem.certificate} {place.pem.key}"
    text = text.replace("bridge.example {", f"https://localhost:{place.port} {{\n\t{tls}")
    text = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + _led(text, place)
    (place.directory / "Caddyfile").write_text(text, encoding="utf-8")
    command = [program, "run", "--config", str(place.directory / "Caddyfile"), "--adapter", "caddyfile"]
    home = str(place.directory)
    return command, {"HOME": home, "XDG_DATA_HOME": home, "XDG_CONFIG_HOME": home}


def _led(text: str, place: Place) -> str:
    assert "127.0.0.1:24273" in text
    assert "127.0.0.1:24274" in text
    return text.replace("127.0.0.1:24273", place.http).replace("127.0.0.1:24274", place.link)


PROXIES: dict[str, Callable[[Place], tuple[list[str], dict[str, str]]]] = {"nginx": nginx, "caddy": caddy}


@contextmanager
def proxying(name: str, place: Place) -> Iterator[None]:
    """The proxy, from when it takes connections until it is killed."""
    command, more = PROXIES[name](place)
    with (place.directory / "said").open("ab") as said:
        process = subprocess.Popen(
            command,
            cwd=place.directory,
            env={**os.environ, **more},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            until(lambda: process.poll() is not None or _listens(place.port), f"{name} listens")
            assert process.poll() is None, (place.directory / "said").read_text(encoding="utf-8")
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as end:
        return end.connect_ex(("127.0.0.1", port)) == 0


def _free() -> int:
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return int(end.getsockname()[1])


class Front:
    """A bridge that is known by the name of its proxy, and a device elsewhere that trusts its certificate."""

    def __init__(self, name: str, root: Path, stack: ExitStack) -> None:
        self.name = name
        port = _free()
        self.url = f"https://localhost:{port}"
        directory = root / "proxy"
        for each in (directory, root / "owner", root / "device"):
            each.mkdir()
        pem = certify(directory, "localhost")
        self.trusted = ssl.create_default_context(cafile=str(pem.certificate))
        self.owner, self.device = Home(root / "owner"), Home(root / "device")
        self.owner.environment["CHAPPIE_PUBLIC_URL"] = self.url
        self.owner.environment["CHAPPIE_LINK_URL"] = f"wss://localhost:{port}/link"
        self.device.environment["SSL_CERT_FILE"] = str(pem.certificate)
        self.up: Process = stack.enter_context(self.owner.up("--no-agent"))
        http = self.up.ready["mcp"].removeprefix("http://").removesuffix("/mcp")
        link = self.up.ready["link"].rpartition("/")[2]
        self.place = Place(directory, pem, port, http, link)

    def http(self, **headers: str) -> httpx2.Client:
        return httpx2.Client(verify=self.trusted, headers=headers, timeout=PATIENCE, trust_env=False)


@pytest.fixture(params=PROXIES)
def front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Front]:
    with ExitStack() as stack:
        yield Front(request.param, tmp_path, stack)


async def test_all_that_a_proxy_has_to_pass_on_passes(front: Front) -> None:
    """A chat in both eras, OAuth's metadata, a refusal of each kind; a device that pairs, works, moves a
    file, and comes back when the proxy was killed."""
    with ExitStack() as stack:
        proxy = stack.enter_context(ExitStack())
        proxy.enter_context(proxying(front.name, front.place))
        session = joined(front, stack)
        for mode in ("legacy", "auto"):
            await chatted(front, mode, session)
        refused(front)
        moved(front, session)
        proxy.close()
        until(lambda: front.owner.json("sessions")["sessions"][0]["status"] != "ready", "the link is down")
        stack.enter_context(proxying(front.name, front.place))
        again = ("call", session, "bash", "command=true")
        until(lambda: front.owner.run(*again).returncode == 0, "the link is back")


def joined(front: Front, stack: ExitStack) -> str:
    """A device over the proxied link; its session."""
    line = front.owner.json("pair", "--name", "laptop")["line"]
    assert line.split()[0] == front.url.replace("https:", "wss:") + "/link"
    assert line.split()[2] == "ca"
    done = front.device.run("join", "--json", stdin=line + "\n")
    assert done.returncode == 0, done.stderr
    agent = stack.enter_context(
        front.device.started("agent", "--json", "--directory", str(front.device.work))
    )
    found: str = agent.line()["session"]
    return found


async def chatted(front: Front, mode: str, session: str) -> None:
    headers = front.up.ready["headers"]
    async with (
        httpx2.AsyncClient(verify=front.trusted, headers=headers, timeout=PATIENCE, trust_env=False) as http,
        Client(streamable_http_client(f"{front.url}/mcp", http_client=http), mode=mode) as mcp,
    ):
        chat = Chat(mcp, f"proxied {mode}")
        head, _ = await chat.tool("init", sessionId=session)
        assert head["sessionId"] == session
        calls = [
            {"name": "bash", "arguments": {"command": "sleep 1.5; echo waited"}},
            {"name": "bash", "arguments": {"command": "seq 1 300000"}},
        ]
        head, texts = await chat.tool("call", calls=calls)
        assert head["status"] == "done"
        assert "waited\n" in texts


def refused(front: Front) -> None:
    key = front.up.ready["headers"]
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    with front.http() as http:
        metadata: Any = http.get(f"{front.url}/.well-known/oauth-protected-resource/mcp").json()
        assert metadata["resource"] == f"{front.url}/mcp"
        server: Any = http.get(f"{front.url}/.well-known/oauth-authorization-server").json()
        assert server["issuer"].rstrip("/") == front.url
        nobody = http.post(f"{front.url}/mcp", json=listing)
        assert nobody.status_code == 401
        assert f'resource_metadata="{front.url}/' in nobody.headers["www-authenticate"]
        elsewhere = http.post(
            f"{front.url}/mcp", json=listing, headers={**key, "Origin": "https://evil.example"}
        )
        assert elsewhere.status_code == 403
        json_ = {**key, "Content-Type": "application/json"}
        large = http.post(f"{front.url}/mcp", content=b" " * 5_000_000, headers=json_)
        assert large.status_code == 413
        assert "too_large" in large.text


def moved(front: Front, session: str) -> None:
    data = os.urandom(5_000_000)
    (front.owner.work / "file").write_bytes(data)
    sent = front.owner.json("send", session, str(front.owner.work / "file"), "--to", "there")
    assert sent["files"][0]["sha256"] == hashlib.sha256(data).hexdigest()
    assert (front.device.work / "there").read_bytes() == data
    got = front.owner.json("get", session, "there", "--to", str(front.owner.work / "back"))
    assert json.dumps(got).count(sent["files"][0]["sha256"]) >= 1
    assert (front.owner.work / "back").read_bytes() == data
