"""What a program asks its model for beside the person's work: recognised, and answered without a model
where that is right.  Pure.

Nothing here ever grants a permission: a security classifier is answered `block`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import JsonValue

from chappie_bridge.codec.loose import Record, compact, plain, record, series
from chappie_bridge.codec.programs import Headers
from chappie_bridge.codec.turn import Answer, Answered, Outcome, Piece, Program, Said, Side, Summary, Turn
from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.blocks import Text

# --- which kind ---------------------------------------------------------------------------------


class Evidence(NamedTuple):
    """What tells a side request from a turn.  `last` is the last text in the person's place,
    `metadata` what Codex says about the request."""

    headers: Headers
    metadata: Record
    system: str
    last: str
    tools: int
    form: Record | None
    stop: tuple[str, ...]


_Where = Literal[
    "system says", "system begins", "last begins", "stops at", "header", "metadata", "form asks for"
]


class Rule(NamedTuple):
    """One line of the table: what is found `where`.  `program` None: any.  `name` is the header's or
    the metadata's name.  `toolless`: only in a request without tools."""

    program: Program | None
    side: Side
    where: _Where
    value: str
    name: str = ""
    toolless: bool = False


RULES: tuple[Rule, ...] = (
    Rule(None, "classifier", "system says", "You are a security monitor for autonomous AI coding agents."),
    Rule(None, "classifier", "stops at", "</block>"),
    Rule("pi", "compaction", "system begins", "You are a context summarization assistant", toolless=True),
    Rule("codex", "title", "metadata", "thread_title", name="thread_source"),
    Rule("codex", "compaction", "metadata", "compaction", name="request_kind"),
    Rule("opencode", "title", "header", "title", name="x-chappie-agent"),
    Rule("opencode", "compaction", "header", "compaction", name="x-chappie-agent"),
    Rule("opencode", "title", "system begins", "You are a title generator", toolless=True),
    Rule("opencode", "compaction", "system begins", "You are a context summarization agent", toolless=True),
    Rule(
        "claude",
        "compaction",
        "last begins",
        "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
    ),
    Rule("claude", "title", "form asks for", "title", toolless=True),
    Rule("qwen", "memory", "last begins", "Managed memory has TWO directories."),
)
"""First match counts.  "No tools" alone is no sign: Claude's compaction, Qwen's memory extraction and
Codex's titles carry tools, a turn of Aider carries none."""


def classify(who: Program, seen: Evidence) -> Side | None:
    """Which side request this is; None: a turn of the person's work."""
    return next((row.side for row in RULES if row.program in (None, who) and _holds(row, seen)), None)


def _holds(row: Rule, seen: Evidence) -> bool:
    if row.toolless and seen.tools:
        return False
    match row.where:
        case "system says":
            return row.value in seen.system
        case "system begins":
            return seen.system.startswith(row.value)
        case "last begins":
            return seen.last.startswith(row.value)
        case "stops at":
            return row.value in seen.stop
        case "header":
            return seen.headers.get(row.name) == row.value
        case "metadata":
            return seen.metadata.get(row.name) == row.value
        case "form asks for":
            return row.value in record((seen.form or {}).get("properties"))


# --- answered here ------------------------------------------------------------------------------

TITLE = 40
"""Characters of a title where the program names no bound."""

_LONGEST_TITLE = 120
_TITLE_OF: dict[Program, re.Pattern[str]] = {
    "codex": re.compile(r".*\nUser prompt:\n(.*)", re.DOTALL),
    "claude": re.compile(r".*<session>\n?(.*?)\n?</session>.*", re.DOTALL),
}


def local_answer(turn: Turn) -> Answer | None:
    """The answer that needs no model: a title in the asked form, "nothing to remember", "block".  None
    for the person's turns and for compactions, whose answer is a model's work (`digest` is the fallback).
    """
    match turn.side:
        case "title":
            return Answer(text=title(turn))
        case "memory":
            return Answer(text="Nothing to save.")
        case "classifier":
            if "</block>" in turn.stop:
                return Answer(text="<block>yes", stop="</block>")
            return Answer(text="<block>yes</block>")
        case _:
            return None


def title(turn: Turn) -> str:
    """The first words of the person's text, as JSON where the request asks for a schema."""
    asked = next((part.text for part in reversed(turn.ask) if isinstance(part, Text)), "")
    if (form := _TITLE_OF.get(turn.program)) and (found := form.fullmatch(asked)):
        asked = found[1]
    if turn.form is None:
        return _first_words(asked, TITLE)
    return compact(_filled(turn.form, asked))


def _first_words(text: str, limit: int) -> str:
    line = display(" ".join(text.split()).strip("\"' "), 4 * limit)
    if len(line) > limit:
        cut = line[: limit + 1].rpartition(" ")[0]
        line = cut or line[:limit]
    return line.rstrip(" .,;:!?…\"'") or "Session"[:limit]


