"""What the owner alone asks of the broker.  Beside the Switchboard, which serves everybody."""

import json
from collections.abc import Callable
from datetime import UTC, datetime

from chappie_bridge.wire.errors import Executed, SessionOffline, UnknownOperation
from chappie_bridge.wire.messages import Decide, Decided, Done
from chappie_bridge.wire.overview import (
    AnswerApproval,
    AnswerQuestion,
    ApprovalList,
    AwaitChange,
    CancelOperation,
    Changed,
    ListApprovals,
    ListOperations,
    ListQuestions,
    OperationList,
    OperationRow,
    PendingApproval,
    QuestionList,
)
from chappie_bridge.wire.owner import (
    AppList,
    AppRow,
    AuditPage,
    AuditRow,
    CodeMade,
    DeviceList,
    ListApps,
    ListDevices,
    ListSubjects,
    MakeCode,
    Measure,
    Measures,
    PairDevice,
    PairingMade,
    ReadAudit,
    RedeemCode,
    RevokeApp,
    RevokeDevice,
    RuleSubject,
    SubjectList,
    SubjectRow,
    TakeMeasures,
)
from chappie_bridge.wire.requests import QuestionView

from .apps import Apps
from .audit import summary
from .changes import Changes
from .clock import iso
from .codes import LIFETIME, OneTimeCodes
from .devices import Devices
from .dispatch import Dispatch
from .operations import Operation
from .questions import Questions
from .store.port import Store
from .store.rows import AuditLine
from .storing import storing
from .subjects import Subjects, name


class OwnersOffice:
    """Implements `ports.Office`.  `now` gives seconds since the epoch."""

    def __init__(
        self,
        store: Store,
        dispatch: Dispatch,
        questions: Questions,
        changes: Changes,
        measure: Callable[[], tuple[Measure, ...]],
        apps: Apps,
        subjects: Subjects,
        *,
        codes: OneTimeCodes,
        devices: Devices,
        now: Callable[[], float],
    ) -> None:
        self._store, self._measure, self._now = store, measure, now
        self._dispatch, self._questions, self._changes = dispatch, questions, changes
        self._apps, self._subjects = apps, subjects
        self._codes, self._devices = codes, devices

    async def make_code(self, request: MakeCode) -> CodeMade:
        return CodeMade(code=self._codes.make(request.purpose), expires=self._expires())

    async def redeem_code(self, request: RedeemCode) -> Done:
        self._codes.redeem(request.purpose, request.code, by=request.by)
        return Done()

    async def list_apps(self, request: ListApps) -> AppList:
        return AppList(
            apps=tuple(
                AppRow(
                    id=app.id,
                    name=app.name,
                    redirects=tuple(json.loads(app.redirects)),
                    last_used=iso(app.last_used),
                    consented=None if grant is None else iso(grant.created_at),
                )
                for app, grant in self._apps.known()
            )
        )

    async def revoke_app(self, request: RevokeApp) -> Done:
        await self._apps.revoke_app(request.app)
        return Done()

    async def list_subjects(self, request: ListSubjects) -> SubjectList:
        return SubjectList(
            subjects=tuple(
                SubjectRow(
                    id=name(row),
                    credential=row.credential,
                    status=row.status,
                    first_seen=iso(row.first_seen),
                    last_seen=iso(row.last_seen),
                )
                for row in self._subjects.known()
            )
        )

    async def rule_subject(self, request: RuleSubject) -> Done:
        if request.allow:
            await self._subjects.allow(request.subject)
        else:
            await self._subjects.forget(request.subject)
        return Done()

    async def pair(self, request: PairDevice) -> PairingMade:
        line = self._devices.invite(request.name, request.url)
        self._dispatch.audit.note(
            who="owner", what="pair", target=request.name or "a device", outcome="invited"
        )
        return PairingMade(line=str(line), expires=self._expires())

    async def devices(self, request: ListDevices) -> DeviceList:
        with storing(Executed.NO):
            return DeviceList(devices=await self._devices.views())

    async def revoke(self, request: RevokeDevice) -> Done:
        again = "The device is refused until this broker ends; revoke it again to make that last."
        with storing(Executed.UNKNOWN, hint=again):
            device = await self._devices.revoke(request.device)
        self._dispatch.audit.note(who="owner", what="revoke", target=device, outcome="revoked")
        return Done()

    def _expires(self) -> str:
        return datetime.fromtimestamp(self._now() + LIFETIME, UTC).isoformat(timespec="seconds")

    async def audit(self, request: ReadAudit) -> AuditPage:
        with storing(Executed.NO):
            lines = await self._store.audit_page(request.before, request.limit)
        return AuditPage(lines=tuple(map(_row, lines)))

    async def measures(self, request: TakeMeasures) -> Measures:
        return Measures(measures=self._measure())

    async def operations(self, request: ListOperations) -> OperationList:
        found = [
            operation
            for operation in self._dispatch.ledger
            if request.session in (None, operation.target.session)
        ]
        ended = [operation for operation in found if not operation.open]
        ended.sort(key=lambda operation: operation.finished or 0.0, reverse=True)
        chosen = ([operation for operation in found if operation.open] + ended)[: request.limit]
        return OperationList(operations=tuple(map(self._seen, chosen)))

    async def cancel(self, request: CancelOperation) -> Done:
        """:raises UnknownOperation: it is not known, or no longer."""
        operation = self._dispatch.ledger.get(request.operation)
        if operation is None:
            raise UnknownOperation
        self._dispatch.cancel(operation, "Cancelled by the owner.")
        return Done()

    async def approvals(self, request: ListApprovals) -> ApprovalList:
        return ApprovalList(
            approvals=tuple(
                PendingApproval(
                    session=session.info.id,
                    device=session.info.device,
                    cwd=session.info.cwd,
                    approval=approval,
                )
                for session in self._dispatch.directory.sessions.values()
                for approval in session.approvals
            )
        )

    async def answer_approval(self, request: AnswerApproval) -> Decided:
        """:raises RequestClosed: its call has ended.  :raises SessionOffline: nobody is there to hear it."""
        session = self._dispatch.directory.get(request.session)
        if session.link is None:
            raise SessionOffline
        message = Decide(
            session=session.info.id,
            approval=request.approval,
            allowed=request.allowed,
            scope=request.scope,
            by="dashboard",
        )
        rpc, seconds = self._dispatch.rpc, self._dispatch.limits.ask_seconds
        return await rpc.ask(session.link, message, Decided, seconds)

    async def questions(self, request: ListQuestions) -> QuestionList:
        return QuestionList(questions=await self._questions.recent(request.limit))

    async def answer_question(self, request: AnswerQuestion) -> QuestionView:
        return await self._questions.answer_for_owner(request)

    async def change(self, request: AwaitChange) -> Changed:
        return Changed(number=await self._changes.after(request.since, request.wait))

    def _seen(self, operation: Operation) -> OperationRow:
        until = self._now() if operation.finished is None else operation.finished
        return OperationRow(
            operation=operation.id,
            kind=operation.kind,
            session=operation.target.session,
            device=operation.target.device,
            origin=operation.origin.label,
            status=operation.status,
            executed=operation.executed,
            seq=operation.seq,
            accepted=iso(operation.accepted),
            duration_ms=max(0, round((until - operation.accepted) * 1000)),
            what=summary(operation),
            needs=operation.needs,
        )


def _row(line: AuditLine) -> AuditRow:
    return AuditRow(
        number=line.id or 0,
        at=iso(line.at),
        who=line.who,
        what=line.what,
        where=line.target,
        size=line.size,
        outcome=line.outcome,
        duration_ms=line.duration_ms,
    )
