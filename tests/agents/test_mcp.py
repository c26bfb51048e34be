"""Any MCP server as a session, against a real server process."""

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from chappie_agents.hosts.mcp import READ_RESOURCE, Server
from chappie_agents.tools import Tool

from chappie_bridge.wire.blocks import Image, ResourceLink, Text
from chappie_bridge.wire.errors import Lost
from chappie_bridge.wire.messages import CallResult, Describe, Description
from tests.agents.stage import SESSION, FakeLink, Stage, batch, call, stage, texts

pytestmark = pytest.mark.anyio

SCRIPT = Path(__file__).parent / "mcp_server.py"


@asynccontextmanager
async def served(directory: Path) -> AsyncGenerator[tuple[Stage, FakeLink, tuple[Tool, ...]]]:
    server = Server([sys.executable, str(SCRIPT), str(directory / "starts")], directory, os.environ)
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run)
        tools = await server.tools()
        async with stage(directory, tools) as on:
            yield on, await on.link(), tools
        tasks.cancel_scope.cancel()


async def _ran(on: Stage, link: FakeLink, name: str, **arguments: object) -> CallResult:
    message = batch(call(name, **arguments))
    on.host.received(link, message)
    await link.finished(message.operation)
    return next(each for each in link.all(CallResult) if each.operation == message.operation)


async def test_its_tools_are_the_native_tools_with_images_links_and_failures(tmp_path: Path) -> None:
    async with served(tmp_path) as (on, link, tools):
        assert {tool.name for tool in tools} == {"add", "fail", "show", "die", READ_RESOURCE}
        assert [tool.name for tool in tools if tool.parallel] == ["add", READ_RESOURCE]
        on.host.received(link, Describe(request=5, session=SESSION, names=("add",)))
        (described,) = (await link.reply(Description, 5)).tools
        assert described.parameters["required"] == ["a", "b"]

        added = await _ran(on, link, "add", a=1, b=2)
        assert texts(added.result.content) == "3"
        failed = await _ran(on, link, "fail")
        assert failed.result.is_error
        assert "fail" in texts(failed.result.content)
        shown = await _ran(on, link, "show")
        text, image, resource = shown.result.content
        assert isinstance(text, Text)
        assert isinstance(image, Image)
        assert isinstance(resource, ResourceLink)
        note = await _ran(on, link, READ_RESOURCE, uri=resource.uri)
        assert texts(note.result.content) == "the note"


async def test_arguments_are_checked_by_its_own_schema_before_anything_runs(tmp_path: Path) -> None:
    async with served(tmp_path) as (on, link, _):
        message = batch(call("add", a=1, b=2), call("add", a="one"))
        on.host.received(link, message)
        finished = await link.finished(message.operation)
        assert finished.error is not None
        assert (finished.error.code, finished.executed) == ("bad_arguments", "no")
        assert not link.all(CallResult)


async def test_a_server_that_dies_is_started_again_and_no_call_is_repeated(tmp_path: Path) -> None:
    async with served(tmp_path) as (on, link, _):
        died = await _ran(on, link, "die")
        assert died.result.is_error
        assert "not known" in texts(died.result.content)
        added = await _ran(on, link, "add", a=20, b=22)
        assert texts(added.result.content) == "42"
        assert (tmp_path / "starts").read_text(encoding="utf-8").count("started") == 2


async def test_a_server_that_does_not_start_is_an_error_that_says_so(tmp_path: Path) -> None:
    server = Server([sys.executable, "-c", "raise SystemExit(3)"], tmp_path, os.environ)
    with pytest.raises((Lost, ExceptionGroup)) as refused:
        async with anyio.create_task_group() as tasks:
            await tasks.start(server.run)
    error = refused.value
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Lost)
