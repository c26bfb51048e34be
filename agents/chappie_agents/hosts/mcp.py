"""Any MCP server as a session: its tools are the native tools, its resources can be read.  Starts the
server's process and starts it again when it dies; repeats no call by itself."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio
import mcp_types as types
from anyio import to_thread
from anyio.abc import TaskStatus
from mcp import Client, MCPError, StdioServerParameters
from pydantic import JsonValue

from chappie_agents.spool import fits
from chappie_agents.tools.tool import Arguments, Tool, ToolContext, ToolFailed
from chappie_bridge.codec.calling import calls_for
from chappie_bridge.codec.turn import OfferedTool
from chappie_bridge.wire.blocks import Block, Content, Image, ResourceLink, Text
from chappie_bridge.wire.errors import Lost
from chappie_bridge.wire.ids import CallId
from chappie_bridge.wire.values import ToolCall, ToolDefinition

log = logging.getLogger("chappie.mcp")

START_WITHIN = 30.0
"""Seconds in which a server must answer for the first time, and within which a call waits for it."""

LOOK_EVERY = 15.0
"""Seconds between two looks whether an idle server is still there."""

LOOK_WITHIN = 60.0
"""Seconds in which it must answer such a look."""

LONGEST_PAUSE = 30.0

MAX_TOOLS = 500
"""Tools of one server that are listed."""

READ_RESOURCE = "read_resource"
"""The tool by which resources are read, where the server has some and no tool of that name."""


_R = TypeVar("_R")


class Given(Arguments):
    """Arguments as they came; the server's own schema has checked them."""

    values: dict[str, JsonValue]


@dataclass(frozen=True)
class ForeignTool(Tool):
    """A tool of the server."""

    schema: Mapping[str, JsonValue]

    def parse(self, arguments: Mapping[str, JsonValue]) -> Arguments:
        """:raises BadArguments: they do not fit the server's schema."""
        offered = OfferedTool("function", self.name, self.description, dict(self.schema))
        calls_for([offered], [ToolCall(id=CallId("call"), name=self.name, arguments=dict(arguments))])
        return Given(values=dict(arguments))

    def definition(self) -> ToolDefinition:
        return ToolDefinition(name=self.name, description=self.description, parameters=dict(self.schema))


