"""A good client of MCP over HTTP while others mean ill: its p99 against its own when nobody else is there.

One `serve`, one good client that lists tools one after another, and attackers in a process of their own:
10,000 wrong credentials, 1,000 heads that never end, lines and bodies of 100 MB, 10,000 requests that wait.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx2
from _measure import quantile, record

SAMPLES = 400

WRONG, HALF_OPEN, LARGE, WAITS = 10_000, 1_000, 100 << 20, 10_000

TOOLS = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}

GOAL = "memory bounded; p99 of the good client at most 3x idle in each case"


async def wrong(port: int, key: str) -> None:
    async with httpx2.AsyncClient(trust_env=False, headers={"X-Chappie-Key": "wrong"}, timeout=60) as http:

        async def some() -> None:
            for _ in range(WRONG // 16):
                await http.post(f"http://127.0.0.1:{port}/mcp", json=TOOLS)

        await asyncio.gather(*(some() for _ in range(16)))


async def half_open(port: int, key: str) -> None:
    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /mcp HTTP/1.1\r\nHost: loc")
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    await asyncio.gather(*(one() for _ in range(HALF_OPEN)))


async def large(port: int, key: str) -> None:
    """A line, a body that says its length, one that does not."""
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Chappie-Key: {key}\r\nContent-Type: application/json\r\n"
    )
    for begin in (f"{head}X: ", f"{head}Content-Length: {LARGE}\r\n\r\n"):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begin.encode())
        with suppress(ConnectionError):
            for _ in range(LARGE >> 18):
                writer.write(b" " * (1 << 18))
                await writer.drain()
        writer.close()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
    with suppress(ConnectionError):
        for _ in range(LARGE >> 15):
            writer.write(b"8000\r\n" + b" " * 0x8000 + b"\r\n")
            await writer.drain()
    writer.close()


async def waits(port: int, key: str) -> None:
    """`init` without any session waits for one."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "init", "arguments": {}}}
    body = json.dumps(call).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Chappie-Key: {key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()

    async def one() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        ends.append(writer)
        writer.write(head + body)

    ends: list[asyncio.StreamWriter] = []
    for _ in range(WAITS // 100):
        await asyncio.gather(*(one() for _ in range(100)))
    await asyncio.sleep(8)
    for writer in ends:
        writer.close()


ATTACKS: dict[str, Callable[[int, str], Awaitable[None]]] = {
    "wrong credentials": wrong,
    "half-open heads": half_open,
    "100 MB lines, bodies": large,
    "requests that wait": waits,
}


async def good(url: str, headers: dict[str, str], until: Callable[[], bool]) -> list[float]:
    taken: list[float] = []
    async with httpx2.AsyncClient(trust_env=False, headers=headers, timeout=60) as http:
        while not until() or len(taken) < SAMPLES:
            began = time.perf_counter()
            answer = await http.post(url, json=TOOLS)
            taken.append(time.perf_counter() - began)
            assert answer.status_code == 200, answer.text
            await asyncio.sleep(0.002)
    return taken


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "chappie_bridge.cli", "serve", "--json"]
        command += ["--state", f"{directory}/state", "--http", "127.0.0.1:0", "--link", "127.0.0.1:0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        try:
            assert server.stdout is not None
            ready = json.loads(server.stdout.readline())
            asyncio.run(measured(server.pid, ready["mcp"], ready["headers"]))
        finally:
            server.terminate()
            server.wait()


def begun(name: str, port: str, key: str) -> "subprocess.Popen[bytes]":
    attack = subprocess.Popen([sys.executable, __file__, name, port], stdin=subprocess.PIPE)
    assert attack.stdin is not None
    attack.stdin.write(key.encode())  # no secret on a command line
    attack.stdin.close()
    return attack


async def measured(pid: int, url: str, headers: dict[str, str]) -> None:
    port = url.removesuffix("/mcp").rpartition(":")[2]
    key = headers["Authorization"].removeprefix("Bearer ")
    await good(url, headers, lambda: True)  # warms up
    idle = await good(url, headers, lambda: True)
    lines = [f"{'case':<24}{'p50 ms':>9}{'p99 ms':>9}{'p99 ratio':>11}{'MiB':>7}"]
    lines.append(_line("idle", idle, idle, resident(pid)))
    for name in ATTACKS:
        attack = begun(name, port, key)
        most = resident(pid)

        def ended(attack: "subprocess.Popen[bytes]" = attack) -> bool:
            nonlocal most
            most = max(most, resident(pid))
            return attack.poll() is not None

        lines.append(_line(name, await good(url, headers, ended), idle, most))
        attack.wait()
    lines.append(_line("idle, after", await good(url, headers, lambda: True), idle, resident(pid)))
    record("siege_http", "\n".join(lines), GOAL)


def _line(name: str, taken: list[float], idle: list[float], mib: float) -> str:
    p50, p99 = quantile(taken, 0.5) * 1e3, quantile(taken, 0.99) * 1e3
    return f"{name:<24}{p50:>9.2f}{p99:>9.2f}{p99 / (quantile(idle, 0.99) * 1e3):>11.2f}{mib:>7.0f}"


def resident(pid: int) -> float:
    """MiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(ATTACKS[sys.argv[1]](int(sys.argv[2]), sys.stdin.read()))
    else:
        main()
