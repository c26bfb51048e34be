"""What stands behind the agents' links: registers sessions, runs their queues, takes in outcomes.

Everything here happens in one step of the loop; what takes time (store, timers) is handed to `later`.
"""

import itertools
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio

from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import (
    BadArguments,
    BridgeError,
    Cancelled,
    Executed,
    Interrupted,
    Lost,
    Timeout,
)
from chappie_bridge.wire.files import SinkFailed, Written
from chappie_bridge.wire.ids import MAX_ID, Mint, OperationId, SessionId
from chappie_bridge.wire.messages import (
    ApprovalsWaiting,
    Asking,
    CallResult,
    Cancel,
    Done,
    Failed,
    Finished,
    InputOffered,
    Message,
    PostChat,
    Recall,
    Register,
    Registered,
    Request,
    RequestEnded,
    RequestOpened,
    Residence,
    SessionChanged,
    SessionEnded,
    SessionStarted,
    Settled,
)
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.values import MAX_CALLS, AnswerItem, InputItem, Origin, SessionHead, ToolResult

from .audit import Audit
from .changes import Changes
from .deliveries import Mailroom, Parcel, deferred, input_key, result_key
from .directory import Directory, Session
from .download import Bounds
from .feeds import Streams
from .limits import Limits
from .operations import Ledger, Operation, result_size, stored_row
from .queue import FairQueue
from .residents import Residents
from .rpc import Correspondence
from .store.port import Store
from .store.rows import Delivery, DeliveryId
from .store.rows import Operation as OperationStored
from .store.rows import Session as SessionStored
from .storing import storing
from .transfers import Transfers

log = logging.getLogger("chappie.broker")

MAX_ORPHAN_BYTES = 64 * 1024 * 1024
"""Of results that came before the operation they belong to was known."""

MAX_SETTLED = 20_000


