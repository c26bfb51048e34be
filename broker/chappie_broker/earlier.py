"""What was asked before: the operation of a key, of a request that came again, of an id.  Finds in memory,
in the registry and with agents; begins nothing.
"""

from collections.abc import Callable
from dataclasses import replace

import anyio

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import (
    BridgeError,
    Cancelled,
    Executed,
    Interrupted,
    KeyReused,
    Lost,
    UnknownOperation,
)
from chappie_bridge.wire.ids import ConversationId, OperationId, SessionId
from chappie_bridge.wire.messages import Done, Recall
from chappie_bridge.wire.requests import Submit
from chappie_bridge.wire.values import Origin

from .accompany import Company
from .directory import Session
from .dispatch import Dispatch
from .operations import Operation, stored_row
from .store.port import Store
from .store.rows import Operation as StoredOperation
from .store.rows import RequestKey
from .storing import storing
from .targets import link_of

_WITHOUT_RESULTS: dict[Status, type[BridgeError]] = {
    Status.LOST: Lost,
    Status.CANCELLED: Cancelled,
    Status.INTERRUPTED: Interrupted,
}
"""Ends that an operation can have without its agent."""

REFUSED = "It was refused before anything of it ran; why is not known any more."


class Earlier:
    def __init__(
        self, dispatch: Dispatch, company: Company, store: Store, *, now: Callable[[], float]
    ) -> None:
        self._dispatch, self._company, self._store, self._now = dispatch, company, store, now
        self._ledger, self._limits = dispatch.ledger, dispatch.limits

    # -- by the request --------------------------------------------------------------------------

    async def of(self, request: Submit, print_: str, origin: Origin, deadline: float) -> Operation | None:
        """The operation that this very request started before, if it did.

        :raises KeyReused: the key belongs to other calls or another target.
        :raises UnknownOperation: its result has expired.
        """
        if request.key is not None:
            stands = self._ledger.keys.get((origin.id, request.key))
            if stands is None or stands.expires_at <= self._now():
                return None
            if stands.fingerprint != print_:
                raise KeyReused
            self._company.came_again(origin)
            try:
                return await self.named(stands.operation, origin, deadline)
            except UnknownOperation:
                raise UnknownOperation(
                    "The result that belongs to this `key` has expired. The calls are not run again.",
                    hint="Read `history` for what they did; another `key` runs them once more.",
                    executed=Executed.UNKNOWN,
                ) from None
        return self.same(print_, origin, request.tunnel_request)

    def same(self, print_: str, origin: Origin, tunnel_request: str | None) -> Operation | None:
        """What an equal request began that was not answered yet, or that the tunnel sends once more."""
        if tunnel_request is not None:
            first = self._ledger.same_request(origin.id, f"tunnel:{tunnel_request}:{print_}")
            if first is not None:
                self._company.came_again(origin)
                return first
        if origin.kind == "shell":
            return None  # not one conversation: two clients may want the same thing
        first = self._ledger.same_request(origin.id, f"fingerprint:{print_}")
        if first is not None and first.open and not first.shown and first.key is None:
            return first
        return None

    async def accept(self, session: Session, operation: Operation, key: str) -> OperationId:
        """Committed before anything is sent, so that it never runs twice.  The operation that has the
        key: another one, if it took the key while we looked.

        :raises KeyReused: that one is not the same."""
        now = self._now()
        row = RequestKey(
            origin=operation.origin.id,
            key=key,
            fingerprint=operation.fingerprint,
            operation=operation.id,
            accepted_at=now,
            expires_at=now + self._limits.keep_results,
        )
        kept = stored_row(operation)
        if self._dispatch.sends_at_once(session):
            kept = replace(kept, status=Status.RUNNING)
        else:
            operation.stored_as_queued = True
        with storing(Executed.NO):
            stands = await self._store.accept_key(row, kept)
        self._ledger.keys[row.origin, key] = stands
        if stands.fingerprint != operation.fingerprint:
            raise KeyReused
        return stands.operation

    async def release(self, operation: Operation, key: str) -> None:
        """It did not begin: the key is free again."""
        self._ledger.keys.pop((operation.origin.id, key), None)
        with storing(Executed.NO):
            await self._store.release_key(operation.origin.id, key, operation.id)
            await self._store.finish_operation(operation.id, Status.LOST, Executed.NO, self._now())

    # -- by the id -------------------------------------------------------------------------------

    async def named(
        self, identifier: OperationId, origin: Origin, deadline: float, session: SessionId | None = None
    ) -> Operation:
        """:raises UnknownOperation: nobody knows it any more.  :raises SessionOffline: who might is away.

        `session`: where to ask for it, when nothing here says whose it is."""
        return self._ledger.get(identifier) or await self._recall(identifier, origin, deadline, session)

    async def _recall(
        self, identifier: OperationId, origin: Origin, deadline: float, named: SessionId | None
    ) -> Operation:
        """An operation that only its agent remembers."""
        with storing(Executed.NO):
            stored = await self._store.operation(identifier)
        if stored is not None and stored.principal != origin.principal:
            raise UnknownOperation
        outcomes, directory = self._dispatch.outcomes, self._dispatch.directory
        session_id = (
            (SessionId(stored.session) if stored is not None else named)
            or outcomes.settled.get(identifier)
            or directory.bound(ConversationId(origin.id))
        )
        session = None if session_id is None else directory.sessions.get(session_id)
        if session is None:
            raise UnknownOperation
        if stored is not None and stored.kind == "transfer":
            return await self._recall_transfer(stored, session)
        outcomes.recalling.add(identifier)
        try:
            message = Recall(session=session.info.id, operation=identifier)
            seconds = min(max(deadline - anyio.current_time(), 0.1), self._limits.ask_seconds)
            await self._dispatch.rpc.ask(link_of(session), message, Done, seconds)
        except UnknownOperation:
            if stored is None or (error := _of_its_end(stored)) is None:
                raise
            return self._as_stored(stored, session, error)
        finally:
            outcomes.recalling.discard(identifier)
        operation = self._ledger.get(identifier)
        if operation is None:
            raise UnknownOperation
        return operation

    async def _recall_transfer(self, stored: StoredOperation, session: Session) -> Operation:
        """The registry has it, not an agent."""
        operation = self._ledger.remember(stored, session.info.device)
        await self._dispatch.transfers.recall(operation)
        self._ledger.finish(operation)
        return operation

    def _as_stored(self, stored: StoredOperation, session: Session, error: BridgeError) -> Operation:
        """Its agent has never heard of it; the registry says all there is to say."""
        operation = self._ledger.remember(stored, session.info.device)
        operation.error = error.failure()
        self._ledger.finish(operation)
        return operation


def _of_its_end(stored: StoredOperation) -> BridgeError | None:
    """None: only its agent can tell."""
    if stored.status is Status.FAILED and stored.executed is Executed.NO:
        return Lost(REFUSED)
    found = _WITHOUT_RESULTS.get(stored.status)
    return None if found is None else found()
