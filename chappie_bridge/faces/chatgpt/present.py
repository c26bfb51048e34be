"""Replies of the Switchboard as what a client reads (SPEC §1, §3): a head, then blocks in request order, then
what accompanies them.  Decides no target and keeps nothing."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import anyio.lowlevel

from chappie_bridge.codec.graphemes import line_before
from chappie_bridge.codec.parts import compact
from chappie_bridge.codec.tokens import Steps, count_exactly, escaped
from chappie_bridge.codec.unicode import REPLACEMENT, display
from chappie_bridge.faces.chatgpt import asking
from chappie_bridge.faces.chatgpt.exchange import Exchange
from chappie_bridge.faces.chatgpt.naming import file_lines, image_addresses
from chappie_bridge.faces.chatgpt.sheet import NAME, PATH, Json, Sheet, Source, failure_line
from chappie_bridge.faces.chatgpt.tokens import Tokenizer
from chappie_bridge.wire.batch import OPEN, Status
from chappie_bridge.wire.blocks import Content, Spill
from chappie_bridge.wire.errors import Executed
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.ports import Switchboard
from chappie_bridge.wire.question import Question
from chappie_bridge.wire.requests import (
    HistoryView,
    OperationView,
    QuestionView,
    SessionList,
    SessionOpened,
    ToolList,
)
from chappie_bridge.wire.values import (
    AnswerItem,
    Companions,
    DeferredItem,
    Entry,
    EntryText,
    HistoryRange,
    Initialization,
    InputItem,
    RequestItem,
    SessionRow,
    Skill,
    ToolDefinition,
    ToolResult,
)

MAX_NEEDS = 4
"""Needs named in a head; the operation shows the others once these are met."""

MAX_CATALOG = 100
"""Tools, and skills, listed by `init`."""

LISTED = 4
"""Transfers under way named in a session's row."""

LINE = 160
"""Characters shown of a tool's first line, a skill's description, a need."""

_FILLED = 0.85
"""How much of the limit a page fills; the rest is for its head and its headers."""

_BLOCK = 16
"""Tokens of a block besides its text, at most."""

_NEAR = 400
"""Characters within which a page of a long text ends at a line."""

T = TypeVar("T")


class Presented(NamedTuple):
    content: list[Json]
    is_error: bool = False
    structured: Json | None = None


