"""What the owner alone asks of the broker, and its replies: codes, devices, apps, audit, measures.  Pure."""

from typing import Literal

from pydantic import Field

from .blocks import Value
from .ids import AppId, DeviceId
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
    before: int | None = Field(default=None, ge=0)
    limit: int = Field(default=100, ge=1, le=500)


class AuditPage(Request):
    """Newest first.  A line appears here within a second or two of what it is about."""

    type: Literal["audit_page"] = "audit_page"
    lines: tuple[AuditRow, ...]


class AppRow(Value):
    """An app that registered.  `consented` is absent while the owner has not let it in."""

    id: AppId
    name: str
    redirects: tuple[str, ...]
    last_used: str
    consented: str | None = None


class ListApps(OwnerRequest):
    type: Literal["list_apps"] = "list_apps"


class AppList(Request):
    """The last used first."""

    type: Literal["app_list"] = "app_list"
    apps: tuple[AppRow, ...]


class RevokeApp(OwnerRequest):
    """Its tokens are refused from now on, and it must register again."""

    type: Literal["revoke_app"] = "revoke_app"
    app: AppId


class SubjectRow(Value):
    """A person behind a credential, as ChatGPT told them apart; nobody else knows who it is."""

    id: str
    credential: str
    status: Literal["allowed", "waiting"]
    first_seen: str
    last_seen: str


class ListSubjects(OwnerRequest):
    type: Literal["list_subjects"] = "list_subjects"


class SubjectList(Request):
    """The last seen first."""

    type: Literal["subject_list"] = "subject_list"
    subjects: tuple[SubjectRow, ...]


class RuleSubject(OwnerRequest):
    """Let a person in, or forget them: when nobody is left, the next one of that credential is let in."""

    type: Literal["rule_subject"] = "rule_subject"
    subject: str
    allow: bool


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


class PairDevice(OwnerRequest):
    """A line for `join` on one further device.  `name` "": the device says its own; `url` "": where the
    broker listens."""

    type: Literal["pair_device"] = "pair_device"
    name: str = Field(default="", max_length=64)
    url: str = Field(default="", max_length=300)


class PairingMade(Request):
    """`line` as `wire.pairing` writes it; `expires` is ISO 8601 UTC."""

    type: Literal["pairing_made"] = "pairing_made"
    line: str
    expires: str


class ListDevices(OwnerRequest):
    type: Literal["list_devices"] = "list_devices"


class DeviceView(Value):
    """Times are seconds since the epoch; `links` are connections of its processes now."""

    id: DeviceId
    name: str
    paired: float
    last_seen: float
    links: int
    revoked: float | None = None


class DeviceList(Request):
    """Newest last."""

    type: Literal["device_list"] = "device_list"
    devices: tuple[DeviceView, ...]


class RevokeDevice(OwnerRequest):
    """`device` is an id, or a name that one device alone has."""

    type: Literal["revoke_device"] = "revoke_device"
    device: str = Field(max_length=256)
