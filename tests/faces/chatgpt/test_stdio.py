"""The stdio entry: pipes in this process, and a real child."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, BinaryIO

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from chappie_bridge.faces.chatgpt import stdio
from chappie_bridge.faces.chatgpt.server import serve_stdio
from chappie_bridge.faces.chatgpt.stdio import LINE_MAX, Lines, LongLine
from chappie_bridge.faces.chatgpt.tools import TOOLS
from chappie_bridge.wire.ports import stops
from chappie_bridge.wire.requests import OperationView, Submit
from tests.faces.chatgpt.scripted import NOOP, Json, Scripted, lines, request, settings, view

pytestmark = pytest.mark.anyio

CHILD = [sys.executable, "-m", "tests.faces.chatgpt.stdio_child"]


class Wire:
    """The client's end of two pipes."""

    def __init__(self, sink: int, source: int) -> None:
        self._sink = sink
        self._source: BinaryIO = os.fdopen(source, "rb")

    async def send(self, data: bytes) -> None:
        def write() -> None:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._sink, rest) :]

        await anyio.to_thread.run_sync(write)

    async def receive(self) -> Json:
        with anyio.fail_after(5):
            found: Json = json.loads(await anyio.to_thread.run_sync(self._source.readline))
        return found

    async def ask(self, message: Any) -> Json:
        await self.send(json.dumps(message).encode() + b"\n")
        return await self.receive()

    def hang_up(self) -> None:
        with suppress(OSError):
            os.close(self._sink)
        self._sink = -1

    def stop_reading(self) -> None:
        self._source.close()


@asynccontextmanager
async def bridge(board: Scripted) -> AsyncGenerator[Wire]:
    """The face on pipes; leaves when it has ended."""
    source, sink = os.pipe()
    answers, answer_sink = os.pipe()
    wire = Wire(sink, answers)
    try:
        async with anyio.create_task_group() as group:

            async def serve() -> None:
                await serve_stdio(board, settings(), source, answer_sink)

            group.start_soon(serve)
            yield wire
            wire.hang_up()
    finally:
        wire.hang_up()
        wire.stop_reading()
        os.close(source)
        os.close(answer_sink)


async def test_a_call_is_answered_before_any_initialize() -> None:
    """B08: a tunnel that was restarted sends the call straight away."""
    board = Scripted()
    async with bridge(board) as wire:
        found = await wire.ask(request("call", NOOP, identifier="first"))
        assert found["id"] == "first"
        assert found["result"]["isError"] is False
        assert await board.until_told("r_1") is True


async def test_a_process_is_one_conversation_unless_the_request_names_one() -> None:
    board = Scripted()
    async with bridge(board) as wire:
        await wire.ask(request("call", NOOP))
        await wire.ask(request("chat", {"text": "x"}))
        await wire.ask(request("call", NOOP, openai__session="v1/a"))
    async with bridge(board) as wire:
        await wire.ask(request("call", NOOP))
    callers = [asked.caller for asked in board.asked]
    assert [caller.source for caller in callers] == ["stdio", "stdio", "openai", "stdio"]
    assert callers[0].value == callers[1].value != callers[3].value
    assert len(callers[0].value) >= 32


async def test_both_eras_are_spoken_on_one_pipe() -> None:
    hello = {
        "protocolVersion": "2025-03-26",
        "capabilities": {},
        "clientInfo": {"name": "one", "version": "1"},
    }
    modern = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    board = Scripted()
    async with bridge(board) as wire:
        opening = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
        assert (await wire.ask(opening))["result"]["protocolVersion"] == "2025-03-26"
        await wire.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        found = await wire.ask(request("call", NOOP))
        assert "resultType" not in found["result"]
        single = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": modern}}
        assert (await wire.ask(single))["result"]["supportedVersions"] == ["2026-07-28"]
    (asked,) = board.asked
    assert asked.caller.label == "one"


async def test_a_long_line_and_a_short_one_are_both_answered() -> None:
    """B61: 200 KiB is no special length."""
    board = Scripted()
    async with bridge(board) as wire:
        found = await wire.ask(request("chat", {"text": "x" * 200 * 1024}))
        assert found["result"]["isError"] is False
        assert (await wire.ask(request("chat", {"text": "x"}, identifier=2)))["id"] == 2
    assert len(board.asked) == 2


