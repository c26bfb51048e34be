"""What stands behind the agents' links: registers sessions, runs their queues, takes in what agents say.

Everything here happens in one step of the loop; what takes time (store, timers) is handed to `later`.
"""

import itertools
import logging
from collections.abc import Awaitable, Callable, Collection
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
    Overloaded,
    Timeout,
)
from chappie_bridge.wire.files import SinkFailed, Written
from chappie_bridge.wire.ids import MAX_ID, Mint, SessionId
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
from chappie_bridge.wire.values import InputItem, Origin

from .arrivals import Arrivals
from .audit import Audit
from .changes import Changes
from .deliveries import Mailroom, input_key
from .directory import Directory, Session
from .download import Bounds
from .feeds import Streams
from .limits import Limits
from .operations import Ledger, Operation, stored_row
from .outcomes import Outcomes
from .queue import FairQueue
from .residents import Residents
from .rpc import Correspondence
from .store.port import Store
from .store.rows import Session as SessionStored
from .storing import storing
from .transfers import Transfers

log = logging.getLogger("chappie.broker")


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
        self.outcomes = Outcomes(
            self.directory, self.ledger, self.mailroom, store, audit, now=now, later=later
        )
        self._changes = changes
        self._store, self.audit, self._now, self._later, self._start = store, audit, now, later, start
        self._arrivals = Arrivals(store, later)
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
            ended=self.outcomes.transferred,
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
        _one_more(self.directory.sessions, named, self.limits.sessions)
        session = self.directory.register(message.session, link.peer.device, link, self._now())
        running = session.running
        known = set(message.known)
        for doubtful in [each for each in session.doubtful.values() if each.id not in known]:
            self._conclude(session, doubtful, "restarted", error=Interrupted())
        if running is not None and running.status is not Status.QUEUED and running.id not in known:
            self._conclude(session, running, "restarted", error=Interrupted())
        self.audit.note(who=link.peer.name, what="register", target=session.info.id)

        self._arrivals.add(self._row(session), partial(self._admit, link, message.request, session))

    def _admit(self, link: Link, request: int, session: Session, error: BridgeError | None) -> None:
        """Its registration is committed, or cannot be."""
        if error is not None:
            link.send(Failed(request=request, failure=error.failure()))
        elif session.link is link:
            self.directory.admit(session)
            link.send(Registered(request=request, session=session.info.id))
            for operation in list(session.doubtful.values()):
                self._start(self._recollect, link, session, operation)
            self.pump(session)
            self._tell_news()

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
            self._arrivals.add(self._row(session), _saved)

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
        self._arrivals.seal()
        self._later(lambda: self._store.end_session(identifier, at))
        self._tell_news()

    def _own(self, link: Link, session_id: SessionId) -> Session:
        """The session, if this link speaks for it."""
        session = self.directory.get(session_id)
        if session.link is not link:
            raise Lost("Another connection speaks for this session now.")
        return session

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

    def _finish(self, operation: Operation, event: str, error: BridgeError) -> None:
        """It ends here, not at its agent; a transfer, before its turn."""
        self.transfers.forget(operation)
        self.outcomes.end(operation, event, error)

    # -- what agents say of operations -----------------------------------------------------------

    def _approvals(self, link: Link, message: ApprovalsWaiting) -> None:
        self._own(link, message.session).approvals = message.approvals
        self._changes.tell()

    def _asking(self, link: Link, message: Asking) -> None:
        session = self._own(link, message.session)
        if self.outcomes.asking(message):
            session.call_attention()

    def _call_result(self, link: Link, message: CallResult) -> None:
        self._own(link, message.session)
        self.outcomes.result(message)

    def _finished(self, link: Link, message: Finished) -> None:
        session = self._own(link, message.session)
        operation = self.outcomes.finished(link, session, message)
        if operation is None:
            return
        session.doubtful.pop(operation.id, None)
        if session.running is operation:
            session.running = None
        self.pump(session)

    # -- input and model requests ----------------------------------------------------------------

    def _input(self, link: Link, message: InputOffered) -> None:
        session = self._own(link, message.session)
        if message.input.id in self.outcomes.settled:
            link.send(Settled(session=session.info.id, inputs=(message.input.id,)))
        elif session.executor is None:
            _one_more(session.unclaimed, message.input.id, self.limits.unclaimed_inputs)
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
        _one_more(session.requests, message.request.id, self.limits.model_requests)
        session.requests[message.request.id] = message.request
        for operation in session.queue.clear():
            self.refuse(operation)
        session.call_attention()

    def _request_ended(self, link: Link, message: RequestEnded) -> None:
        session = self._own(link, message.session)
        session.requests.pop(message.request, None)
        self.pump(session)


def _one_more(known: Collection[str], name: str, limit: int) -> None:
    """:raises Overloaded: `name` is not among them, and they are as many as they may be."""
    if name not in known and len(known) >= limit:
        raise Overloaded("This broker knows as many of these as it may.")


def _saved(error: BridgeError | None) -> None:
    """What an agent says of a session anew is told already, whether it is written or not."""
    if error is not None:
        log.error("the registry does not have what changed of a session: %s", error)
