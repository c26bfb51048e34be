"""What happens by the clock, in small bounded steps: memory filled at start, then kept within bounds."""

import logging
from collections.abc import Callable
from typing import Annotated, Protocol

import anyio
from pydantic import Field, TypeAdapter

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import Lost
from chappie_bridge.wire.ids import ConversationId, DeviceId, ReceiptId, SessionId
from chappie_bridge.wire.session import Presence
from chappie_bridge.wire.values import AnswerItem, DeferredItem, SessionInfo

from .audit import Audit
from .dispatch import Dispatch
from .store.port import Access, Retention, Store
from .store.rows import Operation as StoredOperation

log = logging.getLogger("chappie.broker")

TICK = 0.5
STEP = 500
"""Rows of one kind that one tick may remove."""
STEPS = 40
"""Steps of the store's tidying in one round; audit lines come faster than one step removes them."""
SLOW = 60
"""Ticks between two looks at the store's ages."""
LEASE = 60.0

_STORED: TypeAdapter[DeferredItem | AnswerItem] = TypeAdapter(
    Annotated[DeferredItem | AnswerItem, Field(discriminator="kind")]
)


class _Told(Protocol):
    def __call__(self, receipt: ReceiptId, *, sent: bool) -> None: ...


class Janitor:
    def __init__(
        self, dispatch: Dispatch, audit: Audit, store: Store, *, now: Callable[[], float], told: _Told
    ) -> None:
        self._dispatch, self._audit, self._store, self._now, self._told = dispatch, audit, store, now, told
        limits = dispatch.limits
        self._retention = Retention(
            operations=limits.keep_results,
            settled=limits.keep_results,
            unsettled=limits.keep_deliveries,
            questions=limits.keep_questions,
            audit=limits.keep_audit,
            audit_lines=limits.audit_lines,
        )
        self.late = 0.0
        """Seconds that the loop was behind at the last tick."""

    async def restore(self, *entrances: Callable[[Access], None]) -> None:
        """Fill memory from the store, that of `entrances` too.  What was queued when the broker died never
        touched a link."""
        directory = self._dispatch.directory
        memory = await self._store.load(self._now())
        access = await self._store.access()
        for load in entrances:
            load(access)
        names = {device.id: device.name for device in memory.devices}
        for row in memory.sessions:
            info = SessionInfo(
                id=SessionId(row.id),
                agent=row.agent,
                device=names.get(row.device, row.device),
                cwd=row.cwd,
                model=row.model,
                name=row.name,
                parent=SessionId(row.parent) if row.parent else None,
            )
            directory.restore(info, DeviceId(row.device), row.first_seen, row.last_seen)
        for conversation in memory.conversations:
            directory.hear(ConversationId(conversation.id), conversation.last_seen)
        for binding in memory.bindings:
            directory.bind(ConversationId(binding.conversation), SessionId(binding.session))
        for key in memory.keys:
            self._dispatch.ledger.keys[key.origin, key.key] = key
        for operation in memory.operations:
            await self._restore_operation(operation)
        for delivery in memory.deliveries:
            item = _STORED.validate_json(delivery.body)
            sent = delivery.status == "sent"
            self._dispatch.mailroom.restore(delivery.origin, delivery.id, item, sent=sent)

    async def run(self) -> None:
        started = anyio.current_time()
        ticks = 0
        leased = False
        while True:
            due = anyio.current_time() + TICK
            await anyio.sleep(TICK)
            ticks += 1
            now = anyio.current_time()
            self.late = max(0.0, now - due)
            try:
                await self._audit.flush()
                limits = self._dispatch.limits
                for receipt in self._dispatch.mailroom.overdue(now - limits.receipt_seconds):
                    self._told(receipt, sent=False)
                self._dispatch.expire_queues()
                if not leased and now - started > LEASE:
                    leased = True
                    self._expire_absent()
                if ticks % SLOW == 0:
                    await self._touch()
                    self._forget(limits.keep_results)
                    self._dispatch.directory.forget_unbound(self._now() - limits.keep_results, STEP)
                    self._dispatch.outcomes.shrink(limits.mail_bytes)
                    await self._prune()
            except Exception:
                log.exception("the janitor's round failed; it goes on")

    async def _touch(self) -> None:
        """When sessions were last online, as a crash of the broker would find it."""
        now = self._now()
        seen = [(session.info.id, now) for session in self._dispatch.directory.online]
        for start in range(0, len(seen), STEP):
            await self._store.touch_sessions(seen[start : start + STEP])

    async def _prune(self) -> None:
        """Many small steps, so that no single one holds the registry for long."""
        for _ in range(STEPS):
            if await self._store.prune(self._now(), self._retention, STEP) == 0:
                return

    async def _restore_operation(self, row: StoredOperation) -> None:
        session = self._dispatch.directory.sessions.get(SessionId(row.session))
        if session is None:
            return
        operation = self._dispatch.ledger.remember(row, session.info.device)
        if operation.status is Status.QUEUED:
            self._dispatch.lose(operation, Lost("The broker stopped before this ran."))
        elif operation.kind == "transfer":
            await self._dispatch.transfers.restore(operation)
        else:
            session.doubtful[operation.id] = operation
            session.running = session.running or operation

    def _expire_absent(self) -> None:
        """Sessions that have not called since the start: their work may have run."""
        for session in list(self._dispatch.directory.sessions.values()):
            if session.presence is Presence.GREETING and session.running is not None and session.link is None:
                self._dispatch.expire(session)

    def _forget(self, age: float) -> None:
        """Finished operations and keys; what nobody has received yet stays to be delivered."""
        for identifier in self._dispatch.ledger.expired(age, STEP):
            self._dispatch.ledger.forget(identifier)
        keys, now = self._dispatch.ledger.keys, self._now()
        for name in [name for name, row in keys.items() if row.expires_at <= now][:STEP]:
            del keys[name]