@pytest.mark.parametrize("order", ["id first", "id last"])
async def test_a_line_over_the_bound_fails_alone_and_by_its_id(order: str) -> None:
    """B61 S22: a typed error for that request, and the next is served."""
    large = request("chat", {"text": "x" * (LINE_MAX + 10)}, identifier=77)
    if order == "id last":
        large = {"method": large["method"], "params": large["params"], "jsonrpc": "2.0", "id": 77}
    async with bridge(Scripted()) as wire:
        found = await wire.ask(large)
        assert found["id"] == 77
        assert found["error"]["data"]["code"] == "too_large"
        assert (await wire.ask(request("call", NOOP, identifier=78)))["result"]["isError"] is False


async def test_lone_surrogates_are_replaced_and_answered() -> None:
    """B63: the SDK's own stdio server never answers such a line."""
    board = Scripted()
    calls = {"calls": [{"name": "w", "arguments": {"a": "\ud83d", "b": "😀"}}]}
    async with bridge(board) as wire:
        found = await wire.ask(request("call", calls))
    (asked,) = board.asked
    assert isinstance(asked, Submit)
    assert asked.calls is not None
    assert asked.calls[0].arguments == {"a": "\ufffd", "b": "😀"}
    assert lines(found["result"])[0]["replaced"] == 1


@pytest.mark.parametrize(
    ("line", "identifier", "code"),
    [
        (b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"a":"\xff"}}', 5, -32700),
        (b'{"jsonrpc":"2.0","id":5,"method":"ping"', 5, -32700),
        (b'{"method":"ping",,"id":"x"}', "x", -32700),
        (b"nonsense", None, -32700),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', None, -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None, -32600),
    ],
)
async def test_a_line_that_is_no_request_is_answered_by_its_id_where_it_has_one(
    line: bytes, identifier: object, code: int
) -> None:
    """B63: one bad character stops nothing."""
    async with bridge(Scripted()) as wire:
        await wire.send(b"\n  \r\n" + line + b"\r\n")
        found = await wire.receive()
        assert (found["id"], found["error"]["code"]) == (identifier, code)
        assert (await wire.ask(request("call", NOOP)))["result"]["isError"] is False


async def test_equal_ids_at_once_get_an_answer_each() -> None:
    """B04: also on one pipe."""
    board = Scripted()
    both = anyio.Event()

    async def late(asked: Submit) -> OperationView:
        if len(board.asked) == 2:
            both.set()
        await both.wait()
        return view()

    board.on["call"] = late
    async with bridge(board) as wire:
        line = json.dumps(request("call", NOOP)).encode() + b"\n"
        await wire.send(line + line)
        assert [(await wire.receive())["id"], (await wire.receive())["id"]] == [1, 1]


async def test_a_cancelled_request_is_withdrawn_and_not_answered() -> None:
    """B49: and what it started is to stop."""
    board = Scripted()
    begun, withdrawn = anyio.Event(), anyio.Event()

    async def wait(_: Any) -> OperationView:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            if stops():
                withdrawn.set()
        raise AssertionError

    board.on["call"] = wait
    async with bridge(board) as wire:
        await wire.send(json.dumps(request("call", NOOP, identifier="7")).encode() + b"\n")
        with anyio.fail_after(5):
            await begun.wait()
            await wire.send(
                b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}\n'
            )
            await withdrawn.wait()
        await wire.send(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"no"}}\n')
        assert (await wire.ask(request("sessions", identifier=8)))["id"] == 8
    assert board.receipts == {}


async def test_what_is_under_way_at_the_end_of_input_is_still_answered() -> None:
    board = Scripted()
    go = anyio.Event()

    async def late(_: Any) -> OperationView:
        await go.wait()
        return view()

    board.on["call"] = late
    async with bridge(board) as wire:
        await wire.send(json.dumps(request("call", NOOP)).encode())  # without an end of line
        wire.hang_up()
        go.set()
        assert (await wire.receive())["id"] == 1


async def test_the_end_of_input_ends_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """B32: nothing is left hanging in a request that nobody waits for."""
    monkeypatch.setattr(stdio, "FAREWELL", 0.01)
    board = Scripted()
    begun = anyio.Event()

    async def stuck(_: Any) -> OperationView:
        begun.set()
        await anyio.sleep_forever()
        raise AssertionError

    board.on["call"] = stuck
    with anyio.fail_after(5):
        async with bridge(board) as wire:
            await wire.send(json.dumps(request("call", NOOP)).encode() + b"\n")
            await begun.wait()


