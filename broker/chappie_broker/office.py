"""What the owner alone asks of the broker.  Beside the Switchboard, which serves everybody."""

from collections.abc import Callable
from datetime import UTC, datetime

from chappie_bridge.wire.errors import Executed
from chappie_bridge.wire.messages import Done
from chappie_bridge.wire.owner import (
    AuditPage,
    AuditRow,
    CodeMade,
    MakeCode,
    Measure,
    Measures,
    ReadAudit,
    RedeemCode,
    TakeMeasures,
)

from .clock import iso
from .codes import LIFETIME, OneTimeCodes
from .store.port import Store
from .store.rows import AuditLine
from .storing import storing


class OwnersOffice:
    """Implements `ports.Office`.  `now` gives seconds since the epoch, `clock` seconds that only grow."""

    def __init__(
        self,
        store: Store,
        measure: Callable[[], tuple[Measure, ...]],
        *,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._store, self._measure, self._now = store, measure, now
        self._codes = OneTimeCodes(clock)

    async def make_code(self, request: MakeCode) -> CodeMade:
        expires = datetime.fromtimestamp(self._now() + LIFETIME, UTC).isoformat(timespec="seconds")
        return CodeMade(code=self._codes.make(request.purpose), expires=expires)

    async def redeem_code(self, request: RedeemCode) -> Done:
        self._codes.redeem(request.purpose, request.code, by=request.by)
        return Done()

    async def audit(self, request: ReadAudit) -> AuditPage:
        with storing(Executed.NO):
            lines = await self._store.audit_page(request.before, request.limit)
        return AuditPage(lines=tuple(map(_row, lines)))

    async def measures(self, request: TakeMeasures) -> Measures:
        return Measures(measures=self._measure())


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