class Dispatch:
    """Implements wire.ports.Attendant for links of role `agent`."""

    def __init__(
        self,
        store: Store,
        audit: Audit,
        changes: Changes,
        limits: Limits,
        *,
        now: Callable[[], float],
        later: Callable[[Callable[[], Awaitable[None]]], None],
        start: Callable[..., object],
        mint: Mint,
        bounds: Bounds,
    ) -> None:
        """`bounds` are of what is downloaded."""
        self.limits = limits
        self.directory = Directory(self._make_queue, limits.stale_after, now)
        self.ledger = Ledger(limits.keep_in_memory, limits.keep_in_memory_bytes)
        self.mailroom = Mailroom(mint, limits)
        self.rpc = Correspondence()
        self.settled: OrderedDict[str, SessionId] = OrderedDict()
        """Operations and inputs that arrived for certain, and whose they are; an agent that offers one
        again is told so."""
        self.recalling: set[OperationId] = set()
        self._changes = changes
        self._store, self.audit, self._now, self._later, self._start = store, audit, now, later, start
        self._orphans: OrderedDict[OperationId, dict[int, ToolResult]] = OrderedDict()
        self._orphan_bytes = 0
        self.streams = Streams(partial(next, itertools.count(1)))
        self.transfers = Transfers(
            self.directory,
            self.rpc,
            self.streams,
            store,
            bounds=bounds,
            news=self.news,
            later=later,
            start=start,
            ended=self._transferred,
            now=now,
        )
        self.residents = Residents(self.directory, self.rpc, audit, limits, news=self.news, now=now)
        self._news = anyio.Event()
        self._handlers: dict[type[Message], Callable[[Link, Any], None]] = {
            Register: self._register,
            SessionChanged: self._changed,
            SessionEnded: self._ended,
            Asking: self._asking,
            ApprovalsWaiting: self._approvals,
            CallResult: self._call_result,
            Finished: self._finished,
            InputOffered: self._input,
            RequestOpened: self._request_opened,
            RequestEnded: self._request_ended,
            Written: self.transfers.written,
            SinkFailed: self.transfers.failed,
            Residence: self._resident,
            SessionStarted: self.residents.started,
        }

    def _make_queue(self) -> FairQueue[Operation]:
        return FairQueue(self.limits.queue_session, self.limits.queue_caller)

    async def news(self) -> None:
        """Until a session came or went."""
        await self._news.wait()

    def _tell_news(self) -> None:
        self._changes.tell()
        self._news.set()
        self._news = anyio.Event()

    # -- links -----------------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        """Nothing until it registers a session."""

    def link_back(self, link: Link) -> None:
        for session in self.directory.of_link(link):
            session.advance("link_back")
            session.last_seen = self._now()
            self.pump(session)
        self.transfers.lost(link)
        self._tell_news()

    def link_down(self, link: Link) -> None:
        for session in self.directory.of_link(link):
            session.advance("link_lost")
            session.last_seen = self._now()
        self.transfers.lost(link)
        self._tell_news()

    def link_gone(self, link: Link) -> None:
        for session in self.directory.of_link(link):
            self._end(session, "lease_expired")
        self.transfers.lost(link)
        self.residents.gone(link)
        self.rpc.gone(link)
        self._tell_news()

    def received(self, link: Link, message: Message) -> None:
        handle = self._handlers.get(type(message))
        try:
            if handle is not None:
                handle(link, message)
            elif isinstance(message, Request):
                self.rpc.resolve(link, message)
            else:
                log.warning("an agent sent %s, which is not an agent's", type(message).__name__)
        except BridgeError as error:
            log.warning("from %s: %s", link.peer.name, error)
            if isinstance(message, Request) and message.request:
                link.send(Failed(request=message.request, failure=error.failure()))

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> None:
        self.streams.received(link, stream, offset, data)

    # -- sessions --------------------------------------------------------------------------------

    def _register(self, link: Link, message: Register) -> None:
        named = message.session.id
        if not named or len(named) > MAX_ID or display(named, MAX_ID) != named:
            raise BadArguments(f"A session's id has 1 to {MAX_ID} characters that can all be seen.")
        session = self.directory.register(message.session, link.peer.device, link, self._now())
        running = session.running
        known = set(message.known)
        for doubtful in [each for each in session.doubtful.values() if each.id not in known]:
            self._conclude(session, doubtful, "restarted", error=Interrupted())
        if running is not None and running.status is not Status.QUEUED and running.id not in known:
            self._conclude(session, running, "restarted", error=Interrupted())
        self.audit.note(who=link.peer.name, what="register", target=session.info.id)

        async def admit() -> None:
            try:
                with storing(Executed.NO):
                    await self._store.upsert_session(self._row(session))
            except BridgeError as error:
                link.send(Failed(request=message.request, failure=error.failure()))
                return
            if session.link is link:
                self.directory.admit(session)
                link.send(Registered(request=message.request, session=session.info.id))
                for operation in list(session.doubtful.values()):
                    self._start(self._recollect, link, session, operation)
                self.pump(session)
                self._tell_news()

        self._later(admit)

    async def _recollect(self, link: Link, session: Session, operation: Operation) -> None:
        """How did it end?  An agent offers again only what it does not know to have arrived."""
        message = Recall(session=session.info.id, operation=operation.id)
        while operation.open and session.link is link:
            try:
                await self.rpc.ask(link, message, Done, self.limits.ask_seconds)
            except Timeout:
                continue  # the link may be down just now
            except BridgeError as error:
                log.info("%s is still under way, or its session left: %s", operation.id, error)
            return

    def _resident(self, link: Link, message: Residence) -> None:
        self.residents.came(link, message)
        self._tell_news()

    def _changed(self, link: Link, message: SessionChanged) -> None:
        session = self._own(link, message.session.id)
        told_before = session.info.model_copy(update={"activity": message.session.activity})
        session.info, session.last_seen = message.session, self._now()
        if told_before != message.session:
            self._save_session(session)

    def _ended(self, link: Link, message: SessionEnded) -> None:
        self._end(self._own(link, message.session), "ended")

    def expire(self, session: Session) -> None:
        """Its agent did not come back in time."""
        self._end(session, "lease_expired")

    def _end(self, session: Session, event: str) -> None:
        session.advance(event)
        for operation in session.queue.clear():
            self._finish(operation, "session_gone", error=Lost())
        running = session.running
        if running is not None:
            error = Lost() if running.status is Status.QUEUED else Interrupted()
            self._conclude(session, running, "session_gone", error=error)
        for doubtful in list(session.doubtful.values()):
            self._conclude(session, doubtful, "session_gone", error=Interrupted())
        session.requests.clear()
        self.directory.end(session, self._now())
        identifier, at = session.info.id, session.last_seen
        self._later(lambda: self._store.end_session(identifier, at))
        self._tell_news()

    def _own(self, link: Link, session_id: SessionId) -> Session:
        """The session, if this link speaks for it."""
        session = self.directory.get(session_id)
        if session.link is not link:
            raise Lost("Another connection speaks for this session now.")
        return session

    def _save_session(self, session: Session) -> None:
        row = self._row(session)
        self._later(lambda: self._store.upsert_session(row))

    def _row(self, session: Session) -> SessionStored:
        info = session.info
        return SessionStored(
            id=info.id,
            device=session.owner,
            agent=info.agent,
            model=info.model,
            cwd=info.cwd,
            name=info.name,
            parent=info.parent,
            first_seen=session.first_seen,
            last_seen=session.last_seen,
        )

    # -- operations ------------------------------------------------------------------------------

    def begin(self, session: Session, operation: Operation) -> None:
        """In its turn; at once and past the queue what answers a model request, and a transfer that a
        session asks for itself, which would wait there for what asks.

        :raises BridgeError: the queue is full, or it could not be handed over; nothing was kept."""
        message = operation.message
        if isinstance(message, PostChat) and message.reply_to is not None:
            self._reply(session, operation)
        elif operation.origin.chain[-1:] == (session.info.id,):
            self.ledger.add(operation)
            self.audit.dispatched(operation)
            self.transfers.begin(operation)
        elif session.requests:
            self.ledger.add(operation)
            self.refuse(operation)
        else:
            session.queue.push(operation.origin.id, operation)
            self.ledger.add(operation)
            self._changes.tell()
            self.pump(session)

    def pump(self, session: Session) -> None:
        """Send the next operation if the session can take one."""
        while session.running is None and session.online and session.link is not None:
            operation = session.queue.pop()
            if operation is None:
                return
            if session.requests:
                self.refuse(operation)
                continue
            if operation.kind == "transfer":
                self.audit.dispatched(operation)
                self.transfers.begin(operation)
                continue
            if operation.stored_as_queued:
                operation.sending = True
                session.running = operation
                self._later(partial(self._commit_and_send, session, operation))
            else:
                self._send(session, session.link, operation)

    async def _commit_and_send(self, session: Session, operation: Operation) -> None:
        """The registry holds it as queued: after a crash that must not pass for never sent."""
        error: BridgeError | None = None
        try:
            with storing(Executed.NO):
                await self._store.save_operation(stored_row(operation))
        except BridgeError as trouble:
            error = trouble
        if session.running is not operation or operation.status is not Status.QUEUED:
            pass  # cancelled, withdrawn or gone with its session meanwhile
        elif error is not None:
            self._finish(operation, "session_gone", error=error)
        elif session.link is not None:
            self._send(session, session.link, operation)
        if session.running is operation and not operation.open:
            session.running = None
            self.pump(session)

    def _send(self, session: Session, link: Link, operation: Operation) -> None:
        self.audit.dispatched(operation)
        try:
            link.send(operation.outgoing)
        except BridgeError as error:
            self._finish(operation, "session_gone", error=error)
            return
        operation.advance("sent", self._now())
        operation.executed = Executed.UNKNOWN
        session.running = operation

    def _reply(self, session: Session, operation: Operation) -> None:
        if session.link is None:
            raise Lost
        session.link.send(operation.outgoing)
        self.ledger.add(operation)
        operation.advance("sent", self._now())
        operation.executed = Executed.UNKNOWN
        session.doubtful[operation.id] = operation  # beside what runs: a lost agent ends it, too

    def sends_at_once(self, session: Session) -> bool:
        """Would an operation that came now go to the agent without queueing?"""
        return session.online and session.running is None and not session.queue and not session.requests

    def refuse(self, operation: Operation) -> None:
        """A model request waits: nothing else runs before it is answered."""
        reply = "remote_chat" if operation.origin.kind == "session" else "chat"
        self._finish(
            operation,
            "refused",
            error=Cancelled(
                "Not executed: the agent waits for the answer to a model request.",
                hint=f"Read `history`, answer it with `{reply}` and `replyTo`, then send this again.",
            ),
        )

    def cancel(self, operation: Operation, reason: str) -> None:
        """At once for what is queued; the device has `cancel_silence` seconds to say how it ended."""
        session = self.directory.get(operation.target.session)
        if operation.status is Status.QUEUED:
            session.queue.remove(operation.origin.id, operation)
            self._finish(operation, "cancel", error=Cancelled("Cancelled before it ran."))
        elif operation.kind == "transfer":
            self.transfers.cancel(operation)
        elif operation.open and operation.status is not Status.CANCELLING:
            operation.advance("cancel", self._now())
            self._start(self._give_up, session, operation)  # also when the word does not get through
            if session.link is not None:
                session.link.send(Cancel(operation=operation.id, session=session.info.id, reason=reason))

    async def _give_up(self, session: Session, operation: Operation) -> None:
        await anyio.sleep(self.limits.cancel_silence)
        if operation.status is Status.CANCELLING:
            self._conclude(
                session,
                operation,
                "silent",
                error=Interrupted("Cancelled, but the device has not confirmed it."),
            )

    def withdraw(self, operation: Operation) -> None:
        """Its last waiter left before it ran."""
        if operation.status is Status.QUEUED:
            session = self.directory.get(operation.target.session)
            session.queue.remove(operation.origin.id, operation)
            self._finish(operation, "withdrawn", error=Lost("The request was closed before this ran."))

    def remember(self, row: OperationStored) -> Operation:
        """An operation of an earlier life, or one that was forgotten, as the registry has it.

        :raises UnknownSession: its session is gone."""
        session = self.directory.get(SessionId(row.session))
        operation = Operation(
            id=OperationId(row.id),
            kind=row.kind,
            origin=Origin(kind=row.origin_kind, id=row.origin, label=row.origin, principal=row.principal),
            target=SessionHead(session=session.info.id, device=session.info.device, cwd=row.cwd),
            seq=0,
            accepted=row.created_at,
            key=row.key,
            status=Status(row.status),
            executed=Executed(row.executed),
            finished=row.finished_at,
            told_open=True,
            committed=True,
        )
        self.ledger.add(operation)
        return operation

    def lose(self, operation: Operation, error: BridgeError) -> None:
        """It was queued in an earlier life of the broker and never touched a link."""
        self._finish(operation, "session_gone", error=error)

    def expire_queues(self) -> None:
        """Janitor: what waited too long for its turn is lost."""
        oldest = self._now() - self.limits.queue_seconds
        for session in list(self.directory.sessions.values()):
            if not session.queue:
                continue
            for operation in [item for item in session.queue if item.accepted < oldest]:
                session.queue.remove(operation.origin.id, operation)
                self._finish(operation, "queue_expired", error=Lost("It waited too long for its turn."))

    def _conclude(self, session: Session, operation: Operation, event: str, error: BridgeError) -> None:
        """The end of what was on the link, as far as we can tell; the queue goes on."""
        self._finish(operation, event, error=error)
        session.doubtful.pop(operation.id, None)
        if session.running is operation:
            session.running = None
        self.pump(session)

    def _finish(self, operation: Operation, event: str, error: BridgeError | None = None) -> None:
        ended = operation.advance(event, self._now())
        if not ended:
            return
        if error is not None:
            operation.error = error.failure()
            operation.executed = Executed.YES if operation.results else error.executed
        self._settle_outcome(operation)

    def _transferred(
        self, operation: Operation, event: str, executed: Executed, error: BridgeError | None
    ) -> None:
        if operation.advance(event, self._now()):
            operation.executed = executed
            operation.error = None if error is None else error.failure()
            self._settle_outcome(operation)

    def _settle_outcome(self, operation: Operation, *, in_store: bool = False) -> None:
        self.transfers.forget(operation)
        self.ledger.finish(operation)
        self.audit.ended(operation)
        parcel = self.post_outcome(operation) if operation.waiters == 0 else None
        if operation.told_open or operation.key is not None or in_store:
            delivery = self._delivery(operation, parcel) if parcel is not None else None
            args = (operation.id, operation.status, operation.executed, self._now(), delivery)
            self._later(lambda: self._store.finish_operation(*args))

    def post_outcome(self, operation: Operation) -> Parcel | None:
        """Nobody waits for it: it rides with a later response to who asked."""
        if operation.origin.kind == "shell" or operation.id in self.recalling:
            return None
        key, item = result_key(operation.id), deferred(operation)
        return self.mailroom.put(operation.origin.id, key, item, shown_before=operation.offered)

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

    # -- what agents say of operations -----------------------------------------------------------

    def _approvals(self, link: Link, message: ApprovalsWaiting) -> None:
        self._own(link, message.session).approvals = message.approvals
        self._changes.tell()

    def _asking(self, link: Link, message: Asking) -> None:
        operation = self.ledger.get(message.operation)
        if operation is not None and operation.target.session == message.session:
            operation.needs = message.needs
            operation.advance("asks" if message.needs else "answered", self._now())
            operation.wake()
            self.directory.get(message.session).call_attention()

    def _call_result(self, link: Link, message: CallResult) -> None:
        self._own(link, message.session)
        operation = self.ledger.get(message.operation)
        if not 0 <= message.index < MAX_CALLS:
            raise BadArguments("A batch has no such call.")
        if operation is None:
            self._keep_orphan(message)
        elif operation.target.session == message.session:
            operation.results[message.index] = message.result
            operation.executed = Executed.YES

    def _keep_orphan(self, message: CallResult) -> None:
        """A result whose operation is not known before its end comes."""
        results = self._orphans.setdefault(message.operation, {})
        if message.index in results:
            return  # once more after a restart of the agent
        results[message.index] = message.result
        self._orphan_bytes += result_size(message.result)
        while self._orphan_bytes > MAX_ORPHAN_BYTES:
            self._take_orphans(next(iter(self._orphans)))

    def _take_orphans(self, operation: OperationId) -> dict[int, ToolResult]:
        results = self._orphans.pop(operation, {})
        self._orphan_bytes -= sum(result_size(result) for result in results.values())
        return results

    def _finished(self, link: Link, message: Finished) -> None:
        session = self._own(link, message.session)
        operation = self.ledger.get(message.operation)
        was_doubtful = operation is not None and operation.status is Status.INTERRUPTED
        if message.operation in self.settled and message.operation not in self.recalling:
            if operation is None or not was_doubtful or message.status == "interrupted":
                self._take_orphans(message.operation)
                link.send(Settled(session=session.info.id, operations=(message.operation,)))
                return
            del self.settled[message.operation]  # only our doubt has arrived, not this
            operation.offered = True
        if operation is None:
            operation = self._adopt(session, message)
        elif operation.target.session != message.session:
            return
        event = "restarted" if message.status == "interrupted" else message.status
        if operation.advance(event, self._now()):
            operation.error, operation.entry = message.error, message.entry
            operation.executed = message.executed
            doubt = None
            if message.status != "interrupted":  # better word than a doubt, whoever has seen that
                doubt = self.mailroom.supersede_doubt(operation.origin.id, result_key(operation.id))
            if doubt is not None:
                operation.offered |= doubt.shown
            self._settle_outcome(operation, in_store=doubt is not None and doubt.stored)
        session.doubtful.pop(operation.id, None)
        if session.running is operation:
            session.running = None
        self.pump(session)

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
            results=self._take_orphans(message.operation),
        )
        self.ledger.add(operation)
        return operation

    # -- input and model requests ----------------------------------------------------------------

    def _input(self, link: Link, message: InputOffered) -> None:
        session = self._own(link, message.session)
        if message.input.id in self.settled:
            link.send(Settled(session=session.info.id, inputs=(message.input.id,)))
        elif session.executor is None:
            session.unclaimed[message.input.id] = message.input
        else:
            self._address(session, session.executor, message)

    def _address(self, session: Session, executor: str, message: InputOffered) -> None:
        item = InputItem(session=session.info.id, input=message.input)
        self.mailroom.put(executor, input_key(message.input.id), item)

    def execute(self, session: Session, who: Origin) -> None:
        """`who` runs `call` or `chat` here: local input goes there from now on.  A shell has no later
        response that could carry input, so it never becomes the executor."""
        before, origin = session.executor, who.id
        if before == origin or who.kind == "shell":
            return
        session.executor = origin
        for item in session.unclaimed.values():
            self._address(session, origin, InputOffered(session=session.info.id, input=item))
        session.unclaimed.clear()
        if before is not None:
            for parcel in self.mailroom.inputs_of(before, session.info.id):
                self.mailroom.take_back(before, parcel.key)
                self.mailroom.put(origin, parcel.key, parcel.item, shown_before=parcel.offers > 0)

    def _request_opened(self, link: Link, message: RequestOpened) -> None:
        session = self._own(link, message.session)
        session.requests[message.request.id] = message.request
        for operation in session.queue.clear():
            self.refuse(operation)
        session.call_attention()

    def _request_ended(self, link: Link, message: RequestEnded) -> None:
        session = self._own(link, message.session)
        session.requests.pop(message.request, None)
        self.pump(session)

    # -- settling --------------------------------------------------------------------------------

    def shrink(self, limit: int) -> None:
        """Janitor: bodies kept for delivery stay within `limit` bytes."""
        arrived, given_up = self.mailroom.oldest(limit)
        for parcel in arrived:
            self.settle(parcel.addressee, [parcel])
        for parcel in given_up:
            log.warning(
                "the outcome of %s waits in its agent's journal only: too much waits", parcel.operation
            )
            self.mailroom.discard(parcel)

    def arrived(self, operation: Operation) -> None:
        """A shell was told how it ended.  It has no next request that would settle that."""
        session = self.directory.sessions.get(operation.target.session)
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
        parcels = self.mailroom.settle(self.mailroom.sent(addressee) if sent is None else sent)
        if not parcels:
            return
        by_session: dict[SessionId, list[Parcel]] = {}
        for parcel in parcels:
            if isinstance(parcel.item, AnswerItem):
                continue  # the registry has it, no agent
            by_session.setdefault(parcel.session, []).append(parcel)
            self._note_settled(parcel.operation or parcel.key.partition(":")[2], parcel.session)
        for session_id, group in by_session.items():
            link = self.directory.sessions[session_id].link if session_id in self.directory.sessions else None
            if link is not None:
                link.send(
                    Settled(
                        session=session_id,
                        operations=tuple(p.operation for p in group if p.operation is not None),
                        inputs=tuple(p.item.input.id for p in group if isinstance(p.item, InputItem)),
                    )
                )
        stored, at = [DeliveryId(parcel.key) for parcel in parcels if parcel.stored], self._now()
        if stored:
            self._later(lambda: self._store.settle(stored, at))
