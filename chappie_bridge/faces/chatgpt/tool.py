"""What a tool of the face is: its arguments, its hints, what a call has at hand.  Knows none by name."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from chappie_bridge.codec.schema import flat_schema
from chappie_bridge.faces.chatgpt.exchange import Exchange
from chappie_bridge.faces.chatgpt.present import Presented, Presenter
from chappie_bridge.wire.ids import MAX_ID, SessionId
from chappie_bridge.wire.ports import Switchboard
from chappie_bridge.wire.values import Caller

MAX_WAIT = 50.0

MAX_FILTER = 1024
"""Characters of a filter, a path or a search."""


class Arguments(BaseModel):
    """What a tool takes.  Nothing is converted, nothing unknown is let through."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel)


Short = Annotated[str, Field(min_length=1, max_length=MAX_FILTER)]
Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
Target = Annotated[
    str, Field(min_length=1, max_length=MAX_ID, description="Default: this conversation's session.")
]
Wait = Annotated[
    float, Field(ge=0, le=MAX_WAIT, description="Seconds to wait for the result; later it comes by itself.")
]


class Turn(NamedTuple):
    """What one tool call has at hand.  `patience` is the default wait in seconds."""

    switchboard: Switchboard
    present: Presenter
    exchange: Exchange
    caller: Caller
    meta: Mapping[str, Any] | None
    patience: float


A = TypeVar("A", bound=Arguments)


@dataclass(frozen=True)
class Tool(Generic[A]):
    """`description` says when to use it, for a model.  The hints are SPEC's table, and true."""

    name: str
    title: str
    description: str
    read_only: bool
    destructive: bool
    idempotent: bool
    open_world: bool
    arguments: type[A]
    run: Callable[[Turn, A], Awaitable[Presented]]
    meta: Mapping[str, JsonValue] = field(default_factory=dict)
    """What hosts read beside the standard's own keys."""
    output: Mapping[str, JsonValue] | None = None
    """The schema of its `structuredContent`."""

    def definition(self) -> dict[str, JsonValue]:
        """As `tools/list` sends it."""
        definition: dict[str, JsonValue] = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": flat_schema(self.arguments),
            "annotations": {
                "title": self.title,
                "readOnlyHint": self.read_only,
                "destructiveHint": self.destructive,
                "idempotentHint": self.idempotent,
                "openWorldHint": self.open_world,
            },
        }
        if self.output is not None:
            definition["outputSchema"] = {**self.output}
        if self.meta:
            definition["_meta"] = {**self.meta}
        return definition


def session_id(value: str | None) -> SessionId | None:
    return None if value is None else SessionId(value)
