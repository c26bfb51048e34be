"""How operations end and who hears of it: whoever waits, a later response, the registry, and the agent
that it arrived.  Says nothing of queues; what a session does next is dispatch's.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import BadArguments, BridgeError, Executed
from chappie_bridge.wire.ids import OperationId, SessionId
from chappie_bridge.wire.messages import Asking, CallResult, Finished, Settled
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.values import MAX_CALLS, AnswerItem, InputItem, SessionHead, ToolResult

from .audit import Audit
from .deliveries import Mailroom, Parcel, deferred, result_key
from .directory import Directory, Session
from .operations import Ledger, Operation, result_size
from .store.port import Store
from .store.rows import Delivery, DeliveryId

log = logging.getLogger("chappie.broker")

MAX_ORPHAN_BYTES = 64 * 1024 * 1024
"""Of results that came before the operation they belong to was known."""

MAX_SETTLED = 20_000


class Outcomes:
    """`later` writes in the order in which it was told."""

    def __init__(
        self,
        directory: Directory,
        ledger: Ledger,
        mailroom: Mailroom,
        store: Store,
        audit: Audit,
        *,
        now: Callable[[], float],
        later: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._directory, self._ledger, self._mailroom = directory, ledger, mailroom
        self._store, self._audit, self._now, self._later = store, audit, now, later
        self.settled: OrderedDict[str, SessionId] = OrderedDict()
        """Operations and inputs that arrived for certain, and whose they are; an agent that offers one
        again is told so."""
        self.recalling: set[OperationId] = set()
        self._orphans: OrderedDict[tuple[SessionId, OperationId], dict[int, ToolResult]] = OrderedDict()
        self._orphan_bytes = 0

    # -- what agents say -------------------------------------------------------------------------

    def asking(self, message: Asking) -> bool:
        """It waits for somebody, or no longer; False: none of the session's.  :raises BadArguments:"""
        operation = self._ledger.get(message.operation)
        if operation is None or operation.target.session != message.session:
            return False
        _was_sent(operation)
        operation.needs = message.needs
        operation.advance("asks" if message.needs else "answered", self._now())
        operation.wake()
        return True

    def result(self, message: CallResult) -> None:
        """Of one call, whose batch goes on.

        :raises BadArguments: no batch has that many, or it was never sent to its agent."""
        operation = self._ledger.get(message.operation)
        if not 0 <= message.index < MAX_CALLS:
            raise BadArguments("A batch has no such call.")
        if operation is None:
            self._keep_orphan(message)
        elif operation.target.session == message.session:
            _was_sent(operation)
            operation.results[message.index] = message.result
            operation.executed = Executed.YES

    def _keep_orphan(self, message: CallResult) -> None:
        """A result whose operation is not known before its end comes."""
        results = self._orphans.setdefault((message.session, message.operation), {})
        if message.index in results:
            return  # once more after a restart of the agent
        results[message.index] = message.result
        self._orphan_bytes += result_size(message.result)
        while self._orphan_bytes > MAX_ORPHAN_BYTES:
            self._take_orphans(*next(iter(self._orphans)))

    def _take_orphans(self, session: SessionId, operation: OperationId) -> dict[int, ToolResult]:
        results = self._orphans.pop((session, operation), {})
        self._orphan_bytes -= sum(result_size(result) for result in results.values())
        return results

    def finished(self, link: Link, session: Session, message: Finished) -> Operation | None:
        """The operation that an agent says has ended; None where that changes nothing.

        :raises BadArguments: it was never sent to its agent."""
        operation = self._ledger.get(message.operation)
        was_doubtful = operation is not None and operation.status is Status.INTERRUPTED
        if message.operation in self.settled and message.operation not in self.recalling:
            if operation is None or not was_doubtful or message.status == "interrupted":
                self._take_orphans(message.session, message.operation)
                link.send(Settled(session=session.info.id, operations=(message.operation,)))
                return None
            del self.settled[message.operation]  # only our doubt has arrived, not this
            operation.offered = True
        if operation is None:
            operation = self._adopt(session, message)
        elif operation.target.session != message.session:
            return None
        _was_sent(operation)
        event = "restarted" if message.status == "interrupted" else message.status
        if operation.advance(event, self._now()):
            operation.error, operation.entry = message.error, message.entry
            operation.executed = message.executed
            if message.status == "interrupted":
                self._tell(operation)
                return operation
            # Better word than a doubt, whoever has seen that.
            doubt = self._mailroom.supersede_doubt(operation.origin.id, result_key(operation.id))
            operation.offered |= doubt.shown
            self._tell(operation, in_store=doubt.stored)
        return operation

    def _adopt(self, session: Session, message: Finished) -> Operation:
        """An outcome from the agent's journal of which this broker has no memory."""
        operation = Operation(
            id=message.operation,
            kind=message.kind,
            origin=message.origin,
            target=SessionHead(session=session.info.id, device=session.info.device, cwd=message.cwd),
            seq=0,
            accepted=self._now(),
            status=Status.RUNNING,
            results=self._take_orphans(message.session, message.operation),
        )
        self._ledger.add(operation)
        return operation

    # -- what ends here --------------------------------------------------------------------------

    def end(self, operation: Operation, event: str, error: BridgeError) -> None:
        """As far as we can tell; results that came before that stay."""
        if operation.advance(event, self._now()):
            operation.error = error.failure()
            operation.executed = Executed.YES if operation.results else error.executed
            self._tell(operation)

    def transferred(
        self, operation: Operation, event: str, executed: Executed, error: BridgeError | None
    ) -> None:
        if operation.advance(event, self._now()):
            operation.executed = executed
            operation.error = None if error is None else error.failure()
            self._tell(operation)

    def _tell(self, operation: Operation, *, in_store: bool = False) -> None:
        self._ledger.finish(operation)
        self._audit.ended(operation)
        parcel = self.post(operation) if operation.waiters == 0 else None
        if operation.told_open or operation.key is not None or in_store:
            delivery = self._delivery(operation, parcel) if parcel is not None else None
            args = (operation.id, operation.status, operation.executed, self._now(), delivery)
            self._later(lambda: self._store.finish_operation(*args))

    def post(self, operation: Operation) -> Parcel | None:
        """Nobody waits for it: it rides with a later response to who asked."""
        if operation.origin.kind == "shell" or operation.id in self.recalling:
            return None
        key, item = result_key(operation.id), deferred(operation)
        return self._mailroom.put(operation.origin.id, key, item, shown_before=operation.offered)

    def _delivery(self, operation: Operation, parcel: Parcel) -> Delivery:
        parcel.stored = True
        return Delivery(
            id=DeliveryId(parcel.key),
            origin_kind=operation.origin.kind,
            origin=operation.origin.id,
            session=operation.target.session,
            cwd=operation.target.cwd,
            kind="result",
            status="offered",
            body=parcel.item.model_dump_json(exclude_none=True),
            created_at=self._now(),
            operation=operation.id,
        )

    # -- what arrived ----------------------------------------------------------------------------

    def shrink(self, limit: int) -> None:
        """Janitor: bodies kept for delivery stay within `limit` bytes."""
        arrived, given_up = self._mailroom.oldest(limit)
        for parcel in arrived:
            self.settle(parcel.addressee, [parcel])
        for parcel in given_up:
            log.warning(
                "the outcome of %s waits in its agent's journal only: too much waits", parcel.operation
            )
            self._mailroom.discard(parcel)

    def arrived(self, operation: Operation) -> None:
        """A shell was told how it ended.  It has no next request that would settle that."""
        session = self._directory.sessions.get(operation.target.session)
        self._note_settled(operation.id, operation.target.session)
        if session is not None and session.link is not None:
            session.link.send(Settled(session=session.info.id, operations=(operation.id,)))

    def _note_settled(self, name: str, session: SessionId) -> None:
        self.settled[name] = session
        while len(self.settled) > MAX_SETTLED:
            self.settled.popitem(last=False)

    def settle(self, addressee: str, sent: list[Parcel] | None = None) -> None:
        """The addressee's next request came: tell the agents and the store.  `sent`: what was sent before
        it came, where that was some time ago."""
        parcels = self._mailroom.settle(self._mailroom.sent(addressee) if sent is None else sent)
        if not parcels:
            return
        by_session: dict[SessionId, list[Parcel]] = {}
        for parcel in parcels:
            if isinstance(parcel.item, AnswerItem):
                continue  # the registry has it, no agent
            by_session.setdefault(parcel.session, []).append(parcel)
            self._note_settled(parcel.operation or parcel.key.partition(":")[2], parcel.session)
        for session_id, group in by_session.items():
            session = self._directory.sessions.get(session_id)
            if session is not None and session.link is not None:
                session.link.send(
                    Settled(
                        session=session_id,
                        operations=tuple(p.operation for p in group if p.operation is not None),
                        inputs=tuple(p.item.input.id for p in group if isinstance(p.item, InputItem)),
                    )
                )
        stored, at = [DeliveryId(parcel.key) for parcel in parcels if parcel.stored], self._now()
        if stored:
            self._later(lambda: self._store.settle(stored, at))


def _was_sent(operation: Operation) -> None:
    """An agent may know the id of what waits for it: its session may have asked for that itself."""
    if operation.status in (Status.QUEUED, Status.LOST):
        raise BadArguments("An agent speaks of an operation that was never sent to it.")
