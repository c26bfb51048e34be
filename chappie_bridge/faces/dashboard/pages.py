"""The owner's pages: what each shows, and where it comes from.  Changes nothing."""

import base64
import binascii
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anyio
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from chappie_bridge.faces.dashboard import AT, shown
from chappie_bridge.faces.dashboard.logins import Login
from chappie_bridge.wire.batch import OPEN
from chappie_bridge.wire.errors import BridgeError, Overloaded, PathMissing, TooLarge
from chappie_bridge.wire.ids import LOCAL, EntryId, SessionId
from chappie_bridge.wire.messages import History
from chappie_bridge.wire.overview import (
    ListApprovals,
    ListOperations,
    ListQuestions,
    OperationRow,
    PendingApproval,
    RecentQuestion,
)
from chappie_bridge.wire.owner import AuditRow, ListDevices, ReadAudit, TakeMeasures
from chappie_bridge.wire.ports import Office, Switchboard
from chappie_bridge.wire.question import OPEN_QUESTIONS, Question
from chappie_bridge.wire.requests import BrokerStatus, FetchBytes, FetchHistory, ListSessions
from chappie_bridge.wire.values import Caller, Entry, HistoryRange, SessionRow

OWNER = Caller(principal="owner", source="shell", label="dashboard")

PAGES = {
    "overview": AT,
    "approvals": f"{AT}/approvals",
    "questions": f"{AT}/questions",
    "sessions": f"{AT}/sessions",
    "session": f"{AT}/session",
    "operations": f"{AT}/operations",
    "transfers": f"{AT}/transfers",
    "devices": f"{AT}/devices",
    "audit": f"{AT}/audit",
    "status": f"{AT}/status",
}
"""Page -> its address.  Each has a template and a method of its name."""

ENTRIES = 50
"""Of a transcript, on one page."""

LINES = 100
"""Of the audit log, on one page."""

_LOOKED_THROUGH = 5
"""Pages of 500 lines in which a filter looks at once."""

IMAGE_MAX = 8 * 1024 * 1024
"""Bytes."""

_PART = 512 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}

TOLD = {
    "revoked-here": "The device is revoked: its connections are cut and its token is worth nothing.",
    "cancelled-here": "The operation is being cancelled.",
    "allowed-here": "Allowed.",
    "not-allowed-here": "Not allowed: the tool was told so.",
    "allowed-before": "It had been allowed elsewhere before your answer came; that answer counts.",
    "not-allowed-before": "It had been refused elsewhere before your answer came; that answer counts.",
    "answered-here": "Your answer is saved; it goes to the chat with its next result.",
    "skipped-here": "The question is skipped.",
    "request_closed": "It was answered or ended elsewhere before your answer came. Nothing was changed.",
    "unknown_question": "This question is no longer known.",
    "unknown_operation": "This operation is no longer known.",
    "unknown_session": "This session is no longer known.",
    "session_offline": "The session is not connected, so nothing could be sent to it.",
    "bad_arguments": "This does not answer what was asked: choose what is offered, or write a text.",
}
"""What a page says after a form.  Any other outcome is `_NOT_DONE`."""

_NOT_DONE = "That did not work. Look at the state below, and try again."

Context = dict[str, Any]


class Waiting(NamedTuple):
    """What waits for the owner, and what is under way: on each page as counts."""

    approvals: tuple[PendingApproval, ...]
    questions: tuple[RecentQuestion, ...]
    operations: tuple[OperationRow, ...]


