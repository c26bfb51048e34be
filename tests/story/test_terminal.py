"""`up` and `agent` in front of a person: what is shown, what is typed, and how an agent joins over a port."""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.story.bridge import PATIENCE, Home, until

PORTS = ("--http", "127.0.0.1:0", "--link", "127.0.0.1:0")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


class Screen:
    """The other side of a terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = ""

    def until(self, text: str) -> str:
        """What was shown, up to and with `text`."""
        end = time.monotonic() + PATIENCE
        while text not in self._seen:
            ready, _, _ = select.select([self._descriptor], [], [], max(0, end - time.monotonic()))
            assert ready, f"not shown: {text!r}; but {self._seen!r}"
            self._seen += os.read(self._descriptor, 65536).decode("utf-8", "replace")
        before, _, self._seen = self._seen.partition(text)
        return before + text

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())


@contextmanager
def terminal(home: Home, *arguments: str) -> Generator[tuple[Screen, "subprocess.Popen[bytes]"]]:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        home.argv(*arguments),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=home.environment,
        cwd=home.work,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Screen(ours), process
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        for pid in home.processes():
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("where", ["--in-process", ""])
def test_up_shows_what_happens_and_takes_what_is_typed(home: Home, where: str) -> None:
    with terminal(home, "up", *PORTS, *([where] if where else [])) as (screen, process):
        told = screen.until("Ctrl-C stops all of it.")
        assert "ready" in told
        assert "/mcp" in told
        assert str(home.state / "install-secret") in told, "the tunnel's profile names the secret's file"
        (row,) = home.json("sessions")["sessions"]
        assert home.run("call", row["id"], "bash", "command=echo seen").returncode == 0
        assert "bash" in screen.until("exit 0")
        screen.type("good morning\n")
        until(lambda: "good morning" in home.run("history", row["id"]).stdout, "it stands in the transcript")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        assert not home.processes()


def test_an_approval_is_given_on_the_terminal(home: Home) -> None:
    (home.root / "config.toml").write_text('rules = [{tool = "bash", decision = "ask"}]\n', encoding="utf-8")
    config = ("--config", str(home.root / "config.toml"))
    with terminal(home, "up", *PORTS, *config) as (screen, _):
        screen.until("Ctrl-C stops all of it.")
        (row,) = home.json("sessions")["sessions"]
        begun = home.json("call", row["id"], "bash", "command=echo allowed", "--wait", "1")
        assert begun["status"] == "asking"
        assert begun["needs"][0]["kind"] == "approval"
        screen.until("asks for your approval")
        screen.type("y\n")
        done = home.json("call", "--operation", begun["operation"])
        assert done["status"] == "done"
        assert "allowed" in done["results"][0]["content"][0]["text"]


def test_without_a_terminal_what_needs_approval_waits_for_the_owner(home: Home) -> None:
    (home.root / "config.toml").write_text('rules = [{tool = "bash", decision = "ask"}]\n', encoding="utf-8")
    with home.up("--config", str(home.root / "config.toml")) as running:
        begun = home.json("call", running.ready["session"], "bash", "command=true", "--wait", "1")
        assert (begun["status"], begun["needs"][0]["kind"]) == ("asking", "approval")


def test_an_agent_joins_over_the_port_with_its_token(home: Home) -> None:
    with home.started("serve", "--json", *PORTS) as broker:
        broker.ready = broker.line()
        token = (home.state / "link-token").read_text(encoding="utf-8")
        join = ("agent", "--json", "--connect", broker.ready["link"])
        refused = home.run(*join)
        assert refused.returncode == 1
        assert "CHAPPIE_TOKEN" in json.loads(refused.stdout)["error"]["message"]
        home.environment["CHAPPIE_TOKEN"] = "x" * 43
        refused = home.run(*join)
        assert refused.returncode == 1
        assert json.loads(refused.stdout)["error"]["code"] == "forbidden"
        home.environment["CHAPPIE_TOKEN"] = token
        with home.started(*join) as agent:
            session = agent.line()["session"]
            assert [row["id"] for row in home.json("sessions")["sessions"]] == [session]
            shown = home.json("call", session, "bash", "command=env")["results"][0]["content"][0]["text"]
            assert token not in shown, "tools do not inherit the token"
            assert token.encode() not in Path(f"/proc/{agent.pid}/cmdline").read_bytes()
            assert agent.stop(signal.SIGTERM) == (0, "")
        assert broker.stop(signal.SIGTERM) == (0, "")


def test_an_agent_goes_on_where_it_was_unless_told_otherwise(home: Home) -> None:
    """B34 B35: the session of a directory is its own; a new one is a new id."""
    with home.up("--no-agent"):
        sessions = []
        for arguments in ((), (), ("--new",)):
            with home.started("agent", "--json", *arguments) as agent:
                sessions.append(agent.line()["session"])
                agent.stop(signal.SIGINT)
        assert sessions[0] == sessions[1]
        assert sessions[2] not in sessions[:2]
        rows = {row["id"]: row["status"] for row in home.json("sessions")["sessions"]}
        assert rows == dict.fromkeys(sessions, "offline")