class Server:
    """The server's process.  `run` owns it."""

    def __init__(self, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
        self._parameters = StdioServerParameters(
            command=command[0], args=list(command[1:]), env=dict(environment), cwd=directory
        )
        self._client: Client | None = None
        self._there = anyio.Event()
        self._broken = anyio.Event()
        self._working = 0

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled.  Started once the server answered for the first time.

        :raises Lost: it did not."""
        started, pause = False, 0.5
        while True:
            began = anyio.current_time()
            try:
                with anyio.fail_after(None if started else START_WITHIN) as patience:
                    async with Client(self._parameters) as client:
                        patience.deadline = float("inf")
                        self._client, self._broken = client, anyio.Event()
                        self._there.set()
                        if not started:
                            started = True
                            task_status.started()
                        await self._watch(client)
            except Exception as error:
                if not started:
                    raise Lost(f"The MCP server did not answer: {_words(error)}") from error
                log.warning("the MCP server ended: %s", _words(error))
            finally:
                if self._client is not None:
                    self._client, self._there = None, anyio.Event()
            pause = 0.5 if anyio.current_time() - began > LONGEST_PAUSE else min(2 * pause, LONGEST_PAUSE)
            await anyio.sleep(pause)

    async def _watch(self, client: Client) -> None:
        """Until it does not answer any more.  One that is at work is left alone."""
        while True:
            with anyio.move_on_after(LOOK_EVERY):
                await self._broken.wait()
                return
            if not self._working:
                with anyio.fail_after(LOOK_WITHIN):
                    await client.list_tools()

    async def tools(self) -> tuple[Tool, ...]:
        """Those that it has now.  :raises Lost: it is not there."""
        client = await self._connected()
        found: list[Tool] = []
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            found += [self._tool(each) for each in page.tools]
            cursor = page.next_cursor
            if cursor is None or len(found) >= MAX_TOOLS:
                break
        names = {tool.name for tool in found}
        if client.server_capabilities.resources is not None and READ_RESOURCE not in names:
            found.append(self._resource_tool())
        return tuple(found[:MAX_TOOLS])

    def _tool(self, told: types.Tool) -> Tool:
        async def run(arguments: Arguments, context: ToolContext) -> Content:
            values = arguments.values if isinstance(arguments, Given) else {}
            result = await self._ask(lambda client: client.call_tool(told.name, values))
            content = await _fitting(_content(result.content, result.structured_content), context)
            if result.is_error:
                raise ToolFailed(content)
            return content

        hints = told.annotations
        parallel = hints is not None and hints.read_only_hint is True
        return ForeignTool(
            told.name, told.description or told.title or "", Given, parallel, run, told.input_schema
        )

    def _resource_tool(self) -> Tool:
        async def run(arguments: Arguments, context: ToolContext) -> Content:
            uri = str(arguments.values["uri"]) if isinstance(arguments, Given) else ""
            result = await self._ask(lambda client: client.read_resource(uri))
            return await _fitting(tuple(_resource(each) for each in result.contents), context)

        field: dict[str, JsonValue] = {"type": "string", "description": "The resource's address."}
        schema: dict[str, JsonValue] = {
            "type": "object",
            "properties": {"uri": field},
            "required": ["uri"],
            "additionalProperties": False,
        }
        about = "Read a resource of this server, such as one that a result refers to."
        return ForeignTool(READ_RESOURCE, about, Given, True, run, schema)

    async def _ask(self, ask: Callable[[Client], Awaitable[_R]]) -> _R:
        """One request.  :raises ToolFailed: it was refused, or the server died meanwhile."""
        try:
            client = await self._connected()
        except Lost as error:
            raise ToolFailed(f"{error} Nothing ran.") from error
        self._working += 1
        try:
            return await ask(client)
        except MCPError as error:
            if error.error.code == types.CONNECTION_CLOSED:
                self._lose(client)
                raise ToolFailed(
                    "The MCP server ended while this ran; whether it took effect is not known."
                ) from error
            raise ToolFailed(f"The MCP server refused it: {error.error.message}") from error
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            self._lose(client)
            raise ToolFailed("The MCP server had ended; it is started again. Nothing ran.") from error
        finally:
            self._working -= 1

    def _lose(self, client: Client) -> None:
        """It is gone; who asks now waits for its successor."""
        if self._client is client:
            self._client, self._there = None, anyio.Event()
            self._broken.set()

    async def _connected(self) -> Client:
        with anyio.move_on_after(START_WITHIN):
            await self._there.wait()
        if self._client is None:
            raise Lost("The MCP server cannot be reached.")
        return self._client


def _content(blocks: Sequence[object], structured: object) -> Content:
    if not blocks and structured is not None:
        return (Text(text=json.dumps(structured, ensure_ascii=False)),)
    return tuple(_block(block) for block in blocks)


def _block(block: object) -> Block:
    match block:
        case types.TextContent(text=text):
            return Text(text=text)
        case types.ImageContent(data=data, mime_type=mime_type):
            return Image(data=data, mime_type=mime_type)
        case types.ResourceLink():
            return ResourceLink(
                uri=str(block.uri),
                name=block.name,
                mime_type=block.mime_type,
                size=block.size,
                description=block.description,
            )
        case types.EmbeddedResource(resource=resource):
            return _resource(resource)
        case _:
            dump = getattr(block, "model_dump_json", None)
            return Text(text=dump(exclude_none=True) if dump is not None else str(block))


def _resource(resource: object) -> Block:
    match resource:
        case types.TextResourceContents(text=text):
            return Text(text=text)
        case types.BlobResourceContents(blob=blob, mime_type=kind) if (kind or "").startswith("image/"):
            return Image(data=blob, mime_type=kind or "image/png")
        case types.BlobResourceContents():
            size = len(resource.blob) * 3 // 4
            return ResourceLink(
                uri=str(resource.uri), name=str(resource.uri), mime_type=resource.mime_type, size=size
            )
        case _:
            return Text(text=str(resource))


async def _fitting(content: Content, context: ToolContext) -> Content:
    if all(fits(block) for block in content):
        return content
    return await to_thread.run_sync(context.spool.fit, content)


def _words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return str(error) or type(error).__name__
