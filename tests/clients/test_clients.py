"""Clients that nobody here wrote, against a whole bridge: each lists, selects, runs, follows, and errs."""

import base64
import hashlib
import json
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chappie_bridge.demo.bridge import Ready
from tests.clients.conftest import FILE, IMAGE, NOTE, Elsewhere, had
from tests.clients.environments import environment, node, node_environment, python
from tests.clients.shop import Shop

HERE = Path(__file__).parent

TOOLS = {"sessions", "init", "tools", "call", "chat", "history", "transfer"}

CALLS = [
    {"name": "read", "arguments": {"path": "note.txt"}},
    {"name": "bash", "arguments": {"command": "printf 'two from %s' the-shell"}},
]
LATER = [{"name": "bash", "arguments": {"command": "printf 'three while %s' waiting"}}]

SHOW = {"name": "read", "arguments": {"path": IMAGE}}

PAUSE_MS = 300
"""Head start of a waiting `history` before the call that ends it; the outcome does not depend on it."""

SECONDS = 90
"""For one client, its start included."""


@pytest.mark.parametrize(
    ("script", "package", "arguments", "protocol"),
    [
        ("ts_v1.mjs", "ts_v1", [], "2025-11-25"),
        ("ts_v2.mjs", "ts_v2", ["legacy"], "2025-11-25"),
        ("ts_v2.mjs", "ts_v2", ["2026-07-28"], "2026-07-28"),
    ],
)
def test_a_typescript_client_does_all_that_a_conversation_needs(
    ready: Ready,
    store: Shop,
    elsewhere: Elsewhere,
    script: str,
    package: str,
    arguments: Sequence[str],
    protocol: str,
) -> None:
    place = had(partial(environment, "npm", package))
    for each in (script, "steps.mjs"):  # imports by name are looked up from where the script lies
        shutil.copy(HERE / each, place)
    key = secrets.token_hex(8)
    held, rest = store.held(key)
    moves = {"held": held, "rest": rest, "from": _from(elsewhere), "into": key}
    argv = [str(had(node) / "bin" / "node"), str(place / script), _job(ready, moves=moves), *arguments]
    told = _told(argv)
    assert told["protocol"] == protocol
    _holds(told, ready)
    assert told["file"] == _sha256(_work(ready) / FILE)
    assert told["image"] == _sha256(_work(ready) / IMAGE)
    _lies(told["taken"], _work(ready) / key / "taken.bin", store.data)
    _lies(told["copied"], _work(ready) / key / "copied.bin", (elsewhere.directory / FILE).read_bytes())
    assert told["heard"], "no word ahead of the answer, although the file stops until there is one"
    moved = [each["progress"] for each in told["heard"]]
    assert moved == sorted(set(moved))
    assert {each["total"] for each in told["heard"]} == {len(store.data)}


@pytest.mark.parametrize("package", ["openai_agents", "langchain"])
def test_a_python_client_does_all_that_a_conversation_needs(ready: Ready, package: str) -> None:
    program = had(partial(python, package))
    _holds(_told([str(program), "-I", str(HERE / f"with_{package}.py"), _job(ready)]), ready)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_does_all_that_a_conversation_needs(ready: Ready, era: str) -> None:
    inspector = _Inspector(ready, era)
    listed = inspector.run("tools/list")
    session = {"sessionId": ready.session}
    init = inspector.call("init", session)
    batch = inspector.call("call", {**session, "calls": CALLS})
    newest = inspector.call("history", {**session, "limit": 1})
    after = json.loads(_texts(newest)[1])["entry"]
    with inspector.begin("history", {**session, "after": after, "wait": True}) as waiting:
        inspector.call("call", {**session, "calls": LATER})  # starting it takes longer than the wait's start
        out, _ = waiting.communicate(timeout=SECONDS)
    refused = inspector.call("init", {**session, "sesionId": "misspelt"})
    told = {
        "tools": [tool["name"] for tool in listed["tools"]],
        "init": _texts(init),
        "batch": _texts(batch),
        "waited": _texts(_result(out)),
        "refused": {"isError": refused.get("isError"), "texts": _texts(refused)},
    }
    _holds(told, ready)


