"""Qwen Code, which tells no session id: known by our call ids, its history found by them."""

import subprocess
from functools import partial
from pathlib import Path

import anyio
import pytest

from tests.clients.conftest import had
from tests.clients.environments import environment, node_environment
from tests.hosts.rig import SECONDS, bridge, clean_environment, inputs, joined, results, until

pytestmark = pytest.mark.anyio


async def test_qwen_code_is_driven_and_its_chat_is_found_by_our_call_ids(tmp_path: Path) -> None:
    place = had(partial(environment, "npm", "qwen"))
    async with bridge(tmp_path / "bridge") as made:
        made.install("qwen", made.home)
        lines = (made.home / ".qwen/chappie.env").read_text(encoding="utf-8").split()
        chosen = dict(line.split("=", 1) for line in lines)
        more = {"HOME": str(made.home), "PATH": had(node_environment)["PATH"], **chosen}
        argv = [str(place / "node_modules/.bin/qwen"), "--auth-type", "openai", "--yolo", "-p", "hello"]
        async with await anyio.open_process(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=clean_environment(**more),
            cwd=made.work,
        ) as program:
            chat = made.chatgpt.new_chat()
            await joined(chat)
            shell = [
                {
                    "name": "run_shell_command",
                    "arguments": {"command": f"echo {word}", "is_background": False},
                }
                for word in ("one", "two")
            ]
            both = await chat.call("call", calls=shell)
            assert ["one" in results(both)[0].text, "two" in results(both)[1].text] == [True, True]
            assert inputs(both) == ["hello"]
            again = await chat.call("call", calls=shell[:1])
            assert again.head["sessionId"] == both.head["sessionId"]
            page = await until(
                lambda: chat.call("history", limit=20),
                lambda page: sum("toolName" in each for each in page.notes("entry")) >= 6,
            )
            ids = [each["entry"] for each in page.notes("entry")]
            assert not [name for name in ids if name.startswith("e_")], ids
            await chat.call("chat", text="Goodbye from ChatGPT.")
            with anyio.fail_after(SECONDS):
                assert program.stdout is not None
                said = b"".join([part async for part in program.stdout])
            assert b"Goodbye from ChatGPT." in said
