"""What the owner does on a page: each form, what it asks of the office, and where the browser goes then."""

import hmac
import re
from collections.abc import Awaitable, Callable

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from chappie_bridge.faces.dashboard import AT
from chappie_bridge.faces.dashboard.pages import OWNER
from chappie_bridge.wire.errors import BadArguments, BridgeError
from chappie_bridge.wire.ids import OperationId, QuestionId, SessionId
from chappie_bridge.wire.overview import AnswerApproval, AnswerQuestion, CancelOperation
from chappie_bridge.wire.owner import RevokeDevice
from chappie_bridge.wire.ports import Office
from chappie_bridge.wire.question import Answer
from chappie_bridge.wire.values import ApprovalScope

_BACK = re.compile(rf"{AT}(?:/[a-z]+)?(?:\?[A-Za-z0-9%=&._~-]*)?")
"""Pages of ours, nothing else: a form cannot send its reader elsewhere."""

_ANSWERS: dict[str, tuple[bool, ApprovalScope]] = {
    "once": (True, "once"),
    "conversation": (True, "conversation"),
    "directory": (True, "directory"),
    "deny": (False, "once"),
}


class Form:
    """The fields of a form, in order."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    def first(self, name: str) -> str:
        return next((value for key, value in self._fields if key == name), "")

    def every(self, name: str) -> list[str]:
        return [value for key, value in self._fields if key == name]

    def carries(self, token: str) -> bool:
        return hmac.compare_digest(self.first("token").encode(), token.encode())


class Actions:
    def __init__(self, office: Office) -> None:
        self._office = office
        self.table: dict[str, Callable[[Request, Form], Awaitable[Response]]] = {
            "cancel": self._acted(self._cancel),
            "approve": self._acted(self._approve),
            "answer": self._acted(self._answer),
            "revoke": self._acted(self._revoke),
        }

    def _acted(self, act: Callable[[Form], Awaitable[str]]) -> Callable[[Request, Form], Awaitable[Response]]:
        async def endpoint(request: Request, form: Form) -> Response:
            try:
                told = await act(form)
            except ValidationError:
                raise BadArguments("The form cannot be read.") from None
            except BridgeError as error:
                told = error.code
            back = form.first("back")
            back = back if _BACK.fullmatch(back) else AT
            return RedirectResponse(f"{back}{'&' if '?' in back else '?'}told={told}", 303)

        return endpoint

    async def _cancel(self, form: Form) -> str:
        operation = OperationId(form.first("operation"))
        await self._office.cancel(CancelOperation(caller=OWNER, operation=operation))
        return "cancelled-here"

    async def _approve(self, form: Form) -> str:
        """`answer` is `deny`, or how far a yes reaches."""
        answer = _ANSWERS.get(form.first("answer"))
        if answer is None:
            raise BadArguments("An approval is answered with once, conversation, directory or deny.")
        allowed, scope = answer
        decided = await self._office.answer_approval(
            AnswerApproval(
                caller=OWNER,
                session=SessionId(form.first("session")),
                approval=form.first("approval"),
                allowed=allowed,
                scope=scope,
            )
        )
        word = "allowed" if decided.allowed else "not-allowed"
        return f"{word}-{'here' if decided.by == 'dashboard' else 'before'}"

    async def _revoke(self, form: Form) -> str:
        await self._office.revoke(RevokeDevice(caller=OWNER, device=form.first("device")))
        return "revoked-here"

    async def _answer(self, form: Form) -> str:
        """`choice` once for each option that was chosen, counting from 0."""
        skipped = bool(form.first("skip"))
        chosen = [] if skipped else form.every("choice")
        if not all(each.isdecimal() and len(each) < 4 for each in chosen):
            raise BadArguments("An option is named by its number.")
        revision = form.first("revision")
        answer = Answer(
            selections=tuple(map(int, chosen)),
            text="" if skipped else form.first("text").replace("\r\n", "\n"),
            skipped=skipped,
        )
        await self._office.answer_question(
            AnswerQuestion(
                caller=OWNER,
                question=QuestionId(form.first("question")),
                answer=answer,
                revision=int(revision) if revision.isdecimal() and len(revision) < 9 else None,
            )
        )
        return "skipped-here" if skipped else "answered-here"
