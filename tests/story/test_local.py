"""Agents working with agents: two built-in agents, through `local` and as native tools."""

import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from tests.story.bridge import Home, Process

pytestmark = pytest.mark.anyio

CONFIG = "local_tools = true\ncooldown = 0\n"


class Pair:
    """A broker and two agents: `near` works in `work`, `far` in `far`."""

    def __init__(self, home: Home, near: str, far: str, other: Path) -> None:
        self.home, self.near, self.far, self.other = home, near, far, other

    @asynccontextmanager
    async def local(
        self, session: str | None, *arguments: str, mode: str = "legacy"
    ) -> AsyncIterator["Local"]:
        command, *rest = self.home.argv("local", *arguments)
        environment = dict(self.home.environment)
        if session is not None:
            environment["CHAPPIE_SESSION"] = session
        server = StdioServerParameters(command=command, args=rest, env=environment, cwd=self.home.root)
        async with Client(server, mode=mode) as client:
            yield Local(client)


class Local:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def names(self) -> list[str]:
        return [tool.name for tool in (await self.client.list_tools()).tools]

    async def tool(self, name: str, **arguments: Any) -> tuple[dict[str, Any], list[str], bool]:
        """The head, the texts after it, and whether it is an error."""
        result = await self.client.call_tool(name, arguments)
        texts = [block.text for block in result.content if block.type == "text"]
        return json.loads(texts[0]), texts[1:], bool(result.is_error)

    async def refused(self, name: str, **arguments: Any) -> dict[str, Any]:
        head, texts, is_error = await self.tool(name, **arguments)
        assert is_error, (head, texts)
        found: dict[str, Any] = head["error"] if "error" in head else json.loads(texts[0])["error"]
        return found


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / ".config" / "chappie-bridge").mkdir(parents=True)
    (tmp_path / ".config" / "chappie-bridge" / "config.toml").write_text(CONFIG, encoding="utf-8")
    return Home(tmp_path)


@contextmanager
def started(home: Home, name: str, *more: str) -> Iterator[tuple[Process, str, Path]]:
    where = home.root / name
    where.mkdir(exist_ok=True)
    with home.started("agent", "--json", "--directory", str(where), "--name", name, *more) as process:
        yield process, process.line()["session"], where


@contextmanager
def pair(home: Home, far: str = "far") -> Iterator[Pair]:
    with (
        home.up() as running,
        started(home, far) as (_, session, where),
    ):
        yield Pair(home, running.ready["session"], session, where)


def bash(command: str) -> list[dict[str, Any]]:
    return [{"name": "bash", "arguments": {"command": command}}]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_an_agent_discovers_reads_calls_chats_follows_and_moves_files(home: Home, mode: str) -> None:
    with pair(home) as two:
        async with two.local(two.near, mode=mode) as local:
            assert await local.names() == [
                "sessions", "remote_tools", "remote_call", "remote_chat", "history", "transfer",
            ]  # fmt: skip
            found, _, _ = await local.tool("sessions")
            assert found["self"] == two.near
            assert {row["id"] for row in found["sessions"]} == {two.near, two.far}

            about, _, _ = await local.tool("remote_tools", sessionId=two.far, names=["bash", "nothing"])
            assert [tool["name"] for tool in about["tools"]] == ["bash"]
            assert about["unknown"] == ["nothing"]

            head, texts, is_error = await local.tool("remote_call", sessionId=two.far, calls=bash("pwd"))
            assert (head["status"], head["sessionId"], is_error) == ("done", two.far, False)
            assert str(two.other) in "".join(texts)

            _, entries, _ = await local.tool("history", sessionId=two.far)
            newest = json.loads([text for text in entries if text.startswith('{"entry"')][-1])["entry"]
            head, _, _ = await local.tool("remote_chat", sessionId=two.far, text="built\n\x1b[2Jwell")
            assert head["status"] == "done"
            _, entries, _ = await local.tool("history", sessionId=two.far, after=newest, wait=True)
            said = next(text for text in entries if text.startswith("Message from session"))
            assert said.splitlines()[1:] == ["> built", "> \\x1b[2Jwell"]
            assert "\x1b" not in said

            payload = b"artefact" * 40_000
            (two.other / "out.bin").write_bytes(payload)
            head, texts, is_error = await local.tool(
                "transfer", paths=["got.bin"], **{"from": {"sessionId": two.far, "paths": ["out.bin"]}}
            )
            assert (head["status"], is_error) == ("done", False), texts
            assert (home.work / "got.bin").read_bytes() == payload
            head, texts, is_error = await local.tool(
                "transfer", paths=["got.bin"], to={"sessionId": two.far, "paths": ["back/again.bin"]}
            )
            assert (two.other / "back" / "again.bin").read_bytes() == payload
        assert home.json("sessions")["sessions"][0]["binding_count"] == 0


