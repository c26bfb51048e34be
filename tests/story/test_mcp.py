"""`mcp`: stdio clients on a broker that outlives them, as real processes."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from tests.story.bridge import PATIENCE, Chat, Home, until

pytestmark = pytest.mark.anyio

ERAS = ("legacy", "2026-07-28")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def stdio(home: Home) -> StdioServerParameters:
    command, *arguments = home.argv("mcp")
    return StdioServerParameters(command=command, args=arguments, env=home.environment, cwd=home.work)


@pytest.mark.parametrize("era", ERAS)
async def test_it_joins_the_running_broker(home: Home, era: str) -> None:
    with home.up() as running:
        async with Client(stdio(home), mode=era) as mcp:
            chat = Chat(mcp, "")
            opened, _ = await chat.tool("init")
            assert opened["initialization"]["sessionId"] == running.ready["session"]
            head, blocks = await chat.tool("call", calls=[{"name": "bash", "arguments": {"command": "pwd"}}])
            assert head["status"] == "done"
            assert str(home.work) in "".join(blocks)


def test_it_starts_a_broker_that_stays_when_it_leaves(home: Home) -> None:
    """B32: the end of stdin ends `mcp`, not the broker; an agent of this machine joins it without a port."""
    with home.started("agent", "--json", "--directory", str(home.work)) as agent:
        client = subprocess.Popen(
            home.argv("mcp"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=home.environment,
            cwd=home.work,
        )
        session = agent.line()["session"]
        request = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "sessions", "arguments": {}},
        }
        said, _ = client.communicate(json.dumps(request).encode() + b"\n", timeout=PATIENCE)
        assert client.returncode == 0
        answers = [json.loads(line) for line in said.splitlines()]
        assert [answer["id"] for answer in answers] == [1], "nothing but MCP on stdout"
        (broker,) = (pid for pid in home.processes() if pid != agent.pid)
        assert [row["id"] for row in home.json("sessions")["sessions"]] == [session]
        assert agent.stop(signal.SIGTERM) == (0, "")
        os.kill(broker, signal.SIGTERM)
        until(lambda: not home.processes(), "the broker left")


def test_a_request_that_a_stdio_client_cancels_stops_at_its_device(home: Home) -> None:
    """B49 B50: the notice overtakes the call; what had ended comes with the next answer."""
    mark = home.root / "began"
    commands = ("echo finished", f"echo $$ > {mark}; sleep 600")
    calls = [{"name": "bash", "arguments": {"command": command}} for command in commands]
    with home.up() as running:
        client = subprocess.Popen(
            home.argv("mcp"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=home.environment,
            cwd=home.work,
        )
        assert client.stdin is not None
        with client.stdin:
            session = running.ready["session"]
            client.stdin.write(line(1, "call", {"calls": calls, "sessionId": session}))
            client.stdin.flush()
            until(lambda: mark.exists() and mark.stat().st_size > 0, "the second command runs")
            cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
            client.stdin.write(json.dumps(cancelled).encode() + b"\n")
            client.stdin.flush()
            shell = int(mark.read_text(encoding="utf-8"))
            until(lambda: not Path(f"/proc/{shell}").exists(), "the command is gone")
            until(lambda: ended(home, session), "the broker knows")
            after = [{"name": "bash", "arguments": {"command": "true"}}]
            client.stdin.write(line(2, "call", {"calls": after}))
            client.stdin.flush()
            assert client.stdout is not None
            answer = json.loads(client.stdout.readline())
        client.stdout.close()
        client.wait(PATIENCE)
    texts = [block["text"] for block in answer["result"]["content"]]
    (note,) = [json.loads(text) for text in texts if "deferredResult" in text]
    assert (answer["id"], note["status"]) == (2, "cancelled")
    assert "finished\n" in texts


def line(number: int, tool: str, arguments: dict[str, object]) -> bytes:
    params = {"name": tool, "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    return json.dumps(message).encode() + b"\n"


def ended(home: Home, session: str) -> bool:
    return all(row["status"] == "ready" for row in home.json("sessions")["sessions"] if row["id"] == session)


def test_an_unused_broker_leaves(home: Home) -> None:
    with home.started("serve", "--no-ports", "--idle-exit", "1", "--json") as broker:
        assert broker.line()["mcp"] is None
        assert broker.process.wait(PATIENCE) == 0


async def test_it_starts_another_broker_when_the_first_dies(home: Home) -> None:
    async with Client(stdio(home), mode="2026-07-28") as mcp:
        chat = Chat(mcp, "")
        await chat.tool("sessions")
        (broker,) = brokers(home)
        os.kill(broker, signal.SIGKILL)
        until(lambda: bool(set(brokers(home)) - {broker}), "another broker runs")
        head, _ = await chat.tool("sessions")
        assert head["sessions"] == []
    for pid in home.processes():
        os.kill(pid, signal.SIGTERM)
    until(lambda: not home.processes(), "the broker left")


def brokers(home: Home) -> list[int]:
    return [
        pid for pid in home.processes() if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    ]