async def test_a_client_that_stops_reading_ends_everything() -> None:
    """B26 B32: the broken pipe is no signal and no traceback, and what it carried was not sent."""
    board = Scripted()
    with anyio.fail_after(5):
        async with bridge(board) as wire:
            wire.stop_reading()
            await wire.send(json.dumps(request("call", NOOP)).encode() + b"\n")
            assert await board.until_told("r_1") is False


async def test_too_many_requests_at_once_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """S22."""
    monkeypatch.setattr(stdio, "MAX_REQUESTS", 1)
    board = Scripted()
    go = anyio.Event()

    async def late(_: Any) -> OperationView:
        await go.wait()
        return view()

    board.on["call"] = late
    async with bridge(board) as wire:
        first, second = (json.dumps(request("call", NOOP, identifier=each)).encode() for each in (1, 2))
        await wire.send(first + b"\n" + second + b"\n")
        refused = await wire.receive()
        assert (refused["id"], refused["error"]["data"]["retryable"]) == (2, True)
        go.set()
        assert (await wire.receive())["id"] == 1


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(1, 60))
def test_lines_are_the_same_however_the_bytes_arrive(pieces: list[bytes], limit: int) -> None:
    """B61: a reader that depends on how much comes at once loses messages."""
    whole = b"".join(pieces)
    cut = Lines(limit)
    found = [line for piece in pieces for line in cut.feed(piece)] + list(cut.end())
    expected = [line for line in whole.split(b"\n") if len(line) > limit or line.strip()]
    assert len(found) == len(expected)
    for line, wanted in zip(found, expected, strict=True):
        assert isinstance(line, LongLine) is (len(wanted) > limit)
        if not isinstance(line, LongLine):
            assert line == wanted.strip()


def test_a_line_without_an_end_takes_no_memory() -> None:
    """S22: 100 MB of it."""
    cut = Lines()
    for _ in range(1600):
        assert list(cut.feed(b"x" * 65536)) == []
        assert sum(len(part) for part in cut._parts) <= LINE_MAX + 65536
    (line,) = cut.feed(b"\n")
    assert isinstance(line, LongLine)
    assert len(line) < 10_000


# --- a real process -----------------------------------------------------------------------------


@contextmanager
def child(**environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        CHILD,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def test_stdout_holds_nothing_but_answers() -> None:
    """B74 B75 B77 B32: prints, a chatty stderr, children and a foreign locale; then the end of input."""
    check = {"calls": [{"name": "say", "arguments": {"text": "✓ Приве́т 😀"}}]}
    noise = {"calls": [{"name": "noise", "arguments": {"text": "x" * 40_000}}]}
    asked = [request("call", check, 1), request("call", noise, 2), request("call", check, 3)]
    fed = b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in asked)
    with child(PYTHONIOENCODING="cp1252", PYTHONUTF8="0", LC_ALL="C") as process:
        out, err = process.communicate(fed, timeout=20)
        assert process.returncode == 0
    answers = {answer["id"]: answer for answer in map(json.loads, out.decode("utf-8").splitlines())}
    assert sorted(answers) == [1, 2, 3]
    assert answers[3]["result"]["content"][-1]["text"] == "stdio ✓ Приве́т 😀"
    for printed in (b"printed at import", b"printed by a tool", b"printed by a child"):
        assert printed in err


def test_the_process_ends_with_its_input_whatever_is_under_way() -> None:
    """B32: not later than two seconds after; the bound here is the machine's."""
    with child() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stuck = request("call", {"calls": [{"name": "stuck", "arguments": {}}]}, 1)
        process.stdin.write(
            json.dumps(stuck).encode() + b"\n" + json.dumps(request("sessions", {}, 2)).encode() + b"\n"
        )
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 2
        process.stdin.close()
        assert process.wait(timeout=20) == 0


def test_a_signal_ends_the_process_although_its_input_stays_open() -> None:
    with child() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request("sessions")).encode() + b"\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28", "auto"])
async def test_the_sdks_own_client_calls_over_stdio(mode: Any) -> None:
    server = StdioServerParameters(command=CHILD[0], args=CHILD[1:], env=dict(os.environ))
    with anyio.fail_after(20):
        async with Client(stdio_client(server), mode=mode) as session:
            assert len((await session.list_tools()).tools) == len(TOOLS)
            found = await session.call_tool("call", {"calls": [{"name": "say", "arguments": {"text": "✓"}}]})
    assert found.content[-1].text == "stdio ✓"