async def test_only_transfer_is_offered_unless_the_owner_says_so(home: Home) -> None:
    (home.root / ".config" / "chappie-bridge" / "config.toml").write_text("", encoding="utf-8")
    with pair(home) as two:
        async with two.local(two.near) as local:
            assert await local.names() == ["transfer"]
            refused = await local.refused("remote_call", sessionId=two.far, calls=bash("pwd"))
            assert refused["code"] == "unsupported"


async def test_three_megabytes_and_sixty_come_whole(home: Home) -> None:
    with pair(home) as two:
        big = "".join(f"{number:07}\n" for number in range(400_000))
        (two.other / "big.txt").write_text(big, encoding="utf-8")
        with (two.other / "file.bin").open("wb") as file:
            block = hashlib.sha256(b"block").digest() * 32_768
            for _ in range(60):
                file.write(block)
        async with two.local(two.near) as local:
            _, texts, is_error = await local.tool("remote_call", sessionId=two.far, calls=bash("cat big.txt"))
            assert not is_error
            assert big in texts
            head, texts, _ = await local.tool(
                "transfer",
                paths=["copy.bin"],
                **{"from": {"sessionId": two.far, "paths": ["file.bin"]}},
                wait=300,
            )
            assert head["status"] == "done", texts
        assert (home.work / "copy.bin").read_bytes() == (two.other / "file.bin").read_bytes()


async def test_calls_that_would_wait_for_themselves_are_refused_with_the_reason(home: Home) -> None:
    with pair(home) as two:
        async with two.local(two.near) as local:
            itself = await local.refused("remote_call", sessionId=two.near, calls=bash("pwd"))
            assert (itself["code"], itself["executed"]) == ("bad_arguments", "no")
            assert "itself" in itself["message"]

            back = {"sessionId": two.near, "calls": bash("pwd")}
            calls = [{"name": "remote_call", "arguments": back}]
            _, texts, is_error = await local.tool("remote_call", sessionId=two.far, calls=calls)
            assert is_error
            assert f"{two.near} → {two.far} → {two.near}" in "".join(texts)

            nobody = await local.refused("remote_call", sessionId="s_nobody", calls=bash("pwd"))
            assert nobody["code"] == "unknown_session"
            wrong = [{"name": "no_such_tool", "arguments": {}}]
            unknown = await local.refused("remote_call", sessionId=two.far, calls=wrong)
            assert unknown["executed"] == "no"
            misspelt = await local.refused("remote_call", sesionId=two.far, calls=bash("pwd"))
            assert "sessionId" in misspelt["message"]


async def test_a_target_that_is_gone_is_said_to_be_offline(home: Home) -> None:
    with home.up() as running:
        with started(home, "far") as (_, far, _where):
            pass
        two = Pair(home, running.ready["session"], far, home.root)
        async with two.local(two.near) as local:
            error = await local.refused("remote_call", sessionId=far, calls=bash("pwd"))
            assert (error["code"], error["executed"]) == ("session_offline", "no")


async def test_the_built_in_agent_has_the_same_tools_itself(home: Home) -> None:
    with pair(home) as two:
        names = [tool["name"] for tool in two.home.json("call", two.near, "bash", "command=true")["results"]]
        assert names == ["bash"]
        (two.other / "out.bin").write_bytes(b"artefact")
        fetch = {"paths": ["in.bin"], "from": {"sessionId": two.far, "paths": ["out.bin"]}}
        batch = [
            {"name": "sessions", "arguments": {}},
            {"name": "remote_call", "arguments": {"sessionId": two.far, "calls": bash("pwd")}},
            {"name": "transfer", "arguments": fetch},
        ]
        file = home.root / "calls.json"
        file.write_text(json.dumps(batch), encoding="utf-8")
        done = home.json("call", two.near, "--json-calls", str(file))
        said = [result["content"][0]["text"] for result in done["results"]]
        assert json.loads(said[0])["self"] == two.near
        assert [result["is_error"] for result in done["results"]] == [False] * 3, said
        assert (home.work / "in.bin").read_bytes() == b"artefact"


async def test_the_program_under_an_agent_is_known_by_its_process(home: Home) -> None:
    with pair(home) as two:
        command, *rest = home.argv("local")
        request = {
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "sessions", "arguments": {}},
        }  # fmt: skip
        line = json.dumps(request).replace("'", "")
        shell = f"printf '%s\\n' '{line}' | {command} {' '.join(rest)}"
        done = home.json("call", two.far, "bash", f"command={shell}")
        answer = json.loads(done["results"][0]["content"][0]["text"].splitlines()[0])
        assert json.loads(answer["result"]["content"][0]["text"])["self"] == two.far
