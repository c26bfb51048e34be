"""`up`, from an empty state directory to its end, as real processes."""

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.story.bridge import Home, Process, commands_with, until

pytestmark = pytest.mark.anyio

ERAS = ("legacy", "2026-07-28")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Process]]:
    """One `up` for the tests that leave it as it was."""
    home = Home(tmp_path_factory.mktemp("shared"))
    (home.work / "a.txt").write_text("hello\n", encoding="utf-8")
    with home.up("--log-level", "debug") as running:
        yield home, running


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_of_either_era_runs_a_tool(shared: tuple[Home, Process], era: str) -> None:
    home, running = shared
    async with running.client(era, f"conversation {era}") as chat:
        opened, _ = await chat.tool("init", sessionId=running.ready["session"])
        assert opened["initialization"]["sessionId"] == running.ready["session"]
        head, blocks = await chat.tool("call", calls=[{"name": "read", "arguments": {"path": "a.txt"}}])
        assert (head["status"], head["cwd"]) == ("done", str(home.work))
        assert any("hello" in block for block in blocks)


async def test_the_self_check_leaves_no_trace_in_the_registry(home: Home) -> None:
    """A new conversation is no observer, and gets the session that no one is bound to."""
    with home.up() as running:
        listed = home.json("sessions")["sessions"]
        assert [(row["id"], row["binding_count"]) for row in listed] == [(running.ready["session"], 0)]
        async with running.client("2026-07-28", "the first") as chat:
            opened, _ = await chat.tool("init")
        assert opened["selection"] == "automatic"
        assert not opened["initialization"]["observer"]


async def test_without_the_secret_nobody_is_let_in(shared: tuple[Home, Process]) -> None:
    """S25: the credential is needed on loopback too, and the answer says which header is missing."""
    _, running = shared
    async with httpx2.AsyncClient(trust_env=False) as http:
        answer = await http.post(
            running.ready["mcp"], json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        )
    assert answer.status_code == 401
    assert "X-Chappie-Key" in answer.text


def test_what_it_keeps_is_for_its_user_alone(shared: tuple[Home, Process]) -> None:
    home, _ = shared
    assert stat.S_IMODE(home.state.stat().st_mode) == 0o700
    for path in home.state.rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_the_doctor_finds_nothing_at_fault(shared: tuple[Home, Process]) -> None:
    home, _ = shared
    findings = {finding["name"]: finding["verdict"] for finding in home.json("doctor")}
    assert findings["MCP over HTTP"] == "ok"
    assert findings["broker"] == "ok"
    assert findings["registry"] == "ok"
    assert "fault" not in findings.values()


def test_the_doctor_finds_a_door_that_is_open_against_the_configuration(tmp_path: Path) -> None:
    """S25: it tries, and does not believe what is written."""
    home = Home(tmp_path)
    home.environment["CHAPPIE_AUTH"] = "none"
    with home.up("--no-agent"):
        del home.environment["CHAPPIE_AUTH"]
        done = home.run("doctor", "--json")
        (door,) = [found for found in json.loads(done.stdout) if found["name"] == "MCP over HTTP"]
    assert (done.returncode, door["verdict"]) == (1, "fault")
    assert "without a credential" in door["said"]


def test_the_logs_hold_no_secret(shared: tuple[Home, Process]) -> None:
    """S21: at the most talkative level, after all that the other tests did."""
    home, running = shared
    for name in ("install-secret", "link-token"):
        assert (home.state / name).read_text(encoding="utf-8") not in running.stderr


def test_two_on_one_state_directory_have_one_winner(shared: tuple[Home, Process]) -> None:
    """B30: the loser says who won and how to go on, and leaves the winner alone."""
    home, running = shared
    done = home.run("up", "--http", "127.0.0.1:0", "--link", "127.0.0.1:0", "--json")
    assert done.returncode == 1
    assert str(running.pid) in json.loads(done.stdout)["error"]["message"]
    assert home.json("sessions")["sessions"]


