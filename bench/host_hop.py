"""What the bridge adds around an agent program's own work: from ChatGPT's `call` to the program receiving the
tool calls, and from its next request to ChatGPT's answer.

A whole bridge in three processes (broker and front door, model endpoint, this one as ChatGPT and as the
program).  The program answers at once, so all that is measured is ours.
"""

import asyncio
import json
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench._measure import quantile, record
from chappie_bridge.demo.chatgpt import ChatGPT
from tests.hosts.rig import Served

CALLS = 300
WARM = 30
SESSION = "0199-bench"
TOOL = {
    "type": "function",
    "function": {
        "name": "echo",
        "description": "Echoes.",
        "parameters": {"type": "object", "properties": {}},
    },
}


class Program:
    """Speaks Chat Completions as Pi does; notes when the calls arrived and when the results left."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._key = port, key
        self.arrived: list[float] = []
        self.left: list[float] = []

    async def run(self) -> None:
        history: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
        while True:
            # A program's history grows; here only the newest turn is kept, so that ours is what is measured.
            message = await self._ask(history)
            self.arrived.append(time.perf_counter())
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
                for call in message["tool_calls"]
            ]
            history = [*history[:1], message, *results]
            self.left.append(time.perf_counter())

    async def _ask(self, history: list[dict[str, Any]]) -> dict[str, Any]:
        body = json.dumps({"model": "chappie", "stream": True, "messages": history, "tools": [TOOL]}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\n"
            f"authorization: Bearer {self._key}\r\nuser-agent: pi/1.6.0\r\nsession_id: {SESSION}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        calls: dict[int, dict[str, Any]] = {}
        try:
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        for call in choice["delta"].get("tool_calls", []):
                            calls[call["index"]] = {name: call[name] for name in ("id", "type", "function")}
                elif line.startswith(b"data: [DONE]"):
                    break
        finally:
            writer.close()
        return {"role": "assistant", "content": "", "tool_calls": list(calls.values())}


async def measure(room: Path) -> str:
    log, home, state = room / "log", room / "home", room / "state"
    home.mkdir()
    ports = ("--http", "127.0.0.1:0", "--link", "127.0.0.1:0")
    broker = Served("up", "--no-agent", "--json", "--state", str(state), *ports, log=log, home=home)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    model = Served("model", "--json", "--port", str(port), "--state", str(state), log=log, home=home)
    try:
        program = Program(port, (state / "model-key").read_text(encoding="utf-8").strip())
        chatgpt = ChatGPT(broker.told["mcp"], broker.told["headers"])
        await chatgpt.connect()
        chat = chatgpt.new_chat()
        there, back = [], []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(program.run)
            while (await chat.call("init")).is_error:  # noqa: ASYNC110 - it tells nobody
                await anyio.sleep(0.1)
            for number in range(WARM + CALLS):
                began = time.perf_counter()
                answer = await chat.call("call", calls=[{"name": "echo", "arguments": {}}])
                ended = time.perf_counter()
                assert not answer.is_error, answer.texts
                if number >= WARM:
                    there.append(program.arrived[number] - began)
                    back.append(ended - program.left[number])
            tasks.cancel_scope.cancel()
    finally:
        model.kill()
        broker.kill()
    both = [one + other for one, other in zip(there, back, strict=True)]
    lines = [f"{'case':<34}{'p50 ms':>9}{'p99 ms':>9}"]
    for name, samples in (
        ("call -> the program has it", there),
        ("its next request -> answer", back),
        ("together", both),
    ):
        lines.append(f"{name:<34}{quantile(samples, 0.5) * 1e3:>9.2f}{quantile(samples, 0.99) * 1e3:>9.2f}")
    return "\n".join(lines)


def main() -> None:
    with tempfile.TemporaryDirectory() as room:
        text = anyio.run(measure, Path(room))
    record("host_hop", text, "together <= 5 ms at p50")


if __name__ == "__main__":
    main()
