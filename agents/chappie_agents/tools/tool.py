"""What a native tool is, and what its run may lean on.  Runs nothing and knows no tool by name."""

import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from anyio import to_thread
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError

from chappie_agents.policy import Policy
from chappie_agents.resolved import Changed, NotRegular
from chappie_agents.spool import Spool, fits
from chappie_bridge.codec.schema import explain, flat_schema
from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.blocks import Content, Text
from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.ids import ConversationId, SessionId
from chappie_bridge.wire.values import ToolDefinition

OUTPUT_MAX = 256 * 1024 * 1024
"""Bytes that one call may bring out of a command or a file."""

MAX_NAME = 4096
"""Characters of a path, given or shown."""


class Arguments(BaseModel):
    """Base of each tool's arguments.  Unknown ones are refused by name; types are not bent."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"half of a character (a lone surrogate) at position {error.start}") from None
    return value


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("a NUL character cannot be part of this")
    return value


Writable = Annotated[str, AfterValidator(_text)]
"""Text that has a UTF-8 form."""

Word = Annotated[Writable, AfterValidator(_no_nul), Field(min_length=1)]
"""Text that can be handed to a program: no NUL."""

GivenPath = Annotated[Word, Field(max_length=MAX_NAME)]


class ToolFailed(Exception):
    """The tool's own error: what it has to say, in native blocks."""

    def __init__(self, content: Content | str) -> None:
        self.content: Content = (Text(text=content),) if isinstance(content, str) else content
        super().__init__(next((block.text for block in self.content if isinstance(block, Text)), ""))


@dataclass(frozen=True)
class ToolContext:
    """Where a call runs.  `output_max` bounds what one call brings out, in bytes; `leave` takes what a call
    that is cancelled had brought out until then."""

    cwd: Path
    spool: Spool
    policy: Policy
    session: SessionId
    environment: Mapping[str, str]
    conversation: ConversationId | None = None
    output_max: int = OUTPUT_MAX
    leave: Callable[[Content], None] = lambda _: None

    async def fit(self, content: Content) -> Content:
        """`content` with every block that is too long for a result spilled."""
        return await _fit(content, self.spool)

    async def permit(self, tool: str, path: str, *, writing: bool = False, what: str = "") -> Path:
        """The real path once the owner's policy allows it.  Raises `Denied`, `BadArguments`, `Overloaded`."""
        return await self.policy.permit(
            path,
            cwd=self.cwd,
            tool=tool,
            writing=writing,
            session=self.session,
            conversation=self.conversation,
            what=what,
        )


@dataclass(frozen=True)
class Tool:
    """A native tool.  Consecutive `parallel` calls of a batch run together; any other call waits for
    those before it and holds back those after it.

    `run` raises `ToolFailed` for the tool's own error, a `BridgeError` where it did not come to run.
    No block it gives or raises is above `SPILL_ABOVE`: longer ones are spilled.
    """

    name: str
    description: str
    arguments: type[Arguments]
    parallel: bool
    run: Callable[[Arguments, ToolContext], Awaitable[Content]]

    def parse(self, arguments: Mapping[str, JsonValue]) -> Arguments:
        """The arguments of one call, checked.  Raises `BadArguments` naming each fault."""
        try:
            return self.arguments.model_validate(arguments)
        except ValidationError as error:
            raise BadArguments(explain(error, self.arguments)) from None

    def definition(self) -> ToolDefinition:
        return ToolDefinition(
            name=self.name, description=self.description, parameters=flat_schema(self.arguments)
        )


_A = TypeVar("_A", bound=Arguments)


def tool(
    name: str,
    description: str,
    arguments: type[_A],
    run: Callable[[_A, ToolContext], Awaitable[Content]],
    *,
    parallel: bool,
) -> Tool:
    """A `Tool` whose `run` takes its own kind of arguments."""

    async def checked(given: Arguments, context: ToolContext) -> Content:
        if not isinstance(given, arguments):
            raise TypeError(f"{name} takes {arguments.__name__}")
        try:
            return await _fit(await run(given, context), context.spool)
        except ToolFailed as error:
            error.content = await _fit(error.content, context.spool)
            raise

    return Tool(name, " ".join(description.split()), arguments, parallel, checked)


async def _fit(content: Content, spool: Spool) -> Content:
    if all(fits(block) for block in content):
        return content
    return await to_thread.run_sync(spool.fit, content)


def status(**facts: JsonValue) -> Text:
    """What there is to say beside the data, as one compact JSON object; None is left out."""
    said = {key: value for key, value in facts.items() if value is not None}
    return Text(text=json.dumps(said, ensure_ascii=False, separators=(",", ":")))


def shown(path: Path | str) -> str:
    """A file name fit for reading: control characters and bytes that are no text are escaped."""
    text = "".join(
        f"\\x{ord(char) - 0xDC00:02x}" if "\udc80" <= char <= "\udcff" else char for char in str(path)
    )
    return display(text, MAX_NAME)


@contextlib.contextmanager
def speaking_of(path: Path) -> Generator[None, None, None]:
    """Turns what the system says of `path` into the tool's own error."""
    try:
        yield
    except (NotRegular, Changed) as error:
        raise ToolFailed(f"{shown(path)} {error.strerror}") from error
    except FileNotFoundError as error:
        raise ToolFailed(f"{shown(path)}: no such file or directory") from error
    except OSError as error:
        raise ToolFailed(f"{shown(path)}: {error.strerror or os.strerror(error.errno or 0)}") from error
