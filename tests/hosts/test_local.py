"""A real program as the target of another agent: its tools, its transcript and its files through `local`."""

import json
import signal
from pathlib import Path

import pytest
from anyio import to_thread

from tests.clients.local_client import LocalClient, local_client
from tests.hosts.rig import Served, clean_environment, until, until_status
from tests.hosts.test_hosts import Stage, stage

pytestmark = pytest.mark.anyio


async def test_another_agent_works_in_the_program(tmp_path: Path, name: str) -> None:
    async with stage(tmp_path, name) as on:
        await on.program.prompt("Hello, this is the person.")
        target = await on.joined()
        desk = tmp_path / "desk"
        desk.mkdir()
        arguments = ("agent", "--json", "--state", str(on.bridge.state), "--directory", str(desk))
        caller = Served(*arguments, log=on.bridge.log, home=on.bridge.home)
        known = clean_environment(HOME=str(on.bridge.home))
        try:
            with local_client(on.bridge.state, caller.told["session"], known, desk) as client:
                await to_thread.run_sync(_work, client, on, target, desk)
                await until_status(on.chat, target, "idle")
        finally:
            caller.kill(signal.SIGTERM)


async def test_the_program_itself_fetches_a_file_of_another_session(tmp_path: Path, name: str) -> None:
    """It is told who it is by what the program says, by its process or by its directory."""
    if name == "claude":
        pytest.skip("as we drive it, it starts without our MCP configuration")
    async with stage(tmp_path, name) as on:
        await on.program.prompt("Hello, this is the person.")
        own = await on.joined()

        async def tools() -> list[str]:
            await on.chat.call("call", calls=[on.program.sh("true").as_json])  # its next request lists them
            named = [each["name"] for each in (await on.chat.call("tools", sessionId=own)).head["tools"]]
            return [each for each in named if each.endswith("transfer") and "chappie" in each]

        transfer = await until(tools, bool)  # a program may begin before its MCP servers are there
        desk = tmp_path / "desk"
        desk.mkdir()
        (desk / "artefact.txt").write_text("built\n", encoding="utf-8")
        arguments = ("agent", "--json", "--state", str(on.bridge.state), "--directory", str(desk))
        other = Served(*arguments, log=on.bridge.log, home=on.bridge.home)
        try:
            source = {"sessionId": other.told["session"], "paths": ["artefact.txt"]}
            call = {"name": transfer[0], "arguments": {"paths": ["got.txt"], "from": source}}
            answer = await on.chat.call("call", calls=[call])
            assert not answer.is_error, answer.texts
        finally:
            other.kill(signal.SIGTERM)
        assert (on.bridge.work / "got.txt").read_text(encoding="utf-8") == "built\n"


def _work(client: LocalClient, on: Stage, target: str, desk: Path) -> None:
    rows = {row["id"]: row for row in client.call("sessions").head["sessions"]}
    assert rows[target]["agent"] == on.program.name
    tools = client.call("remote_tools", sessionId=target)
    assert on.program.sh("true").as_json["name"] in {tool["name"] for tool in tools.head["tools"]}

    calls = [on.program.sh("echo built > artefact.txt; echo from-the-program").as_json]
    ran = client.call("remote_call", sessionId=target, calls=calls)
    assert (ran.head["status"], ran.is_error) == ("done", False), ran
    assert any("from-the-program" in text for text in ran.texts)

    fetch = {"from": {"sessionId": target, "paths": ["artefact.txt"]}}
    assert client.call("transfer", paths=["got.txt"], **fetch).head["status"] == "done"
    assert (desk / "got.txt").read_text(encoding="utf-8") == "built\n"
    send = {"to": {"sessionId": target, "paths": ["back/got.txt"]}}
    assert client.call("transfer", paths=["got.txt"], **send).head["status"] == "done"
    assert (on.bridge.work / "back" / "got.txt").read_text(encoding="utf-8") == "built\n"

    said = client.call("remote_chat", sessionId=target, text="The build completed.")
    assert said.head["status"] == "done", said
    newest, told = "", ""
    while "> The build completed." not in told:  # what was recorded before may still be on its way
        page = client.call("history", sessionId=target, **({"after": newest, "wait": True} if newest else {}))
        newest = [json.loads(text)["entry"] for text in page.texts if text.startswith('{"entry"')][-1]
        told += "".join(page.texts)
    assert "Message from session" in told
