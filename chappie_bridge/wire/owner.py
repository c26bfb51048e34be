"""What the owner alone asks of the broker, and its replies: codes, the audit log, measures.  Pure data."""

from typing import Literal

from pydantic import Field

from .blocks import Value
from .messages import Request
from .requests import CallerRequest

Purpose = Literal["pair", "login", "consent"]


class OwnerRequest(CallerRequest):
    """Refused to everybody but processes of the owner on the broker's machine."""


class MakeCode(OwnerRequest):
    """A one-time code for one purpose."""

    type: Literal["make_code"] = "make_code"
    purpose: Purpose


class CodeMade(Request):
    """`expires` is ISO 8601 UTC."""

    type: Literal["code_made"] = "code_made"
    code: str
    expires: str


class RedeemCode(OwnerRequest):
    """Use a code up.  `by` is the network address that sent it: wrong codes are counted by it."""

    type: Literal["redeem_code"] = "redeem_code"
    purpose: Purpose
    code: str = Field(max_length=200)
    by: str = Field(max_length=100)


class AuditRow(Value):
    """One line of the audit log; `number` grows.  `at` is ISO 8601 UTC, `size` in bytes, characters or calls,
    whatever the line is about.  `duration_ms` is absent on the line written before dispatch."""

    number: int
    at: str
    who: str
    what: str
    where: str
    size: int
    outcome: str
    duration_ms: int | None = None


class ReadAudit(OwnerRequest):
    """The newest lines, or those older than line `before`."""

    type: Literal["read_audit"] = "read_audit"
    before: int | None = Field(None, ge=0)
    limit: int = Field(100, ge=1, le=500)


class AuditPage(Request):
    """Newest first.  A line appears here within a second or two of what it is about."""

    type: Literal["audit_page"] = "audit_page"
    lines: tuple[AuditRow, ...]


class Sample(Value):
    """`labels` come from closed lists only, never from what somebody sends."""

    value: float
    labels: dict[str, str] = Field(default_factory=dict)


class Measure(Value):
    """A number about the broker, in the words of Prometheus; a counter begins anew with the process."""

    name: str
    kind: Literal["counter", "gauge"]
    about: str
    samples: tuple[Sample, ...]


class TakeMeasures(OwnerRequest):
    """How much of everything there is now."""

    type: Literal["take_measures"] = "take_measures"


class Measures(Request):
    type: Literal["measures"] = "measures"
    measures: tuple[Measure, ...]