def test_the_inspector_finds_no_tool_schema_that_another_host_would_refuse(ready: Ready) -> None:
    inspector = _Inspector(ready, "modern")
    done = subprocess.run(
        [*inspector.argv, "--method", "tools/list", "--strict"],
        env=had(node_environment),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_reads_what_it_was_given_byte_for_byte(ready: Ready, era: str) -> None:
    inspector = _Inspector(ready, era)
    session = {"sessionId": ready.session}
    exported = inspector.call("transfer", {**session, "paths": [FILE]})
    (link,) = [block["uri"] for block in exported["content"] if block["type"] == "resource_link"]
    shown = inspector.call("call", {**session, "calls": [SHOW]})
    header = json.loads([block["text"] for block in shown["content"] if block["type"] == "text"][1])
    for uri, name in ((link, FILE), (header["images"][0], IMAGE)):
        read = inspector.run("resources/read", "--uri", uri)
        blob = base64.b64decode(read["contents"][0]["blob"])
        assert hashlib.sha256(blob).hexdigest() == _sha256(_work(ready) / name)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_gives_and_copies_files_byte_for_byte(
    ready: Ready, store: Shop, elsewhere: Elsewhere, era: str
) -> None:
    inspector = _Inspector(ready, era)
    into = secrets.token_hex(8)
    for name, source, data in (
        ("taken.bin", {"files": [store.file()]}, store.data),
        ("copied.bin", {"from": _from(elsewhere)}, (elsewhere.directory / FILE).read_bytes()),
    ):
        arguments = {"sessionId": ready.session, "paths": [f"{into}/{name}"], **source}
        _lies(_texts(inspector.call("transfer", arguments)), _work(ready) / into / name, data)


class _Inspector:
    """The Inspector's command line: each request is a process of its own, and so a connection of its own."""

    def __init__(self, ready: Ready, era: str) -> None:
        place = had(partial(environment, "npm", "inspector"))
        self.argv = [str(place / "node_modules/.bin/mcp-inspector"), "--cli", "--server-url", ready.mcp]
        self.argv += ["--transport", "http", "--protocol-era", era, "--format", "json"]
        self.argv += ["--metadata", f"openai/session=v1/{secrets.token_hex(8)}"]
        for name, value in ready.headers.items():
            self.argv += ["--header", f"{name}: {value}"]

    def run(self, method: str, *options: str) -> dict[str, Any]:
        done = subprocess.run(
            [*self.argv, "--method", method, *options],
            env=had(node_environment),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.stdout.strip(), done.stderr
        return _result(done.stdout)

    def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self.run("tools/call", *self._options(tool, arguments))

    def begin(self, tool: str, arguments: Mapping[str, Any]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.argv, "--method", "tools/call", *self._options(tool, arguments)],
            env=had(node_environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _options(self, tool: str, arguments: Mapping[str, Any]) -> list[str]:
        return ["--tool-name", tool, "--tool-args-json", json.dumps(arguments)]


def _work(ready: Ready) -> Path:
    return ready.state.parent / "work"


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _from(elsewhere: Elsewhere) -> dict[str, Any]:
    return {"sessionId": elsewhere.session, "paths": [FILE]}


def _lies(texts: Sequence[str], file: Path, data: bytes) -> None:
    """The answer to a `transfer` of one file, and what it left on the disk."""
    head, report = map(json.loads, texts[:2])
    assert (head["status"], report["status"]) == ("done", "done"), texts
    assert _sha256(file) == report["sha256"] == hashlib.sha256(data).hexdigest()


def _job(ready: Ready, **more: Any) -> str:
    meta = {"openai/session": f"v1/{secrets.token_hex(8)}"}
    job = {"url": ready.mcp, "headers": dict(ready.headers), "meta": meta, "session": ready.session}
    return json.dumps(
        {**job, "calls": CALLS, "later": LATER, "file": FILE, "image": SHOW, "pauseMs": PAUSE_MS, **more}
    )


def _told(argv: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def _result(printed: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(printed)
    return result.get("result", result)


def _texts(result: Mapping[str, Any]) -> list[str]:
    return [block["text"] for block in result["content"]]


def _holds(told: Mapping[str, Any], ready: Ready) -> None:
    """What every client must have seen."""
    assert set(told["tools"]) >= TOOLS
    opened = json.loads(told["init"][0])
    assert opened["initialization"]["sessionId"] == ready.session
    assert {"read", "bash"} <= {tool["name"] for tool in opened["tools"]}

    head, first, read, second, shell = told["batch"][:5]
    assert json.loads(head)["status"] == "done"
    assert json.loads(head)["sessionId"] == ready.session
    assert json.loads(first)["toolName"] == "read"
    assert NOTE.strip() in read
    assert json.loads(second)["toolName"] == "bash"
    assert "two from the-shell" in shell

    entries = [json.loads(text) for text in told["waited"][1:] if text.startswith('{"entry"')]
    assert entries, told["waited"]
    assert any("three while" in text or "waiting" in text for text in told["waited"]), told["waited"]

    assert told["refused"]["isError"] is True
    assert "bad_arguments" in told["refused"]["texts"][0]
    assert "sesionId" in told["refused"]["texts"][0]
