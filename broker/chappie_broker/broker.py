"""The Switchboard: takes requests, waits for outcomes, says what accompanies them."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import time

import anyio
from anyio.abc import TaskGroup

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import BadArguments, BridgeError, Executed, RequestClosed, UnknownOperation
from chappie_bridge.wire.ids import ConversationId, Mint, OperationId, ReceiptId
from chappie_bridge.wire.messages import Describe, Description, Done, PostChat, RunBatch, Typed
from chappie_bridge.wire.owner import Measure
from chappie_bridge.wire.ports import stops
from chappie_bridge.wire.requests import (
    Ask,
    AssertAsked,
    BrokerStatus,
    Bytes,
    Chat,
    FetchBytes,
    FetchHistory,
    HistoryView,
    ListSessions,
    ListTools,
    OpenSession,
    OperationView,
    Push,
    Pushed,
    QuestionView,
    Respond,
    SessionList,
    SessionOpened,
    StatusReport,
    Submit,
    ToolList,
    Transfer,
    TypeInput,
    Unbind,
    Unbound,
)
from chappie_bridge.wire.values import Caller, Companions, Origin, QueuePlace, ToolCall

from . import measures
from .accompany import Company
from .apps import Apps
from .audit import Audit
from .capability import Capabilities
from .changes import Changes
from .clock import iso
from .deliveries import deferred, result_key
from .directory import Session
from .dispatch import Dispatch
from .download import Bounds
from .earlier import Earlier
from .identity import Identity
from .janitor import Janitor
from .limits import LONGEST_WAIT, Limits
from .operations import Kind, Operation, chat_fingerprint, fingerprint, stored_row, transfer_fingerprint
from .parking import Parking
from .peers import Peers, named
from .questions import Questions
from .reading import Reading
from .store.port import Store, StoreError
from .store.rows import Conversation, DeliveryId
from .storing import storing
from .subjects import Subjects
from .targets import Targets, link_of
from .transfers import check
from .writer import Writer

log = logging.getLogger("chappie.broker")


class Broker:
    """Implements wire.ports.Switchboard.  Made by `Broker.open`, which runs its tasks."""

    def __init__(
        self,
        store: Store,
        *,
        key: bytes,
        version: str,
        limits: Limits,
        now: Callable[[], float],
        mint: Mint,
        tasks: TaskGroup,
        bounds: Bounds,
    ) -> None:
        self._store, self._version, self._limits, self._now, self._mint = store, version, limits, now, mint
        self._identity = Identity(key)
        self._writer = Writer()
        self.changes = Changes()
        self._audit = Audit(store, now=now, limit=limits.audit_queue, told=self.changes.tell)
        self.dispatch = Dispatch(
            store,
            self._audit,
            self.changes,
            limits,
            now=now,
            later=self._writer.add,
            start=tasks.start_soon,
            mint=mint,
            bounds=bounds,
        )
        self._directory = self.dispatch.directory
        self._ledger = self.dispatch.ledger
        self._mailroom = self.dispatch.mailroom
        self._peers = Peers(self._directory, self._identity, self.dispatch.rpc, self._audit)
        self._targets = Targets(self.dispatch, store, now=now)
        self._reading = Reading(
            self.dispatch.rpc, self.dispatch.streams, Capabilities(key, now), self._targets.renew, limits
        )
        self._parking = Parking(limits.waiting_requests)
        self._company = Company(self.dispatch, self._reading, store, self._writer.add)
        self._earlier = Earlier(self.dispatch, self._company, store, now=now)
        self.questions = Questions(
            self.dispatch,
            self._targets,
            self._company,
            self._parking,
            store,
            self._audit,
            now=now,
            mint=mint,
        )
        self._janitor = Janitor(self.dispatch, self._audit, store, now=now, told=self.told)
        self.subjects = Subjects(store, self._writer.add, key=key, now=now)
        self.apps = Apps(store, self._audit, self._writer.add, now=now, bounds=bounds)
        self._started = now()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        store: Store,
        *,
        key: bytes,
        version: str,
        limits: Limits | None = None,
        now: Callable[[], float] = time,
        mint: Mint | None = None,
        bounds: Bounds | None = None,
    ) -> AsyncGenerator["Broker"]:
        """A running broker; `bounds` are of what it downloads.  At its end everything noted is written."""
        async with anyio.create_task_group() as tasks:
            broker = cls(
                store,
                key=key,
                version=version,
                limits=limits or Limits(),
                now=now,
                mint=mint or Mint(),
                tasks=tasks,
                bounds=bounds or Bounds(),
            )
            await broker._janitor.restore(broker.subjects.load, broker.apps.load)
            tasks.start_soon(broker._writer.run)
            tasks.start_soon(broker._janitor.run)
            try:
                yield broker
            finally:
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await broker._writer.drain()
                    try:
                        await broker._audit.flush()
                    except StoreError as error:
                        log.error("the last lines of the audit log are not written: %s", error)

    # -- what callers ask ------------------------------------------------------------------------

    async def sessions(self, request: ListSessions) -> SessionList:
        conversation = self._hear(request.caller)
        binding = self._directory.bound(conversation)
        found, more = self._directory.find(request)
        pending = None
        if binding is not None:
            origin = self._peers.origin(request.caller)
            pending = self._company.pending(self._directory.get(binding), origin)
        return SessionList(
            binding=binding,
            sessions=tuple(self._directory.row(session) for session in found),
            has_more=more,
            pending=pending,
        )

    async def init(self, request: OpenSession) -> SessionOpened:
        deadline = anyio.current_time() + min(request.wait, LONGEST_WAIT)
        conversation, origin = self._who(request.caller)
        left = self._directory.bound(conversation)
        sent = self._mailroom.sent(origin.id)  # later answers may still be on their way
        with self._parking():
            async with self._targets.chosen(conversation, request, deadline, change=True) as choice:
                session = choice.session
                about = await self._describe(session, None, deadline)
        again = self._company.knows(origin, request.tunnel_request)
        initialization = self._targets.join(conversation, session, again=again)
        self._targets.tell_join(session, left, origin, observer=initialization.observer)
        if initialization.observer:
            companions = Companions()
        else:
            self._company.arrives(origin, request.tunnel_request, sent)
            companions = self._company.of(origin, session)
        return SessionOpened(
            request=request.request,
            selection=choice.selection,
            bound=conversation is not None,
            initialization=initialization,
            session=self._directory.row(session),
            tools=about.tools,
            skills=about.skills,
            global_agents=about.global_agents,
            companions=companions,
        )

    async def tools(self, request: ListTools) -> ToolList:
        deadline = anyio.current_time() + min(request.wait, LONGEST_WAIT)
        conversation, origin = self._who(request.caller)
        with self._parking():
            session = self._targets.known(conversation, request.session)
            await self._targets.online(session, deadline)
            await self._peers.admit(origin, session, "read its tools", deadline)
            about = await self._describe(session, request.names, deadline)
        return ToolList(
            session=self._directory.row(session),
            tools=about.tools,
            skills=about.skills,
            global_agents=about.global_agents,
            unknown=about.unknown,
            pending=self._company.pending(session, origin),
        )

    async def call(self, request: Submit) -> OperationView:
        deadline = anyio.current_time() + min(request.wait, LONGEST_WAIT)
        if (request.calls is None) == (request.operation is None):
            raise BadArguments("Pass exactly one of `calls`, `base64` and `operation`.")
        conversation, origin = self._who(request.caller)
        if request.operation is not None:
            self._company.arrives(origin, request.tunnel_request)
            return await self._join(request, request.operation, origin, deadline)
        print_ = fingerprint(request)
        first = await self._earlier.of(request, print_, origin, deadline)
        if first is not None:
            return await self._answer(first, origin, deadline, joined=True)
        self._company.arrives(origin, request.tunnel_request)
        target = OpenSession(session=request.session, caller=request.caller)
        with self._parking():
            async with self._targets.chosen(conversation, target, deadline, change=False) as choice:
                session = choice.session
                await self._peers.admit(origin, session, named(request), deadline, queues=True)
                operation = self._operation("batch", session, origin, print_, request.tunnel_request)
                operation.key = request.key
                operation.message = RunBatch(
                    operation=operation.id,
                    session=session.info.id,
                    origin=origin,
                    calls=tuple(
                        ToolCall(id=self._mint.call(), name=call.name, arguments=call.arguments)
                        for call in request.calls or ()
                    ),
                )
                if request.key is None:
                    begun = await self._begin(session, operation)
                else:
                    begun = await self._begin_keyed(session, operation, request.key, deadline)
        return await self._answer(begun, origin, deadline, joined=begun is not operation)

    async def chat(self, request: Chat) -> OperationView:
        deadline = anyio.current_time() + min(request.wait, LONGEST_WAIT)
        conversation, origin = self._who(request.caller)
        print_ = chat_fingerprint(request)
        first = self._earlier.same(print_, origin, request.tunnel_request)
        if first is not None:
            return await self._answer(first, origin, deadline, joined=True)
        self._company.arrives(origin, request.tunnel_request)
        target = OpenSession(session=request.session, caller=request.caller)
        with self._parking():
            async with self._targets.chosen(conversation, target, deadline, change=False) as choice:
                session = choice.session
                queues = request.reply_to is None
                await self._peers.admit(origin, session, "send a message", deadline, queues=queues)
                if request.reply_to is not None and request.reply_to not in session.requests:
                    raise RequestClosed
                operation = self._operation("chat", session, origin, print_, request.tunnel_request)
                operation.message = PostChat(
                    operation=operation.id,
                    session=session.info.id,
                    origin=origin,
                    text=request.text,
                    reply_to=request.reply_to,
                    final=request.final,
                )
                begun = await self._begin(session, operation)
        return await self._answer(begun, origin, deadline, joined=begun is not operation)

    async def transfer(self, request: Transfer) -> OperationView:
        deadline = anyio.current_time() + min(request.wait, LONGEST_WAIT)
        check(request)
        conversation, origin = self._who(request.caller)
        print_ = transfer_fingerprint(request)
        first = self._earlier.same(print_, origin, request.tunnel_request)
        if first is not None:
            return await self._answer(first, origin, deadline, joined=True)
        self._company.arrives(origin, request.tunnel_request)
        target = OpenSession(session=request.session, caller=request.caller)
        with self._parking():
            for remote in (request.source, request.sink):
                if remote is not None:
                    there = await self._targets.online(self._directory.get(remote.session), deadline)
                    await self._peers.admit(origin, there, "move files", deadline)
            async with self._targets.chosen(conversation, target, deadline, change=False) as choice:
                session = choice.session
                own = origin.chain[-1:] == (session.info.id,)
                await self._peers.admit(origin, session, "move files", deadline, queues=not own)
                operation = self._operation("transfer", session, origin, print_, request.tunnel_request)
                self.dispatch.transfers.prepare(operation, request)
                begun = await self._begin(session, operation)
        return await self._answer(begun, origin, deadline, joined=begun is not operation)

    async def push(self, request: Push) -> Pushed:
        return await self.dispatch.transfers.push(request, request.caller.principal)

    async def ask(self, request: Ask) -> QuestionView:
        return await self.questions.ask(request, *self._who(request.caller))

    async def ask_assert(self, request: AssertAsked) -> QuestionView:
        return await self.questions.ask_assert(request, *self._who(request.caller))

    async def answer(self, request: Respond) -> QuestionView:
        return await self.questions.answer(request, *self._who(request.caller))

    async def history(self, request: FetchHistory) -> HistoryView:
        conversation, origin = self._who(request.caller)
        session = self._targets.known(conversation, request.session)
        with self._parking():
            deadline = anyio.current_time() + self._limits.offline_grace
            await self._targets.online(session, deadline)
            await self._peers.admit(origin, session, "read its transcript", deadline + LONGEST_WAIT)
            page = await self._reading.history(session, link_of(session), request)
        return HistoryView(
            target=session.head,
            pending=self._company.pending(session, origin),
            page=page,
            capability=self._reading.capability_of(page.entries, origin),
        )

    async def fetch(self, request: FetchBytes) -> Bytes:
        _, origin = self._who(request.caller)
        session, seconds = self._directory.get(request.session), self._limits.ask_seconds
        await self._peers.admit(origin, session, "read bytes", anyio.current_time() + seconds)
        return await self._reading.fetch(request, link_of(session))

    async def say(self, request: TypeInput) -> Done:
        session = self._directory.get(request.session)
        message = Typed(session=session.info.id, content=request.content)
        return await self.dispatch.rpc.ask(link_of(session), message, Done, self._limits.ask_seconds)

    async def unbind(self, request: Unbind) -> Unbound:
        session = self._directory.get(request.session)
        bound = list(session.bound)
        for conversation in bound:
            with storing(Executed.NO):
                await self._store.delete_binding(conversation)
            self._directory.unbind(conversation, session.info.id)
        return Unbound(count=len(bound))

    async def status(self, request: BrokerStatus) -> StatusReport:
        return StatusReport(
            version=self._version,
            started=iso(self._started),
            sessions_online=sum(1 for _ in self._directory.online),
            sessions_known=len(self._directory.sessions),
            bindings=self._directory.binding_count,
            operations_open=self._ledger.open_count,
            facts={"integrity": list(await self._store.integrity_check())} if request.check else {},
        )

    def measures(self) -> tuple[Measure, ...]:
        """How much of everything there is now."""
        return measures.of(self.dispatch, self._audit, parked=self._parking.waiting, late=self._janitor.late)

    def told(self, receipt: ReceiptId, *, sent: bool) -> None:
        sending = self._mailroom.told(receipt, sent=sent)
        if sending is None:
            return
        if sent and sending.operation is not None:
            sending.operation.shown = True
            sending.operation.delivered |= sending.final
            if sending.final and sending.operation.origin.kind == "shell":
                self.dispatch.outcomes.arrived(sending.operation)
        stored = [DeliveryId(parcel.key) for parcel in sending.parcels if parcel.stored]
        if stored and sent:
            self._writer.add(partial(self._store.mark_sent, stored, self._now()))

    # -- targets and identity --------------------------------------------------------------------

    def _hear(self, caller: Caller) -> ConversationId | None:
        conversation = self._identity.of(self.subjects.admit(caller))
        if conversation is not None:
            now = self._now()
            if now - self._directory.heard(conversation) > 3600 and self._directory.bound(conversation):
                row = Conversation(conversation, caller.principal, first_seen=now, last_seen=now)
                self._writer.add(partial(self._store.touch_conversations, [row]))
            self._directory.hear(conversation, now)
        return conversation

    def _who(self, caller: Caller) -> tuple[ConversationId | None, Origin]:
        return self._hear(caller), self._peers.origin(caller)

    async def _describe(
        self, session: Session, names: tuple[str, ...] | None, deadline: float
    ) -> Description:
        seconds = min(max(deadline - anyio.current_time(), 0.1), self._limits.ask_seconds)
        message = Describe(session=session.info.id, names=names)
        about = await self.dispatch.rpc.ask(link_of(session), message, Description, seconds)
        if names is None:
            self._peers.described(session, about)
        return about

    # -- operations ------------------------------------------------------------------------------

    def _operation(
        self, kind: Kind, session: Session, origin: Origin, print_: str, tunnel_request: str | None
    ) -> Operation:
        return Operation(
            id=self._mint.operation(),
            kind=kind,
            origin=origin,
            target=session.head,
            seq=0,
            accepted=self._now(),
            fingerprint=print_,
            tunnel_request=tunnel_request,
        )

    async def _begin(self, session: Session, operation: Operation) -> Operation:
        """Accept it: from here on it has an outcome.  Gives the equal operation instead that came while
        this one's target was chosen, if one did."""
        if operation.key is None:
            first = self._earlier.same(operation.fingerprint, operation.origin, operation.tunnel_request)
            if first is not None:
                self.dispatch.transfers.forget(operation)
                return first
        if operation.kind != "transfer":
            self.dispatch.execute(session, operation.origin)
        operation.waiters += 1  # its own answer, which takes over
        operation.seq = session.seq + 1
        try:
            self.dispatch.begin(session, operation)
        except BridgeError:
            self.dispatch.transfers.forget(operation)
            if operation.key is not None:
                await self._earlier.release(operation, operation.key)
            raise
        finally:
            operation.waiters -= 1
        session.seq += 1
        return operation

    async def _begin_keyed(
        self, session: Session, operation: Operation, key: str, deadline: float
    ) -> Operation:
        """The same under a key; gives the operation that took it while we looked, if one did."""
        stands = operation.id
        with anyio.CancelScope(shield=True):  # what is committed also begins
            stands = await self._earlier.accept(session, operation, key)
            if stands == operation.id:
                return await self._begin(session, operation)
        return await self._earlier.named(stands, operation.origin, deadline)

    async def _join(
        self, request: Submit, identifier: OperationId, origin: Origin, deadline: float
    ) -> OperationView:
        operation = await self._earlier.named(identifier, origin, deadline, request.session)
        if operation.origin.principal != origin.principal:
            raise UnknownOperation
        if request.cancel:
            self.dispatch.cancel(operation, f"cancelled by {origin.label}")
        return await self._answer(operation, origin, deadline, joined=not request.cancel)

    async def _answer(
        self, operation: Operation, origin: Origin, deadline: float, *, joined: bool = False
    ) -> OperationView:
        """Wait for the outcome, a person's turn, or the deadline; then say how it stands."""
        needs = operation.needs if joined else ()
        # Who else waits gets the answer, but the outcome's delivery is for who asked.
        owns = origin.id == operation.origin.id
        operation.waiters += owns
        try:
            with self._parking(), anyio.move_on_at(deadline):
                while operation.open and operation.needs in ((), needs):
                    await operation.wait()
            if operation.open and not operation.committed:
                operation.told_open = True
                operation.stored_as_queued = operation.status is Status.QUEUED and not operation.sending
                with storing(Executed.UNKNOWN):
                    await self._store.save_operation(stored_row(operation))
                operation.committed = True
        except BaseException:
            operation.waiters -= owns
            if owns and operation.waiters == 0:
                self._abandon(operation)
            raise
        operation.waiters -= owns
        return self._view(operation, origin, joined=joined)

    def _abandon(self, operation: Operation) -> None:
        """Its last waiter left: queued work is withdrawn, an outcome is posted."""
        if operation.open and stops():
            self.dispatch.cancel(operation, f"cancelled by {operation.origin.label}")
        elif operation.open:
            self.dispatch.withdraw(operation)
        else:
            self.dispatch.outcomes.post(operation)

    def _view(self, operation: Operation, origin: Origin, *, joined: bool) -> OperationView:
        session = self._directory.get(operation.target.session)
        receipt = self._mailroom.open(origin.id, anyio.current_time(), operation)
        if not operation.open and origin.kind != "shell" and origin.id == operation.origin.id:
            self._mailroom.attach(receipt, origin.id, result_key(operation.id), deferred(operation))
        queue = None
        if operation.status is Status.QUEUED:
            running = session.running
            behind = running.id if running is not None and running is not operation else None
            queue = QueuePlace(position=session.queue.position(operation), behind=behind)
        return OperationView(
            operation=operation.id,
            kind=operation.kind,
            status=operation.status,
            executed=operation.executed,
            target=operation.target,
            seq=operation.seq,
            results=operation.ordered_results,
            files=operation.files(),
            error=operation.failure,
            needs=operation.needs,
            queue=queue,
            joined=joined,
            again=joined and operation.delivered,
            entry=operation.entry,
            companions=self._company.on(receipt, origin, session, operation),
        )
