"""The audit log: one line before dispatch, the outcome after.  Written behind, in groups, bounded."""

import logging
from collections import Counter, deque
from collections.abc import Callable

from chappie_bridge.codec.redact import redact
from chappie_bridge.codec.unicode import display

from .operations import Operation
from .store.port import Store
from .store.rows import AuditLine

log = logging.getLogger("chappie.audit")


class Audit:
    """Who, where, what, size, duration; never arguments or output.  Also counts what ended how."""

    def __init__(
        self, store: Store, *, now: Callable[[], float], limit: int, told: Callable[[], None] = lambda: None
    ) -> None:
        """`told` is called with each line."""
        self._store, self._now, self._told = store, now, told
        self._lines: deque[AuditLine] = deque()
        self._limit = limit
        self._dropped = 0
        self.ends: Counter[tuple[str, str]] = Counter()
        """Operations by kind and how they ended; one whose end was corrected later counts for both."""
        self.moved = 0
        """Bytes of ended transfers."""
        self.lost_lines = 0
        """Lines that were never written, for want of room."""

    @property
    def waiting(self) -> int:
        """Lines that are not written yet."""
        return len(self._lines)

    def note(self, *, who: str, what: str, target: str, size: int = 0, outcome: str = "") -> None:
        self._add(AuditLine(self._now(), who, what, target, size, outcome))

    def dispatched(self, operation: Operation) -> None:
        self._operation(operation, _size(operation), "sent")

    def ended(self, operation: Operation) -> None:
        duration = round((self._now() - operation.accepted) * 1000)
        self._operation(operation, operation.size, operation.status, duration)
        self.ends[operation.kind, operation.status] += 1
        if operation.kind == "transfer":
            self.moved += sum(file.moved for file in operation.files())

    def _operation(self, operation: Operation, size: int, outcome: str, duration: int | None = None) -> None:
        who = f"{operation.origin.kind}:{operation.origin.id}"
        where = f"{operation.target.session} {operation.id}"
        self._add(AuditLine(self._now(), who, summary(operation), where, size, outcome, duration))

    def _add(self, line: AuditLine) -> None:
        self._told()
        if len(self._lines) >= self._limit:
            self._dropped += 1
            self.lost_lines += 1
        else:
            self._lines.append(line)

    async def flush(self) -> None:
        """Write what gathered; called by the janitor."""
        lines = list(self._lines)
        if self._dropped:
            lines.append(AuditLine(self._now(), "broker", "audit", "", self._dropped, "lines dropped"))
        if not lines:
            return
        await self._store.append_audit(lines)
        self._dropped = 0
        for _ in range(min(len(lines), len(self._lines))):
            self._lines.popleft()


def summary(operation: Operation) -> str:
    """The names of what it calls, or its kind."""
    message = operation.message
    if message is None:
        return operation.kind
    if message.type == "run_batch":
        names = redact(",".join(display(call.name, 100) for call in message.calls[:8]))
        more = len(message.calls) - 8
        return f"{operation.kind} {names}{f' +{more}' if more > 0 else ''}"
    return "chat"


def _size(operation: Operation) -> int:
    message = operation.message
    if message is None or message.type == "post_chat":
        return len(message.text) if message is not None else 0
    return len(message.calls)
