"""Several machines: paired, linked over TLS, revoked.  Real processes, a home for each."""

import json
import os
import signal
import socket
import ssl
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from chappie_agents.dial import Dial
from chappie_agents.enrol import new_token, pair

from chappie_bridge.wire.errors import Forbidden
from chappie_bridge.wire.ids import Mint
from chappie_bridge.wire.pairing import Pairing
from tests.peer.link_rig import running
from tests.peer.working import Working
from tests.story.bridge import Home, Process, until

pytestmark = pytest.mark.anyio


def home(root: Path) -> Home:
    root.mkdir()
    return Home(root)


@contextmanager
def broker(at: Home) -> Generator[Process]:
    """Off loopback, so with TLS."""
    ports = ("--http", "127.0.0.1:0", "--link", "0.0.0.0:0")
    with at.started("up", "--json", "--no-agent", *ports) as process:
        process.ready = process.line()
        yield process


def paired(at: Home, device: Home, *, name: str = "") -> dict[str, str]:
    line = at.json("pair", *(("--name", name) if name else ()))["line"]
    done = device.run("join", "--json", stdin=line + "\n")
    assert done.returncode == 0, done.stderr
    assert line.split()[1] not in done.stdout + done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def sessions(at: Home) -> dict[str, bool]:
    return {each["id"]: each["status"] != "offline" for each in at.json("sessions")["sessions"]}


def test_a_device_is_paired_works_and_is_revoked(tmp_path: Path) -> None:
    """S11 S18: one line pairs one device over TLS; a revoked one is cut, and its session stays known."""
    owner, laptop, other = (home(tmp_path / name) for name in ("owner", "laptop", "other"))
    with broker(owner) as up:
        assert up.ready["link"].startswith("wss://0.0.0.0:")
        line = owner.json("pair", "--name", "laptop")["line"]
        url, _, pin = line.split()
        assert url.startswith("wss://")
        assert pin.startswith("sha256:")
        assert laptop.run("join", "--json", stdin=line + "\n").returncode == 0
        kept = laptop.state / "joined.json"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        again = other.run("join", stdin=line + "\n")
        assert again.returncode != 0
        assert "not valid" in again.stderr
        assert not (other.state / "joined.json").exists()
        with laptop.started("agent", "--json", "--directory", str(laptop.work)) as agent:
            session = agent.line()["session"]
            (laptop.work / "hello.txt").write_text("from the laptop\n", encoding="utf-8")
            called = owner.run("call", session, "read", "path=hello.txt", "--json")
            assert "from the laptop" in called.stdout, called.stdout + called.stderr
            listed = {each["name"]: each for each in owner.json("devices")["devices"]}
            assert listed["laptop"]["links"] >= 1

            token = json.loads(kept.read_text(encoding="utf-8"))["token"]
            assert laptop.run("rotate").returncode == 0
            assert json.loads(kept.read_text(encoding="utf-8"))["token"] != token
            until(lambda: sessions(owner).get(session, False), "it is back with its new token")

            assert owner.run("revoke", "laptop").returncode == 0
            assert sessions(owner)[session] is False
            agent.process.wait(timeout=60)
            assert agent.process.stdout is not None
            assert "not known" in agent.process.stdout.read()
        assert owner.run("revoke", "laptop").returncode != 0
        files = [path for path in owner.state.rglob("*") if path.is_file() and not path.is_socket()]
        assert not [path for path in files if token.encode() in path.read_bytes()]
        key = owner.state / "link-key.pem"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert up.stop(signal.SIGTERM)[0] == 0


def test_another_certificate_gets_nothing(tmp_path: Path) -> None:
    """S18: a server with another certificate never hears the code; plain text gets no answer."""
    owner, device = home(tmp_path / "owner"), home(tmp_path / "device")
    with broker(owner) as up:
        port = int(up.ready["link"].rpartition(":")[2])
        url, code, pin = owner.json("pair", "--url", f"wss://127.0.0.1:{port}")["line"].split()
        turned = pin[:-1] + ("0" if pin[-1] != "0" else "1")
        refused = device.run("join", stdin=f"{url} {code} {turned}\n")
        assert refused.returncode != 0
        assert "another certificate" in refused.stderr
        for plain in (f"ws://127.0.0.1:{port} {code} open", f"{url} {code} ca"):
            assert device.run("join", stdin=plain + "\n").returncode != 0
        with socket.create_connection(("127.0.0.1", port), timeout=20) as end:
            end.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            heard = b""
            try:
                while part := end.recv(4096):
                    heard += part
            except ConnectionError:
                pass
            assert b"HTTP" not in heard
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", port), timeout=20) as end, pytest.raises(ssl.SSLError):
            old.wrap_socket(end)
        assert device.run("join", stdin=f"{url} {code} {pin}\n").returncode == 0  # the code was never spent
        own = (owner.state / "link-token").read_text(encoding="utf-8").strip()
        joined = json.loads((device.state / "joined.json").read_text(encoding="utf-8"))
        joined["token"] = own
        descriptor = os.open(device.state / "joined.json", os.O_WRONLY | os.O_TRUNC)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(joined, file)
        ended = device.run("agent", "--json")  # the owner's own token is nobody's off this machine
        assert ended.returncode != 0
        assert "not known" in ended.stdout


async def test_the_live_link_of_a_revoked_device_ends_and_no_other(tmp_path: Path) -> None:
    """S11 S18: while nothing is asked of it; bench/siege_link.py has how soon."""
    owner = home(tmp_path / "owner")
    with broker(owner) as up:
        url = f"wss://127.0.0.1:{up.ready['link'].rpartition(':')[2]}"
        agents, dials = {}, {}
        for name in ("stays", "goes"):
            line, token = Pairing.parse(owner.json("pair", "--name", name, "--url", url)["line"]), new_token()
            pair(line, token, name)
            agents[name], instance = Working(name), Mint().instance()
            dials[name] = Dial(url, agents[name], role="agent", instance=instance, token=token, pin=line.pin)
        async with running(dials["stays"]):
            ended: list[BaseException] = []

            async def run() -> None:
                try:
                    await dials["goes"].run()
                except Forbidden as error:
                    ended.append(error)

            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(run)
                    assert await anyio.to_thread.run_sync(agents["goes"].there.wait, 60)
                    revoked = await anyio.to_thread.run_sync(owner.run, "revoke", "goes")
                    assert revoked.returncode == 0
            assert len(ended) == 1
            assert agents["goes"].gone.is_set()
            assert not agents["stays"].gone.is_set()
            assert sessions(owner) == {"stays": True, "goes": False}