class Pages:
    """`version` names the static files that go with these pages."""

    def __init__(self, switchboard: Switchboard, office: Office, version: str) -> None:
        self._switchboard, self._office = switchboard, office
        self._templates = shown.templates()
        self._always: Context = {"at": AT, "pages": PAGES, "version": version, "open": OPEN}
        self._sources: dict[str, Callable[[Request, Waiting], Awaitable[Context]]] = {
            "overview": self._overview,
            "approvals": self._lists,
            "questions": self._lists,
            "sessions": self._sessions,
            "session": self._session,
            "operations": self._operations,
            "transfers": self._transfers,
            "devices": self._devices,
            "audit": self._audit,
            "status": self._status,
        }

    def page(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            waiting = await self._waiting()
            context = await self._sources[name](request, waiting)
            context = {**self._frame(name, request, waiting), **context}
            return await anyio.to_thread.run_sync(self._html, f"{name}.html", context)  # milliseconds

        return endpoint

    def login(self, error: str = "", status: int = 200) -> Response:
        return self._html("login.html", {"error": error}, status)

    def failure(self, status: int, text: str) -> Response:
        return self._html("failure.html", {"text": text, "status": status}, status)

    async def entries(self, entries: tuple[Entry, ...], session: SessionId) -> str:
        """Entries of a transcript as the live page appends them."""
        return await anyio.to_thread.run_sync(self._entries, entries, session)

    def _entries(self, entries: tuple[Entry, ...], session: SessionId) -> str:
        return self._templates.get_template("entries.html").render(at=AT, entries=entries, session=session)

    async def read(self, session: SessionId, **span: Any) -> History:
        """Of a transcript; leaves no notice in it."""
        request = FetchHistory(caller=OWNER, session=session, range=HistoryRange(observer=True, **span))
        return (await self._switchboard.history(request)).page

    async def image(self, request: Request) -> Response:
        """An image that is too large for a transcript's page."""
        sha256 = request.query_params.get("sha256", "")
        if not _SHA256.fullmatch(sha256):
            raise PathMissing("There is no such image.")
        session = SessionId(request.query_params.get("session", ""))
        data = bytearray()
        size = 1
        while len(data) < size:
            part = await self._switchboard.fetch(
                FetchBytes(
                    caller=OWNER, session=session, source=f"image:{sha256}", offset=len(data), length=_PART
                )
            )
            size = part.size
            if size > IMAGE_MAX:
                raise TooLarge("The image is too large to be shown here.")
            more = _decoded(part.data)
            if not more and len(data) < size:
                raise Overloaded("The device sent nothing.")
            data += more
        kind = next((kind for start, kind in _SIGNATURES.items() if data.startswith(start)), None)
        if kind is None:
            raise PathMissing("This is no image that a browser should be given.")
        headers = {
            "cache-control": "private, max-age=86400",
            "content-security-policy": "default-src 'none'; sandbox",
        }
        return Response(bytes(data), media_type=kind, headers=headers)

    def _html(self, template: str, context: Context, status: int = 200) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(template).render(self._always | context), status)

    def _frame(self, name: str, request: Request, waiting: Waiting) -> Context:
        """What is around each page."""
        login: Login = request.scope["login"]
        query = "&".join(
            f"{shown.query(key)}={shown.query(value)}"
            for key, value in request.query_params.multi_items()
            if key != "told"
        )
        told = request.query_params.get("told")
        open_questions = [each.question.id for each in waiting.questions if _answerable(each.question)]
        return {
            "here": name,
            "back": f"{PAGES[name]}?{query}" if query else PAGES[name],
            "told": None if told is None else TOLD.get(told, _NOT_DONE),
            "token": login.token,
            "live": "x-live" in request.headers,
            "counts": {
                "approvals": len(waiting.approvals),
                "questions": len(open_questions),
                "operations": sum(each.status in OPEN for each in waiting.operations),
            },
            "approvals": waiting.approvals,
            "questions": waiting.questions,
            "operations": waiting.operations,
            "open_questions": open_questions,
        }

    async def _waiting(self) -> Waiting:
        approvals = await self._office.approvals(ListApprovals(caller=OWNER))
        questions = await self._office.questions(ListQuestions(caller=OWNER, limit=50))
        operations = await self._office.operations(ListOperations(caller=OWNER, limit=100))
        return Waiting(approvals.approvals, questions.questions, operations.operations)

    async def _lists(self, request: Request, waiting: Waiting) -> Context:
        return {}

    async def _overview(self, request: Request, waiting: Waiting) -> Context:
        online = await self._switchboard.sessions(ListSessions(caller=OWNER, online=True, limit=200))
        return {"sessions": online.sessions, "more": online.has_more}

    async def _sessions(self, request: Request, waiting: Waiting) -> Context:
        after = request.query_params.get("after")
        found = await self._switchboard.sessions(
            ListSessions(caller=OWNER, limit=100, after=SessionId(after) if after else None)
        )
        return {"sessions": found.sessions, "more": found.has_more}

    async def _session(self, request: Request, waiting: Waiting) -> Context:
        session = SessionId(request.query_params.get("id", ""))
        rows = (await self._switchboard.sessions(ListSessions(caller=OWNER, session=session))).sessions
        context: Context = {
            "row": rows[0] if rows else None,
            "session": session,
            "approvals": tuple(each for each in waiting.approvals if each.session == session),
            "operations": tuple(each for each in waiting.operations if each.session == session),
            "page": None,
            "problem": "",
            "before": request.query_params.get("before"),
        }
        if "x-live" not in request.headers:  # the transcript has a stream of its own
            before = request.query_params.get("before")
            try:
                context["page"] = await self.read(
                    session, limit=ENTRIES, before=EntryId(before) if before else None
                )
            except BridgeError as error:
                context["problem"] = str(error)
        return context

    async def _operations(self, request: Request, waiting: Waiting) -> Context:
        return {}

    async def _transfers(self, request: Request, waiting: Waiting) -> Context:
        found = await self._switchboard.sessions(ListSessions(caller=OWNER, limit=200))
        moving = {moved.operation: moved for row in found.sessions for moved in row.transfers}
        return {
            "operations": tuple(each for each in waiting.operations if each.kind == "transfer"),
            "moving": moving,
        }

    async def _devices(self, request: Request, waiting: Waiting) -> Context:
        found = await self._switchboard.sessions(ListSessions(caller=OWNER, limit=200))
        sessions: dict[str, list[SessionRow]] = {}
        for row in found.sessions:
            sessions.setdefault(row.device, []).append(row)
        devices = (await self._office.devices(ListDevices(caller=OWNER))).devices
        return {"devices": devices, "sessions": sessions, "this": LOCAL}

    async def _audit(self, request: Request, waiting: Waiting) -> Context:
        before = request.query_params.get("before", "")
        wanted = request.query_params.get("find", "")[: shown.NAME]
        at = int(before) if before.isdecimal() and len(before) < 16 else None
        lines: list[AuditRow] = []
        older: int | None = None
        for _ in range(_LOOKED_THROUGH):
            limit = 500 if wanted else LINES
            page = (await self._office.audit(ReadAudit(caller=OWNER, before=at, limit=limit))).lines
            lines += [line for line in page if _matches(line, wanted)]
            older = at = page[-1].number if len(page) == limit else None
            if at is None or len(lines) >= LINES:
                break
        if len(lines) > LINES:
            lines, older = lines[:LINES], lines[LINES - 1].number
        return {"lines": lines, "find": wanted, "older": older}

    async def _status(self, request: Request, waiting: Waiting) -> Context:
        report = await self._switchboard.status(BrokerStatus(caller=OWNER))
        measures = await self._office.measures(TakeMeasures(caller=OWNER))
        return {"report": report, "measures": measures.measures}


def _answerable(question: Question) -> bool:
    """Does it wait for the person?  What nobody was shown still does."""
    return question.stage in OPEN_QUESTIONS or question.unseen


def _matches(line: AuditRow, wanted: str) -> bool:
    words = f"{line.who} {line.what} {line.where} {line.outcome}".lower()
    return all(word in words for word in wanted.lower().split())


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise PathMissing("The device sent something that is no image.") from None