def test_a_port_that_is_taken_is_named(home: Home, shared: tuple[Home, Process]) -> None:
    _, running = shared
    taken = running.ready["mcp"].removeprefix("http://").removesuffix("/mcp")
    done = home.run("up", "--http", taken, "--link", "127.0.0.1:0")
    assert done.returncode == 1
    assert f"cannot listen on {taken}" in done.stderr
    until(lambda: not home.processes(), "its agent has ended too")


def test_it_refuses_to_listen_off_loopback_without_tls(home: Home) -> None:
    """S18: the link there speaks TLS by itself ; without its certificate nothing starts."""
    done = home.run("serve", "--http", "0.0.0.0:0", "--link", "127.0.0.1:0")
    assert done.returncode == 1
    assert "without TLS" in done.stderr
    home.environment["CHAPPIE_CERTIFICATE"] = str(home.root / "none.pem")
    done = home.run("serve", "--http", "127.0.0.1:0", "--link", "0.0.0.0:0")
    assert done.returncode == 2
    assert "certificate" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_all_of_it(home: Home, number: signal.Signals) -> None:
    """B24 B27: also what a tool started and what ignores TERM; stdout held one line."""
    mark = str(home.root / "mark")
    with home.up() as running:
        async with running.client("2026-07-28", "c") as chat:
            await chat.tool("init", sessionId=running.ready["session"])
            script = f"trap '' TERM; sh -c 'while :; do sleep 1; done' {mark}"
            head, _ = await chat.tool(
                "call", calls=[{"name": "bash", "arguments": {"command": script}}], wait=0
            )
            assert head["status"] == "running"
        until(lambda: bool(commands_with(mark)), "the tool's program runs")
        assert running.stop(number) == (0, "")
        assert not home.processes()
        assert not commands_with(mark)


async def test_a_kill_costs_no_binding(home: Home) -> None:
    """B01 B45: after `kill -9` its agent leaves by itself; a restart finds session and binding again."""
    with home.up() as running:
        session = running.ready["session"]
        mark = str(home.root / "mark")
        async with running.client("2026-07-28", "mine") as chat:
            await chat.tool("init")
            calls = [{"name": "bash", "arguments": {"command": f"sh -c 'sleep 600' {mark}"}}]
            await chat.tool("call", calls=calls, wait=0)
        until(lambda: bool(commands_with(mark)), "the tool's program runs")
        running.stop(signal.SIGKILL)
        until(lambda: not home.processes(), "the agent noticed that its parent is gone")
        assert not commands_with(mark)
    with home.up() as running:
        assert running.ready["session"] == session
        async with running.client("legacy", "mine") as chat:
            head, blocks = await chat.tool(
                "call", calls=[{"name": "bash", "arguments": {"command": "echo again"}}]
            )
            assert head["sessionId"] == session
            assert "again" in "".join(blocks)


async def test_an_agent_that_crashed_comes_back(home: Home) -> None:
    with home.up() as running:
        (child,) = (pid for pid in home.processes() if pid != running.pid)
        os.kill(child, signal.SIGKILL)
        until(lambda: any(pid not in (running.pid, child) for pid in home.processes()), "another one runs")
        async with running.client("2026-07-28", "c") as chat:
            opened, _ = await chat.tool("init", sessionId=running.ready["session"])
            assert opened["initialization"]["sessionId"] == running.ready["session"]
        assert "starts again" in running.stderr


async def test_the_agent_may_live_in_the_same_process(home: Home) -> None:
    with home.up("--in-process") as running:
        assert home.processes() == [running.pid]
        async with running.client("2026-07-28", "c") as chat:
            await chat.tool("init")
            head, _ = await chat.tool("call", calls=[{"name": "ls", "arguments": {}}])
            assert head["status"] == "done"
        assert running.stop(signal.SIGINT) == (0, "")
