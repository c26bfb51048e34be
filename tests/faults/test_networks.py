"""Broker and two devices, each in a network of its own: cables are pulled, addresses change."""

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.required import required
from tests.story.bridge import Home, Process, until

LISTENS = """
import selectors, socket, sys
end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
end.bind((sys.argv[1], 0))
print("listening", flush=True)
with selectors.DefaultSelector() as selector, open(sys.argv[2], "wb") as heard:
    selector.register(end, selectors.EVENT_READ, end)
    selector.register(sys.stdin, selectors.EVENT_READ)
    while all(key.data is not None for key, _ in selector.select()):
        heard.write(end.recv(65536))
"""
"""Writes down every packet of an interface until its standard input ends."""

CONTENT = "what only the devices may know "


class Network:
    """A network namespace, as long as the process lives that holds it."""

    def __init__(self, holder: "subprocess.Popen[str]") -> None:
        self.pid = holder.pid
        self.inside = ("nsenter", "-t", str(self.pid), "-U", "-n", "--preserve-credentials")

    def ip(self, *arguments: str) -> None:
        subprocess.run([*self.inside, "ip", *arguments], check=True, capture_output=True)


class Machine(Home):
    """A home whose commands run in a network."""

    def __init__(self, root: Path, network: Network) -> None:
        root.mkdir()
        super().__init__(root)
        self.network = network

    def argv(self, *arguments: str) -> list[str]:
        return [*self.network.inside, *super().argv(*arguments)]

    def online(self, session: str) -> bool:
        return any(
            each["id"] == session and each["status"] not in ("adrift", "offline")
            for each in self.json("sessions")["sessions"]
        )

    def reads(self, session: str, path: str) -> str:
        return self.run("call", session, "read", f"path={path}", "--json").stdout


@contextmanager
def held(*argv: str) -> Generator["subprocess.Popen[str]"]:
    """A process that says one line when it is ready, and ends with its standard input."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            required(None, f"{argv[0]} of network namespaces: {process.communicate()[1].strip()}")
        yield process
    finally:
        process.communicate(timeout=60)


@contextmanager
def networks() -> Generator[tuple[Network, Network, Network]]:
    """The broker's, and one for each of two devices at the end of its own cable."""
    waiting = ("sh", "-c", "echo; exec cat")
    with ExitStack() as stack:
        try:
            broker = Network(stack.enter_context(held("unshare", "-rn", *waiting)))
            broker.ip("link", "set", "lo", "up")
            devices = []
            for number in (1, 2):
                device = Network(stack.enter_context(held(*broker.inside, "unshare", "-n", *waiting)))
                cable, end = f"cable{number}", ("eth0", "netns", str(device.pid))
                broker.ip("link", "add", cable, "type", "veth", "peer", "name", *end)
                broker.ip("addr", "add", f"10.9.{number}.1/24", "dev", cable)
                broker.ip("link", "set", cable, "up")
                device.ip("link", "set", "lo", "up")
                device.ip("addr", "add", f"10.9.{number}.2/24", "dev", "eth0")
                device.ip("link", "set", "eth0", "up")
                devices.append(device)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            required(None, f"network namespaces: {error}")
        yield broker, devices[0], devices[1]


def agent(stack: ExitStack, at: Machine) -> tuple[str, Process]:
    process = stack.enter_context(at.started("agent", "--json", "--directory", str(at.work)))
    return process.line()["session"], process


def test_devices_in_networks_of_their_own(tmp_path: Path) -> None:
    """S11 S18: it outlives pulled cables and new addresses; a listener, an impostor, a revoked device get
    nothing."""
    with networks() as (middle, left, right), ExitStack() as stack:
        owner = Machine(tmp_path / "owner", middle)
        laptop, desktop = Machine(tmp_path / "laptop", left), Machine(tmp_path / "desktop", right)
        for number in (1, 2):
            listener = (sys.executable, "-c", LISTENS, f"cable{number}", str(tmp_path / f"heard{number}"))
            stack.enter_context(held(*middle.inside, *listener))
        up = stack.enter_context(
            owner.started("up", "--json", "--no-agent", "--http", "127.0.0.1:0", "--link", "0.0.0.0:0")
        )
        port = int(up.line()["link"].rpartition(":")[2])
        secrets = []
        for number, device in ((1, laptop), (2, desktop)):
            url = f"wss://10.9.{number}.1:{port}"
            line = owner.json("pair", "--name", device.root.name, "--url", url)["line"]
            assert device.run("join", stdin=line + "\n").returncode == 0
            secrets.append(line.split()[1])
            joined = json.loads((device.state / "joined.json").read_text(encoding="utf-8"))
            secrets.append(joined["token"])
        one, _ = agent(stack, laptop)
        two, second = agent(stack, desktop)

        (laptop.work / "letter.txt").write_text(CONTENT * 1000, encoding="utf-8")
        (desktop.work / "answer.txt").write_text(CONTENT, encoding="utf-8")
        assert CONTENT in owner.reads(one, "letter.txt")
        assert CONTENT in owner.reads(two, "answer.txt")
        assert owner.run("copy", f"{one}:letter.txt", f"{two}:copied.txt").returncode == 0
        assert (desktop.work / "copied.txt").read_bytes() == (laptop.work / "letter.txt").read_bytes()

        left.ip("link", "set", "eth0", "down")
        until(lambda: not owner.online(one), "the session whose cable was pulled is offline")
        assert CONTENT in owner.reads(two, "answer.txt")
        left.ip("link", "set", "eth0", "up")
        until(lambda: owner.online(one), "it is back")
        assert CONTENT in owner.reads(one, "letter.txt")

        left.ip("addr", "del", "10.9.1.2/24", "dev", "eth0")
        left.ip("addr", "add", "10.9.1.3/24", "dev", "eth0")
        assert CONTENT in owner.reads(one, "letter.txt")

        assert owner.run("revoke", "desktop").returncode == 0
        assert not owner.online(two)  # at once: nothing was waited for
        listed = {each["name"]: each for each in owner.json("devices")["devices"]}
        assert listed["desktop"]["links"] == 0
        assert second.process.wait(timeout=60) != 0
        assert owner.online(one)

        line = owner.json("pair", "--url", f"wss://10.9.1.1:{port}")["line"]
        left.ip("addr", "add", "10.9.1.1/32", "dev", "lo")  # whoever is asked there is not the broker
        impostor = Machine(tmp_path / "impostor", left)
        ports = ("--http", "127.0.0.1:0", "--link", f"10.9.1.1:{port}")
        stack.enter_context(impostor.started("up", "--json", "--no-agent", *ports)).line()
        refused = laptop.run("join", "--replace", stdin=line + "\n")
        assert refused.returncode != 0
        assert "another certificate" in refused.stderr
        secrets.append(line.split()[1])

    for number in (1, 2):
        heard = (tmp_path / f"heard{number}").read_bytes()
        assert len(heard) > len(CONTENT) * 1000
        for secret in (CONTENT, "letter.txt", *secrets):
            assert secret.encode() not in heard
