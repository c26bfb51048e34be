"""From a protocol's parts to a turn: the part of decoding that the three protocols share.  Pure."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from pydantic import JsonValue

from chappie_bridge.codec import programs, side
from chappie_bridge.codec.loose import Record, block, blocks_of, plain, record, series, string
from chappie_bridge.codec.tail import cut, our_calls
from chappie_bridge.codec.turn import (
    Abort,
    Answered,
    Api,
    Note,
    OfferedTool,
    Outcome,
    PastCall,
    Piece,
    Program,
    Said,
    SessionKey,
    Summary,
    Turn,
    Unknown,
)
from chappie_bridge.wire.blocks import Block, Content, Text


@dataclass(frozen=True, slots=True)
class Request:
    """What a protocol's codec read: `read` are the body's fields it understands."""

    api: Api
    headers: programs.Headers
    body: Record
    read: frozenset[str]
    who: programs.Who
    system: str
    tools: tuple[OfferedTool, ...]
    other_tools: tuple[JsonValue, ...]
    history: tuple[Piece, ...]
    form: Record | None
    stop: tuple[str, ...] = ()
    wants_usage: bool = True


def turn_of(request: Request) -> Turn:
    """The whole turn.

    :raises BadArguments: an id that cannot be one.
    """
    headers, body, who = request.headers, request.body, request.who.program
    history = _explained(who, _compacted(who, request.history))
    agent = programs.subagent(who, headers, request.system)
    said = [piece for piece in history if isinstance(piece, Said)]
    kind = side.classify(
        who,
        side.Evidence(
            headers,
            programs.codex_metadata(headers, body) if who == "codex" else {},
            request.system,
            plain(said[-1].content) if said else "",
            len(request.tools),
            request.form,
            request.stop,
        ),
    )
    where = cut(history)
    ask: Content = ()
    if kind in ("title", "classifier"):
        ask = tuple(part for piece in said for part in piece.content)
    elif kind and said:
        ask = said[-1].content
    prose = [request.system, *(piece.text for piece in history if isinstance(piece, Note))]
    return Turn(
        program=who,
        version=request.who.version,
        api=request.api,
        model=string(body.get("model")),
        session=SessionKey(programs.session_id(who, headers, body, agent), our_calls(history)),
        agent=agent,
        cwd=programs.directory(who, headers, body, prose),
        tools=request.tools,
        other_tools=request.other_tools,
        system=request.system,
        history=history,
        anchor=where.anchor,
        start=where.start,
        side=kind,
        ask=ask,
        form=request.form,
        stop=request.stop,
        stream=body.get("stream") is True,
        wants_usage=request.wants_usage,
        turn_id=programs.turn_id(who, headers, body),
        extra={name: value for name, value in body.items() if name not in request.read},
        body=body,
    )


def user_pieces(
    who: Program, at: int, value: JsonValue, item: str | None = None
) -> Iterator[Said | Abort | Summary | Note | Unknown]:
    """A message in the user's place, taken apart: what the person said, and what the program put there.

    Texts and images of the person that stand together stay together.
    """
    spoken: list[Block] = []
    for part in blocks_of(value):
        known = block(part)
        if known is None or isinstance(known, Text):
            reading = programs.read_user(who, known.text) if known else None
            if reading and reading.kind == "said":
                spoken.append(Text(text=reading.text))
                continue
            if spoken:
                yield Said(at, tuple(spoken), item)
                spoken = []
            if reading is None:
                yield Unknown(at, part)
            elif reading.kind == "abort":
                yield Abort(at, reading.text)
            elif reading.kind == "summary":
                yield Summary(at, reading.text)
            else:
                yield Note(at, reading.label, reading.text)
        else:
            spoken.append(known)
    if spoken:
        yield Said(at, tuple(spoken), item)


def past_call(who: Program, call: str, name: str, arguments: str, namespace: str | None = None) -> PastCall:
    """A call of the history, under the name that was called."""
    real = programs.real_name(who, name, arguments)
    return PastCall(call, real or name, arguments, namespace, renamed=real is not None)


def function_tool(entry: Record, schema: JsonValue, namespace: str | None = None) -> Iterator[OfferedTool]:
    """The function that `entry` describes; none when it has no name."""
    if name := string(entry.get("name")):
        yield OfferedTool("function", name, string(entry.get("description")), record(schema), namespace)


def sorted_tools(
    who: Program, entries: JsonValue, read: Callable[[Record], Iterable[OfferedTool]]
) -> tuple[tuple[OfferedTool, ...], tuple[JsonValue, ...]]:
    """The tools among `entries`, and the entries that nobody can call."""
    tools: list[OfferedTool] = []
    others: list[JsonValue] = []
    never = programs.PLACEHOLDERS.get(who, frozenset())
    for entry in series(entries):
        found = [tool for tool in read(record(entry)) if tool.name not in never]
        tools += found
        if not found:
            others.append(entry)
    return tuple(tools), tuple(others)


def _compacted(who: Program, history: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """OpenCode's summary is an assistant's message after a question of its own; a person who begins with
    that very question, and gets words for an answer, looks the same."""
    if who != "opencode":
        return history
    first = next((index for index, piece in enumerate(history) if not isinstance(piece, Note)), 0)
    match history[first : first + 2]:
        case (Said() as question, Answered(calls=()) as answer) if (
            plain(question.content) == programs.COMPACTED_QUESTION
        ):
            asked = Note(question.at, "compaction", programs.COMPACTED_QUESTION)
            return (*history[:first], asked, Summary(answer.at, answer.text), *history[first + 2 :])
        case _:
            return history


def _explained(who: Program, history: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Results with their tools' names, and what their texts say where the protocol has no field for it."""
    calls: dict[str, PastCall] = {}
    told: list[Piece] = []
    for piece in history:
        match piece:
            case Answered():
                calls.update((call.id, call) for call in piece.calls)
                told.append(piece)
            case Outcome():
                call = calls.get(piece.call)
                name, text = call.name if call else "", plain(piece.content)
                aborted = programs.is_aborted(who, name, text)
                failed = piece.is_error or aborted or bool(call and call.renamed)
                told.append(
                    replace(
                        piece,
                        name=name,
                        is_error=failed or programs.is_failed(who, name, text),
                        aborted=aborted,
                    )
                )
            case _:
                told.append(piece)
    return tuple(told)
