"""A working directory with the native tools in it."""

import contextlib
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from chappie_agents.policy import Policy
from chappie_agents.spool import Spool
from chappie_agents.tools import BUILTIN, ToolContext, ToolFailed
from pydantic import JsonValue

from chappie_bridge.wire.blocks import Content, Text
from chappie_bridge.wire.ids import SessionId


class Call(Protocol):
    def __call__(self, name: str, **arguments: JsonValue) -> Awaitable[Content]: ...


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    cwd = tmp_path / "work"
    cwd.mkdir()
    return ToolContext(
        cwd=cwd.resolve(),
        spool=Spool(tmp_path / "spool"),
        policy=Policy(),
        session=SessionId("s_test"),
        environment=dict(os.environ),
    )


@pytest.fixture
def call_in() -> Callable[[ToolContext], Call]:
    tools = {tool.name: tool for tool in BUILTIN}

    def bind(context: ToolContext) -> Call:
        async def call(name: str, **arguments: JsonValue) -> Content:
            return await tools[name].run(tools[name].parse(arguments), context)

        return call

    return bind


@pytest.fixture
def call(context: ToolContext, call_in: Callable[[ToolContext], Call]) -> Call:
    """Calls a tool by name in `context`."""
    return call_in(context)


@pytest.fixture
def failing(call: Call) -> Callable[..., Awaitable[Content]]:
    """The content with which a call fails."""

    async def fail(name: str, **arguments: JsonValue) -> Content:
        with pytest.raises(ToolFailed) as failure:
            await call(name, **arguments)
        return failure.value.content

    return fail


@pytest.fixture
def said() -> Callable[[Content], dict[str, JsonValue]]:
    """The facts of the status block, which comes last."""

    def read(content: Content) -> dict[str, JsonValue]:
        last = content[-1]
        assert isinstance(last, Text)
        facts = json.loads(last.text)
        assert isinstance(facts, dict)
        return facts

    return read


@pytest.fixture
def stray() -> Iterator[list[int]]:
    """Ids of processes that a test leaves behind on purpose; they are ended after it."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
