"""The demo is a promise to somebody who has not decided yet: it must keep it, and leave nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chappie_bridge.demo.chatgpt import ChatGPT
from chappie_bridge.demo.http import Request, Response, serve
from chappie_bridge.demo.story import Line, Story

DEMO = [sys.executable, "-m", "chappie_bridge.cli", "demo"]


def played(room: Path, *options: str) -> str:
    """What it printed; `room` takes its temporary files."""
    done = subprocess.run(
        [*DEMO, *options],
        env={**os.environ, "TMPDIR": str(room)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_demo_holds_what_it_shows_and_leaves_nothing(tmp_path: Path) -> None:
    document = json.loads(played(tmp_path, "--json"))
    assert document["ok"] is True
    scenes = [line["scene"] for line in document["said"] if "scene" in line]
    assert len(scenes) == 6
    assert {"person": "y"} in document["said"]
    assert list(tmp_path.iterdir()) == []


def test_the_demo_can_be_read_without_a_terminal(tmp_path: Path) -> None:
    shown = played(tmp_path)
    assert "ran once" in shown
    assert "\x1b" not in shown
    assert shown.endswith("All of it held. The bridge has stopped, nothing is left.\n")


@pytest.mark.anyio
async def test_a_bridge_that_does_something_else_fails_the_demo(tmp_path: Path) -> None:
    async def answer(request: Request) -> Response:
        message = json.loads(request.body)
        result = {"tools": [], "isError": True, "content": [{"type": "text", "text": '{"error":"no"}'}]}
        body = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}).encode()
        return Response(200, {"content-type": "application/json"}, body)

    lines: list[Line] = []
    async with serve(answer) as port:
        url = f"http://127.0.0.1:{port}/mcp"
        assert await ChatGPT(url).connect() == []
        fault = await Story(url, {}, tmp_path, say=lambda _: None, tell=lines.append).play()
    assert fault == 'an error came: {"error":"no"}'
    assert lines