def _filled(form: Record, title_text: str) -> JsonValue:
    """The smallest value that fits `form`, with the title in each text."""
    if options := series(form.get("enum")):
        return options[0]
    match form.get("type"):
        case "object":
            fields, wanted = record(form.get("properties")), series(form.get("required"))
            return {
                name: _filled(record(field), title_text) for name, field in fields.items() if name in wanted
            }
        case "array":
            return []
        case "boolean":
            return False
        case "integer" | "number":
            return 0
        case "null":
            return None
        case _:
            bound = form.get("maxLength")
            limit = min(bound, _LONGEST_TITLE) if isinstance(bound, int) and bound > 0 else TITLE
            return _first_words(title_text, limit)


# --- the fallback for a compaction --------------------------------------------------------------

DIGEST = 12_000
"""Characters of a digest at most."""

_ASKED = (20, 400)
_DONE = (40, 200)
_LAST = 2_000
_EARLIER = 4_000

_CONVERSATION = re.compile(
    r"<conversation>\n(.*?)\n?</conversation>|# Conversation\n(.*?)\n\n# Instructions", re.DOTALL
)
_PREVIOUS = re.compile(r"<previous-summary>\n?(.*?)\n?</previous-summary>", re.DOTALL)
_LINE = re.compile(r"^\[([A-Z][A-Za-z ]*)\]: ?", re.MULTILINE)

_Who = Literal["person", "model", "call", "result", "summary"]
_LABELS: Mapping[str, _Who] = {
    "User": "person",
    "Assistant": "model",
    "Assistant tool calls": "call",
    "Tool result": "result",
}


class _Line(NamedTuple):
    who: _Who
    text: str


def digest(turn: Turn) -> Answer:
    """A summary made without a model: the person's requests, the calls, the last answer, each clipped.
    The same request gives the same digest.  For a compaction that no model answered in time.
    """
    lines = list(_told(plain(turn.ask)) if turn.program in ("pi", "opencode") else _lived(turn.history))
    parts = [
        _part(
            "Earlier summary", [_clip(line.text, _EARLIER) for line in lines if line.who == "summary"][-1:]
        ),
        _listed("What the person asked", (line.text for line in lines if line.who == "person"), _ASKED),
        _listed("What was called", (line.text for line in lines if line.who == "call"), _DONE),
        _part("Last answer", [_clip(line.text, _LAST) for line in lines if line.who == "model"][-1:]),
    ]
    head = "This digest was made without a model. Read the files again before relying on it."
    text = _clip("\n\n".join([head, *(part for part in parts if part)]), DIGEST)
    if turn.program == "claude":
        text = f"<analysis>\nNone.\n</analysis>\n<summary>\n{text}\n</summary>"
    return Answer(text=text)


def _told(prompt: str) -> Iterable[_Line]:
    """The conversation that Pi and OpenCode write into the prompt."""
    for previous in _PREVIOUS.finditer(prompt):
        yield _Line("summary", previous[1])
    found = _CONVERSATION.search(prompt)
    conversation = (found[1] or found[2] or "") if found else prompt
    marks = list(_LINE.finditer(conversation))
    ends = [*(mark.start() for mark in marks[1:]), len(conversation)]
    for mark, end in zip(marks, ends, strict=False):
        if who := _LABELS.get(mark[1]):
            yield _Line(who, conversation[mark.end() : end].strip())
    if not marks:
        yield _Line("model", conversation)


def _lived(history: Sequence[Piece]) -> Iterable[_Line]:
    """The history that Codex and Claude Code send along; its last words are the prompt itself."""
    prompt = max((piece.at for piece in history if isinstance(piece, Said)), default=-1)
    for piece in history:
        match piece:
            case Said() if piece.at != prompt:
                yield _Line("person", plain(piece.content))
            case Answered():
                yield from (_Line("call", f"{call.name} {call.arguments}") for call in piece.calls)
                if piece.text:
                    yield _Line("model", piece.text)
            case Outcome() if piece.is_error or piece.aborted:
                what = "aborted" if piece.aborted else "failed"
                yield _Line("call", f"{piece.name} {what}: {plain(piece.content)}")
            case Summary():
                yield _Line("summary", piece.text)
            case _:
                pass


def _listed(heading: str, texts: Iterable[str], bound: tuple[int, int]) -> str:
    count, size = bound
    found = list(texts)
    left = len(found) - count
    lines = [f"- {_clip(' '.join(text.split()), size)}" for text in found[-count:]]
    return _part(heading, [f"- ({left} earlier ones left out)", *lines] if left > 0 else lines)


def _part(heading: str, lines: list[str]) -> str:
    return "\n".join([f"## {heading}", *lines]) if lines else ""


def _clip(text: str, size: int) -> str:
    """`text` in at most `size` characters, without its middle."""
    if len(text) <= size:
        return text
    half = (size - 3) // 2
    return f"{text[:half]} … {text[-half:]}"
