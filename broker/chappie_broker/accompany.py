"""What accompanies an answer (SPEC §3) and counts of what waits.  Decides in memory, waits for nothing."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from chappie_bridge.wire.ids import ReceiptId
from chappie_bridge.wire.values import Companion, Companions, Origin, Pending, RequestItem

from . import instructions
from .deliveries import Parcel
from .directory import Session
from .dispatch import Dispatch
from .operations import Operation
from .reading import Reading
from .store.port import Store
from .store.rows import DeliveryId

MAX_REQUESTED = 10_000
"""Requests of tunnels that are known again."""


class Company:
    """`later` writes in the order in which it was told."""

    def __init__(
        self,
        dispatch: Dispatch,
        reading: Reading,
        store: Store,
        later: Callable[[Callable[[], Awaitable[object]]], None],
    ) -> None:
        self.dispatch, self._reading, self._store, self._later = dispatch, reading, store, later
        self._mailroom = dispatch.mailroom
        self._requested: OrderedDict[tuple[str, str], None] = OrderedDict()

    def of(self, origin: Origin, session: Session | None) -> Companions:
        """For an answer to `origin` about `session` that tells no operation's outcome."""
        receipt = self._mailroom.open(origin.id, anyio.current_time())
        return self.on(receipt, origin, session)

    def on(
        self, receipt: ReceiptId, origin: Origin, session: Session | None, operation: Operation | None = None
    ) -> Companions:
        """The same for an answer that was begun already."""
        found = self._mailroom.companions(receipt, self._requests(session, origin))
        return self._reading.marked(found, origin, operation)

    def knows(self, origin: Origin, tunnel_request: str | None) -> bool:
        """Did this very request come before?"""
        return tunnel_request is not None and (origin.id, tunnel_request) in self._requested

    def arrives(self, origin: Origin, tunnel_request: str | None, sent: list[Parcel] | None = None) -> None:
        """A request of `origin`: what was sent to it has arrived, unless a tunnel brings the same request
        once more.  `sent`: see `Outcomes.settle`."""
        if self.knows(origin, tunnel_request):
            self.came_again(origin)
            return
        if tunnel_request is not None:
            self._requested[origin.id, tunnel_request] = None
            if len(self._requested) > MAX_REQUESTED:
                self._requested.popitem(last=False)
        self.dispatch.outcomes.settle(origin.id, sent)

    def came_again(self, origin: Origin) -> None:
        """What the reply to the same request carried never arrived: it is offered again."""
        stored = [DeliveryId(parcel.key) for parcel in self._mailroom.recall(origin.id) if parcel.stored]
        if stored:
            self._later(partial(self._store.mark_unsent, stored))

    def pending(self, session: Session, origin: Origin) -> Pending:
        waiting = self._mailroom.waiting(origin.id)
        asking = session.running.needs if session.running is not None else ()
        return Pending(
            inputs=waiting.inputs + (len(session.unclaimed) if session.executor is None else 0),
            results=waiting.results,
            requests=len(session.requests),
            answers=waiting.answers,
            approvals=sum(1 for need in asking if need.kind == "approval"),
        )

    def _requests(self, session: Session | None, origin: Origin) -> list[Companion]:
        """The first model request that waits; whoever works here may answer it, and sees it until then."""
        if session is None or not session.requests:
            return []
        first = next(iter(session.requests.values()))
        reply, run = ("remote_chat", "remote_call") if origin.kind == "session" else ("chat", "call")
        words = instructions.model_request(first.kind, reply=reply, run=run)
        request = first.model_copy(update={"instructions": words})
        return [RequestItem(session=session.info.id, request=request)]