class Presenter:
    """One for all requests.  `limit` in tokens (SPEC §4)."""

    def __init__(self, switchboard: Switchboard, version: str, limit: int) -> None:
        self._switchboard = switchboard
        self._version = version
        self._limit = limit
        self._tokenizer = Tokenizer()

    async def sessions(self, reply: SessionList, exchange: Exchange) -> Presented:
        rows = [_row(each) for each in reply.sessions]
        shown = await self._fitting([[compact(row)] for row in rows])
        answer: Json = {
            "binding": reply.binding,
            "sessions": rows[:shown],
            "hasMore": reply.has_more or shown < len(rows),
        }
        if reply.pending is not None:
            answer["pending"] = reply.pending.model_dump()
        return Presented([text_block(_noted(answer, exchange))])

    async def tools(self, reply: ToolList, exchange: Exchange) -> Presented:
        definitions = [_definition(each) for each in reply.tools]
        shown = await self._fitting([[compact(each)] for each in definitions])
        answer: Json = {
            **_place(reply.session),
            "session": _row(reply.session),
            "tools": definitions[:shown],
            "skills": _skills(reply.skills),
            "pending": reply.pending.model_dump(),
        }
        if reply.global_agents is not None:
            answer["globalAgents"] = {"path": reply.global_agents}
        if reply.unknown:
            answer["unknown"] = [display(each, NAME) for each in reply.unknown]
        if shown < len(definitions):
            answer["notShown"] = [each["name"] for each in definitions[shown:]]
        return Presented([text_block(_noted(answer, exchange))])

    async def opened(self, reply: SessionOpened, exchange: Exchange) -> Presented:
        answer: Json = {
            **_place(reply.session),
            "selection": reply.selection,
            "initialization": _initialization(reply.initialization),
            "session": _row(reply.session),
            "tools": [
                {"name": display(each.name, NAME), "description": _first_line(each.description)}
                for each in reply.tools[:MAX_CATALOG]
            ],
            "skills": _skills(reply.skills),
        }
        if len(reply.tools) > MAX_CATALOG:
            answer["moreTools"] = len(reply.tools) - MAX_CATALOG
        if reply.global_agents is not None:
            answer["globalAgents"] = {"path": reply.global_agents}
        if not reply.bound:
            answer["binding"] = None
        answer["serverVersion"] = self._version
        sheet = Sheet()
        sheet.head(_noted(answer, exchange))
        _companions(sheet, reply.companions)
        return Presented(await self._finish(sheet, exchange))

    async def operation(self, view: OperationView, exchange: Exchange) -> Presented:
        sheet = Sheet()
        sheet.head(_noted(_operation(view), exchange))
        if view.error is not None:
            sheet.line(failure_line(view.error))
        for index, result in enumerate(view.results):
            _result(
                sheet, result, Source(view.target.session, result.call, index), view.companions.capability
            )
        file_lines(sheet, view.files, Source(view.target.session, None), view.companions.capability)
        _companions(sheet, view.companions)
        succeeds = view.error is None and view.status in OPEN | {Status.DONE}
        is_error = (
            not succeeds
            or any(result.is_error for result in view.results)
            or any(file.error is not None for file in view.files)
        )
        return Presented(await self._finish(sheet, exchange), is_error)

    async def history(self, view: HistoryView, wanted: HistoryRange, exchange: Exchange) -> Presented:
        page, session = view.page, view.target.session
        head: Json = {"sessionId": session, **_shown_place(view.target.device, view.target.cwd)}
        sheets: list[Sheet] = []
        if page.text is not None:
            text, facts = await self._stretch(page.text)
            head |= facts
            sheets.append(Sheet())
            sheets[0].whole(text)
        elif page.matches is not None:
            lines: list[Json] = [{"offset": each.offset, "line": each.line} for each in page.matches]
            shown = await self._fitting([[compact(line)] for line in lines])
            head |= {"entry": wanted.entry, "count": shown, "hasMore": page.has_more or shown < len(lines)}
            sheets.append(Sheet())
            sheets[0].line({"matches": [*lines[:shown]]})
        else:
            sheets = [_entry(session, entry, view.capability) for entry in page.entries]
            forward = wanted.after is not None
            shown = await self._fitting([each.texts for each in (sheets if forward else sheets[::-1])])
            sheets = sheets[:shown] if forward else sheets[len(sheets) - shown :]
            head |= {"count": shown, "hasMore": page.has_more or shown < len(page.entries)}
        if page.branch_changed:
            head["branchChanged"] = True
        head["pending"] = view.pending.model_dump()
        whole = Sheet()
        whole.head(_noted(head, exchange))
        for each in sheets:
            whole.append(each)
        return Presented(await self._finish(whole, exchange))

    async def question(
        self, view: QuestionView, said: str, exchange: Exchange, *, answer: bool = False
    ) -> Presented:
        """With its answer, if that is wanted and there is one."""
        sheet = Sheet()
        sheet.head(_noted(asking.head(view.question), exchange))
        sheet.whole(said)
        if answer and view.question.answer is not None:
            _answer(sheet, view.question)
        _companions(sheet, view.companions)
        content = await self._finish(sheet, exchange)
        structured: Json = {"question": asking.for_page(view.question)}
        if view.companions.items:
            # Some hosts show their model nothing else where this is there; what accompanies comes once only.
            structured["text"] = "\n".join(block["text"] for block in content if block["type"] == "text")
        return Presented(content, structured=structured)

    async def _finish(self, sheet: Sheet, exchange: Exchange) -> list[Json]:
        return await sheet.finish(self._tokenizer, self._limit, self._switchboard, exchange)

    async def _fitting(self, items: Sequence[Sequence[str]]) -> int:
        """How many of the first items a page holds: at least one, if there is one."""
        left = int(self._limit * _FILLED)
        if sum(len(escaped(text).encode()) + _BLOCK for item in items for text in item) <= left:
            return len(items)
        counter = await self._tokenizer.counter()
        for index, item in enumerate(items):
            for text in item:
                left -= await _driven(count_exactly(text, counter)) + _BLOCK
            if left < 0:
                return max(index, 1)
        return len(items)

    async def _stretch(self, stretch: EntryText) -> tuple[str, Json]:
        """As much of the text as a page holds, and where the next begins."""
        text, next_offset = stretch.text, stretch.next_offset
        room = int(self._limit * _FILLED)
        if len(escaped(text).encode()) > room:
            counter = await self._tokenizer.counter()
            while (tokens := await _driven(count_exactly(text, counter))) > room:
                text = text[: line_before(text, max(len(text) * room // (tokens + tokens // 16), 1), _NEAR)]
        if len(text) < len(stretch.text):
            # A replacement character stands for one byte or more: rather show a byte twice than never.
            unread = 2 * text.count(REPLACEMENT) if stretch.lossy else 0
            next_offset = stretch.offset + len(text.encode()) - unread
        facts: Json = {
            "entry": stretch.entry,
            "offset": stretch.offset,
            "nextOffset": next_offset,
            "total": stretch.total,
            "sha256": stretch.sha256,
        }
        if stretch.lossy:
            facts["lossy"] = True
        return text, facts


async def _driven(steps: Steps[T]) -> T:
    """The outcome of `steps`, with room for others in between."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            outcome: T = stop.value
            return outcome
        await anyio.lowlevel.checkpoint()


def text_block(value: Json) -> Json:
    return {"type": "text", "text": compact(value)}


def _noted(head: Json, exchange: Exchange) -> Json:
    """With the note on what was changed in the request, if something was."""
    return {**head, "replaced": exchange.replaced} if exchange.replaced else head


def _operation(view: OperationView) -> Json:
    head: Json = {
        "sessionId": view.target.session,
        **_shown_place(view.target.device, view.target.cwd),
        "operation": view.operation,
        "seq": view.seq,
        "status": view.status,
    }
    plain = view.status in OPEN or (view.status is Status.DONE and view.executed is Executed.YES)
    if not plain:
        head["executed"] = view.executed
    if view.needs:
        head["needs"] = [
            {"kind": need.kind, "sessionId": need.session, "what": display(need.what, LINE)}
            for need in view.needs[:MAX_NEEDS]
        ]
    if view.queue is not None:
        head["queue"] = view.queue.model_dump(exclude_none=True)
    for name, said in (("joined", view.joined), ("again", view.again)):
        if said:
            head[name] = True
    if view.entry is not None:
        head["entry"] = view.entry
    if view.initialization is not None:
        head["initialization"] = _initialization(view.initialization)
    return head


def _result(sheet: Sheet, result: ToolResult, source: Source, capability: str | None) -> None:
    header: Json = {
        "toolCallId": result.call,
        "toolName": display(result.name, NAME),
        "isError": result.is_error,
        "durationMs": result.duration_ms,
    }
    header |= image_addresses(source.session, result.content, capability)
    sheet.line(_with_paths(header, result.content))
    sheet.content(result.content, source)


def _companions(sheet: Sheet, companions: Companions) -> None:
    if not companions.items and not companions.more:
        return
    sheet.companions_follow(companions.more)
    for item in companions.items:
        again: Json = {"again": True} if item.again else {}
        match item:
            case InputItem(session=session, input=typed):
                sheet.line({"input": typed.id, "sessionId": session, "at": typed.at, **again})
                sheet.content(typed.content, Source(session, typed.id, typed.id))
            case RequestItem(session=session, request=request):
                sheet.line(
                    {
                        "request": request.id,
                        "sessionId": session,
                        "kind": display(request.kind, NAME),
                        "instructions": request.instructions,
                        **again,
                    }
                )
                sheet.content(request.content, Source(session, None, request.id))
            case AnswerItem(question=question):
                _answer(sheet, question, again=item.again)
            case DeferredItem():
                _deferred(sheet, item, again, companions.capability)


def _answer(sheet: Sheet, question: Question, *, again: bool = False) -> None:
    line, text = asking.web_answer(question, again=again)
    sheet.line(line)
    if text is not None:
        sheet.text(text, Source(question.session, None, question.id))


def _deferred(sheet: Sheet, item: DeferredItem, again: Json, capability: str | None) -> None:
    header: Json = {
        "deferredResult": item.operation,
        "sessionId": item.target.session,
        **_shown_place(item.target.device, item.target.cwd),
        "status": item.status,
        **again,
    }
    if item.status is not Status.DONE:
        header["executed"] = item.executed
    sheet.line(header)
    if item.error is not None:
        sheet.line(failure_line(item.error))
    for result in item.results:
        _result(sheet, result, Source(item.target.session, result.call, item.operation), capability)
    file_lines(sheet, item.files, Source(item.target.session, None, item.operation), capability)


def _entry(session: SessionId, entry: Entry, capability: str | None) -> Sheet:
    header: Json = {"entry": entry.id, "at": entry.at, "kind": entry.kind}
    if entry.call is not None:
        header["toolCallId"] = entry.call
    if entry.name is not None:
        header["toolName"] = display(entry.name, NAME)
    if entry.is_error is not None:
        header["isError"] = entry.is_error
    if entry.duration_ms is not None:
        header["durationMs"] = entry.duration_ms
    if entry.final is not None:
        header["final"] = entry.final
    if entry.operation is not None:
        header["operation"] = entry.operation
    if entry.origin is not None:
        header["from"] = display(entry.origin.label, NAME)
    header |= image_addresses(session, entry.content, capability)
    source = Source(session, entry.id, entry.id)
    sheet = Sheet()
    sheet.line(_with_paths(header, entry.content))
    if entry.arguments is not None:
        sheet.text(compact(entry.arguments), source)
    sheet.content(entry.content, source)
    return sheet


def _with_paths(header: Json, content: Content) -> Json:
    """Where the exact bytes of spilled blocks lie on the device."""
    paths = [block.path for block in content if isinstance(block, Spill)]
    if not paths:
        return header
    return {**header, "outputPath": paths[0] if len(paths) == 1 else paths}


def _place(row: SessionRow) -> Json:
    return {"sessionId": row.id, **_shown_place(row.device, row.cwd)}


def _shown_place(device: str, cwd: str) -> Json:
    return {"device": display(device, NAME), "cwd": display(cwd, PATH)}


def _row(row: SessionRow) -> Json:
    shown: Json = {"id": row.id, "agent": display(row.agent, NAME)}
    if row.model is not None:
        shown["model"] = display(row.model, NAME)
    shown |= _shown_place(row.device, row.cwd)
    if row.name is not None:
        shown["name"] = display(row.name, NAME)
    shown |= {"status": row.status, "bindingCount": row.binding_count, "lastSeen": row.last_seen}
    if row.parent is not None:
        shown["parent"] = row.parent
    if row.transfers:
        shown["transfers"] = [
            each.model_dump(mode="json", exclude_none=True) for each in row.transfers[:LISTED]
        ]
    return shown


def _initialization(given: Initialization) -> Json:
    return {
        "sessionId": given.session,
        "instructions": given.instructions,
        "observer": given.observer,
    }


def _definition(tool: ToolDefinition) -> Json:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def _first_line(text: str) -> str:
    return display(text.strip().partition("\n")[0], LINE)


def _skills(skills: Sequence[Skill]) -> list[Json]:
    shown: list[Json] = []
    for skill in skills[:MAX_CATALOG]:
        each: Json = {"name": display(skill.name, NAME), "description": _first_line(skill.description)}
        shown.append(each if skill.path is None else {**each, "path": skill.path})
    return shown
