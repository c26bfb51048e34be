"""`chappie-bridge flow` as people and programs use it, against the strict peer."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync

from chappie_bridge.faces.flow.settings import FlowSettings
from tests.faces.flow.conftest import owners
from tests.peer.flow import AUTHORIZATION, Call, Cut, Flow, Say, serving
from tests.story.bridge import PATIENCE, Home, until
from tests.story.test_terminal import Screen

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("flow"))
    (home.work / "a.txt").write_text("one\n", encoding="utf-8")
    with home.up():
        yield home


def configured(room: Path, settings: FlowSettings) -> Path:
    """A configuration file of these settings."""
    file = room / "flow.toml"
    lines = [
        f"{key} = {json.dumps(value)}"
        for key, value in settings.model_dump(mode="json", exclude={"models"}).items()
    ]
    file.write_text("\n".join(["[flow]", *lines]) + "\n", encoding="utf-8")
    file.chmod(0o600)
    return file


async def run(
    home: Home, room: Path, flow: Flow, *arguments: str, stdin: str = "", **more: object
) -> subprocess.CompletedProcess[str]:
    async with serving(flow) as url:
        file = configured(room, owners(room, url, **more))
        work = partial(home.run, "flow", "--config", str(file), *arguments, stdin=stdin)
        return await run_sync(work)


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


SCRIPT = [
    [Say("thinking", "analysis", None), Call("read", {"path": "a.txt"})],
    [Say("It says one.")],
]


async def test_a_turn_for_a_person_has_the_answer_on_stdout_and_the_trail_beside_it(
    home: Home, tmp_path: Path
) -> None:
    flow = Flow([*SCRIPT])
    done = await run(home, tmp_path, flow, "--native", "what does a.txt say?")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "It says one.\n"
    for shown in ("[analysis] thinking", "[commentary]", "-> read", "<- ok"):
        assert shown in done.stderr
    assert not flow.refused
    assert {body["model"] for _, body in flow.requests} == {"gpt-5-5-thinking"}
    assert {body["thinking_effort"] for _, body in flow.requests} == {"standard"}


async def test_a_turn_for_a_program_is_one_document(home: Home, tmp_path: Path) -> None:
    flow = Flow([*SCRIPT])
    found = document(
        await run(home, tmp_path, flow, "--native", "--json", "--model", "Instant", stdin="what?")
    )
    assert (found["status"], found["text"]) == ("finished", "It says one.")
    assert found["conversation"] == flow.conversation
    kinds = [next(iter(entry)) for entry in found["trail"]]
    assert kinds == ["channel", "channel", "call", "result"]
    assert found["trail"][3]["result"]["message"].startswith("{")
    assert all("thinking_effort" not in body for _, body in flow.requests)


async def test_a_conversation_goes_on_with_the_session_it_began_with(home: Home, tmp_path: Path) -> None:
    flow = Flow([[Say("one")], [Call("call", {"calls": '[{"name":"ls","arguments":{}}]'})], [Say("two")]])
    first = document(await run(home, tmp_path, flow, "--json", "begin"))
    second = document(
        await run(home, tmp_path, flow, "--json", "--conversation", first["conversation"], "and now?")
    )
    assert second["text"] == "two"
    assert "a.txt" in flow.results[0]["message"]
    assert not flow.refused


async def test_a_task_is_handed_off_with_yes_and_declined_where_nobody_can_be_asked(
    home: Home, tmp_path: Path
) -> None:
    call = Call("handoff", {"prompt": "build it", "reason": "files"})
    for arguments, accepted in (["--yes"], True), ([], False):
        flow = Flow([[call], [Say("ok")]])
        done = await run(home, tmp_path, flow, *arguments, "do it", stdin="")
        assert done.returncode == 0, done.stderr
        assert flow.results[0]["accepted"] is accepted


async def test_what_fails_is_told_with_exit_code_one_and_without_a_secret(home: Home, tmp_path: Path) -> None:
    """S21: neither what is shown nor the log holds a header's value or a token."""
    flow = Flow([[Say("half", status="in_progress"), Cut()]], readable=False)
    done = await run(home, tmp_path, flow, "--log-level", "debug", "hi")
    assert done.returncode == 1
    assert "the turn failed" in done.stderr
    for secret in (AUTHORIZATION, "challenge-", "conduit-", "never to be shown"):
        assert secret not in done.stdout + done.stderr


async def test_wrong_use_is_told(home: Home, tmp_path: Path) -> None:
    flow = Flow([])
    for arguments, said in (
        (["--model", "Huge", "hi"], "there are Instant, Medium, High"),
        (["--parent", "x", "hi"], "--conversation"),
        ([], "nothing to say"),
    ):
        done = await run(home, tmp_path, flow, *arguments)
        assert done.returncode == 2
        assert said in done.stderr
    done = await run_sync(partial(home.run, "flow", "hi"))
    assert done.returncode == 1
    assert "none is built in" in done.stderr
    done = await run(home, tmp_path, flow, "--conversation", "c", "hi", read="")
    assert "--parent" in done.stderr
    assert not flow.requests


async def test_turn_by_turn_at_a_terminal(home: Home, tmp_path: Path) -> None:
    call = Call("handoff", {"prompt": "build it", "reason": "files"})
    hang = Call("call", {"calls": '[{"name":"bash","arguments":{"command":"touch begun; sleep 600"}}]'})
    flow = Flow([[call], [Say("handed off")], [hang], [Say("bye \x1b[2J")]])
    async with serving(flow) as url:
        file = configured(tmp_path, owners(tmp_path, url))
        await run_sync(_typed, home, file, flow)
    assert flow.results[0]["accepted"] is True
    assert _prepared(flow)[0] is None, "the conversation is prepared when it is opened"
    assert not flow.refused


def _prepared(flow: Flow) -> list[str | None]:
    """What was typed of each preparation, None where it was nothing."""
    bodies = [body for kind, body in flow.requests if kind == "prepare"]
    return [
        body["partial_query"]["content"]["parts"][0] if "partial_query" in body else None for body in bodies
    ]


def _typed(home: Home, file: Path, flow: Flow) -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        home.argv("flow", "--config", str(file)),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**home.environment, "TERM": "dumb"},
        cwd=home.work,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        screen = Screen(ours)
        screen.until("> ")
        screen.type("bui")
        until(lambda: "bui" in _prepared(flow), "what is typed is prepared once it stands still")
        screen.type("ld\n")
        screen.until("Open it in the session? [y/N] ")
        screen.type("y\n")
        screen.until("handed off")
        screen.until("> ")
        screen.type("hang\n")
        until((home.work / "begun").exists, "the call runs")
        process.send_signal(signal.SIGINT)
        screen.until("the turn stopped")
        screen.until("> ")
        screen.type("bye\n")
        assert "\x1b[2J" not in screen.until("\\x1b[2J")
        screen.until("> ")
        screen.type("\x04")
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
