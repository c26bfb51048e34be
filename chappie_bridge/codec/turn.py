"""One request of an agent program to its model, and our answer, in no program's words.

Pure data.  Knows no protocol and no program: `openai_chat`, `openai_responses` and `anthropic_messages`
make turns, `programs` knows whose habits are whose, `tail` tells what is new.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from chappie_bridge.codec.loose import Record, compact
from chappie_bridge.wire.blocks import Content
from chappie_bridge.wire.ids import CallId, SessionId
from chappie_bridge.wire.values import ToolDefinition

Program = Literal["pi", "codex", "opencode", "claude", "qwen", "cline", "aider", "mini", "other"]
Api = Literal["chat", "responses", "messages"]
Side = Literal["title", "compaction", "memory", "classifier"]
"""What a program asks its model for beside the person's work."""

OUR_CALL = "call_chp_"
"""How each call id of ours begins.  Every program gives it back unchanged, and writes it down."""


def is_ours(call: str) -> bool:
    return call.startswith(OUR_CALL)


# --- what a program offers ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool of this very request.  A `custom` tool takes one raw text instead of arguments; its
    `parameters` are then the grammar as the program gave it."""

    kind: Literal["function", "custom"]
    name: str
    description: str
    parameters: Record
    namespace: str | None = None

    @property
    def full_name(self) -> str:
        """The name by which ChatGPT calls it; unique within a turn."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    def definition(self) -> ToolDefinition:
        """As the wire describes tools.  A custom tool has the one parameter `input`."""
        if self.kind == "function":
            return ToolDefinition(
                name=self.full_name, description=self.description, parameters=dict(self.parameters)
            )
        field: dict[str, JsonValue] = {"type": "string", "description": compact(dict(self.parameters))}
        return ToolDefinition(
            name=self.full_name,
            description=self.description,
            parameters={"type": "object", "properties": {"input": field}, "required": ["input"]},
        )


# --- what is in its history ---------------------------------------------------------------------
# `at` is the index of the message or item that a piece came from; one message may hold several pieces.


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call as the history tells it.  `renamed`: the program replaced an unknown name in its history;
    `name` is the one that was called."""

    id: str
    name: str
    arguments: str
    namespace: str | None = None
    renamed: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """What a model said: ours, or another's before the person chose us."""

    at: int
    text: str
    calls: tuple[PastCall, ...] = ()

    @property
    def ours(self) -> bool:
        return any(is_ours(call.id) for call in self.calls)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call gave back.  `aborted`: the person stopped it; it may have done part of its work."""

    at: int
    call: str
    name: str
    content: Content
    is_error: bool = False
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """What the person typed or attached.  `id` is the program's own id of the item, if it has one."""

    at: int
    content: Content
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """The person stopped the turn here."""

    at: int
    text: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What stands in the place of a history that was compacted; our call ids before it are gone."""

    at: int
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """What the program adds by itself: system text, reminders, its environment.  Not from the person."""

    at: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """An item or block that we have no word for, as it came."""

    at: int
    raw: JsonValue


Piece = Answered | Outcome | Said | Abort | Summary | Note | Unknown


# --- whose it is --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Which session a request belongs to: the program's own id, else the one that minted `calls` (our
    call ids in its history, newest first), else a new one."""

    id: SessionId | None
    calls: tuple[CallId, ...] = ()

    @property
    def how(self) -> Literal["native", "calls", "new"]:
        return "native" if self.id else "calls" if self.calls else "new"


@dataclass(frozen=True, slots=True)
class Subagent:
    """Which sub-agent of the session asks.  `id` is None where the program says only that it is one;
    `parent` is another sub-agent that started it, where the program says so."""

    id: str | None
    kind: str
    parent: str | None = None


