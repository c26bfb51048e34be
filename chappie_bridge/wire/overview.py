"""What the owner sees of all that goes on, and decides: operations, approvals, questions.  Pure data."""

from typing import Literal

from pydantic import Field

from .batch import Status
from .blocks import Value
from .errors import Executed
from .ids import OperationId, QuestionId, SessionId
from .messages import Request
from .owner import OwnerRequest
from .question import Answer, Question
from .values import ApprovalAsked, ApprovalScope, Need


class OperationRow(Value):
    """An operation as its owner sees it.  `accepted` is ISO 8601 UTC; `duration_ms` until its end, or now."""

    operation: OperationId
    kind: Literal["batch", "chat", "transfer"]
    session: SessionId
    device: str
    origin: str
    status: Status
    executed: Executed
    seq: int
    accepted: str
    duration_ms: int
    what: str
    needs: tuple[Need, ...] = ()


class ListOperations(OwnerRequest):
    """Open ones, oldest first; then ended ones that are still remembered, newest first."""

    type: Literal["list_operations"] = "list_operations"
    session: SessionId | None = None
    limit: int = Field(default=100, ge=1, le=200)


class OperationList(Request):
    type: Literal["operation_list"] = "operation_list"
    operations: tuple[OperationRow, ...]


class CancelOperation(OwnerRequest):
    type: Literal["cancel_operation"] = "cancel_operation"
    operation: OperationId


class PendingApproval(Value):
    session: SessionId
    device: str
    cwd: str
    approval: ApprovalAsked


class ListApprovals(OwnerRequest):
    """What waits for the owner's yes or no at the sessions that are online."""

    type: Literal["list_approvals"] = "list_approvals"


class ApprovalList(Request):
    """Oldest first within a session."""

    type: Literal["approval_list"] = "approval_list"
    approvals: tuple[PendingApproval, ...]


class AnswerApproval(OwnerRequest):
    """The first answer counts, wherever it is given."""

    type: Literal["answer_approval"] = "answer_approval"
    session: SessionId
    approval: str
    allowed: bool
    scope: ApprovalScope = "once"


class RecentQuestion(Value):
    """`origin` says who asks."""

    question: Question
    origin: str


class ListQuestions(OwnerRequest):
    """Questions to the person, last changed first, whatever has become of them."""

    type: Literal["list_questions"] = "list_questions"
    limit: int = Field(default=50, ge=1, le=200)


class QuestionList(Request):
    type: Literal["question_list"] = "question_list"
    questions: tuple[RecentQuestion, ...]


class AnswerQuestion(OwnerRequest):
    """In the place of the page in the chat.  With `revision`, only if nobody answered since."""

    type: Literal["answer_question"] = "answer_question"
    question: QuestionId
    answer: Answer
    revision: int | None = Field(default=None, ge=0)


class AwaitChange(OwnerRequest):
    """Wait up to `wait` seconds for anything on these lists, or among the sessions, to change."""

    type: Literal["await_change"] = "await_change"
    since: int = Field(default=0, ge=0)
    wait: float = Field(default=15, ge=0, le=30)


class Changed(Request):
    """`number` grows with each change, and begins anew with the broker's process."""

    type: Literal["changed"] = "changed"
    number: int