Anchor = Literal["calls", "answer", "summary", "start"]
"""What the tail begins after: our last calls, else any last answer, else a summary, else nothing."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request.  It refers to the body's own strings and copies nothing large; who holds a turn for
    long keeps the few fields that matter, not the turn.

    `tail` is what came after `anchor`.  `ask` is the prompt of a side request, `form` the JSON Schema it
    wants its answer in.  `other_tools` are entries nobody can call: hosted tools, placeholders.
    `turn_id` is the program's own id of one user turn.  `extra` are fields of the body that no codec
    reads, `body` is all of it.
    """

    program: Program
    version: str | None
    api: Api
    model: str
    session: SessionKey
    agent: Subagent | None
    cwd: str | None
    tools: tuple[OfferedTool, ...]
    other_tools: tuple[JsonValue, ...]
    system: str
    history: tuple[Piece, ...]
    anchor: Anchor
    start: int
    side: Side | None
    ask: Content
    form: Record | None
    stop: tuple[str, ...]
    stream: bool
    wants_usage: bool
    turn_id: str | None
    extra: Record
    body: Record

    @property
    def tail(self) -> tuple[Piece, ...]:
        return self.history[self.start :]

    @property
    def results(self) -> tuple[Outcome, ...]:
        """Results of our calls in the tail, in the program's order.  After a text answer, or when a
        request is sent again, they are told again: a receiver is idempotent by call id."""
        return tuple(piece for piece in self.tail if isinstance(piece, Outcome) and is_ours(piece.call))

    def results_of(self, calls: Sequence[str]) -> tuple[Outcome | None, ...]:
        """The results of `calls` in their order, whatever order the program finished them in."""
        found = {piece.call: piece for piece in self.results}
        return tuple(found.get(call) for call in calls)

    @property
    def said(self) -> tuple[Said, ...]:
        """What the person typed since the last answer of any model."""
        if self.side in ("title", "classifier"):
            return ()
        said = [piece for piece in _unanswered(self.tail) if isinstance(piece, Said)]
        return tuple(said[:-1] if self.side else said)

    @property
    def last_said(self) -> Said | None:
        """The person's last words, answered or not: all there is to go by where a compaction put its
        summary after them."""
        if self.side in ("title", "classifier"):
            return None
        found = [piece for piece in self.history if isinstance(piece, Said)]
        return found[-2 if self.side else -1] if len(found) > bool(self.side) else None

    @property
    def aborts(self) -> tuple[Abort | Outcome, ...]:
        """Marks since the last answer that the person stopped the turn, or single calls of it."""
        return tuple(
            piece
            for piece in _unanswered(self.tail)
            if isinstance(piece, Abort) or (isinstance(piece, Outcome) and piece.aborted)
        )

    @property
    def summaries(self) -> tuple[Summary, ...]:
        return tuple(piece for piece in self.history if isinstance(piece, Summary))

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        return tuple(piece for piece in self.tail if isinstance(piece, Unknown))

    @property
    def session_id(self) -> SessionId | None:
        """The session's id; for a sub-agent `<parent>/<agent>`.  None where the program gives none."""
        if not self.session.id or not self.agent:
            return self.session.id
        return SessionId(f"{self.session.id}/{self.agent.id}") if self.agent.id else None


def _unanswered(tail: Sequence[Piece]) -> Sequence[Piece]:
    for index in range(len(tail) - 1, -1, -1):
        if isinstance(tail[index], Answered):
            return tail[index + 1 :]
    return tail


# --- the answer ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """A call for the program.  `input` is a custom tool's raw text; then `arguments` are empty."""

    id: CallId
    name: str
    arguments: Record
    namespace: str | None = None
    input: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Calls, or text, or both.  Calls always end the answer; text alone does where it is `final`, else
    it is progress and the request stays open.  `stop` is the stop sequence that ended the text."""

    text: str = ""
    calls: tuple[AnswerCall, ...] = ()
    final: bool = True
    stop: str | None = None

    @property
    def ends(self) -> bool:
        return self.final or bool(self.calls)
