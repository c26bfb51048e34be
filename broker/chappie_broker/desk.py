"""Serves callers that are at the other end of a link from a Switchboard and an Office in this process."""

import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.abc

from chappie_bridge.wire.errors import (
    BridgeError,
    Forbidden,
    Internal,
    Overloaded,
    TooLarge,
    Unsupported,
)
from chappie_bridge.wire.ids import DeviceId
from chappie_bridge.wire.messages import Failed, Message, Request, Withdraw
from chappie_bridge.wire.overview import (
    AnswerApproval,
    AnswerQuestion,
    AwaitChange,
    CancelOperation,
    ListApprovals,
    ListOperations,
    ListQuestions,
)
from chappie_bridge.wire.owner import (
    ListApps,
    ListDevices,
    ListSubjects,
    MakeCode,
    OwnerRequest,
    PairDevice,
    ReadAudit,
    RedeemCode,
    RevokeApp,
    RevokeDevice,
    RuleSubject,
    TakeMeasures,
)
from chappie_bridge.wire.ports import WITHDRAWAL, Link, Office, Switchboard, Withdrawal
from chappie_bridge.wire.requests import (
    Ask,
    AssertAsked,
    BrokerStatus,
    CallerRequest,
    Chat,
    FetchBytes,
    FetchHistory,
    ListSessions,
    ListTools,
    OpenSession,
    OperationView,
    Push,
    QuestionView,
    Receipt,
    Respond,
    SessionOpened,
    Submit,
    Transfer,
    TypeInput,
    Unbind,
    ViewPart,
)
from chappie_bridge.wire.values import Companion, Companions, DeferredItem

_log = logging.getLogger(__name__)

MAX_REQUESTS = 1000
"""Requests of one link that are served at once."""

OWNERS = (TypeInput, Unbind, BrokerStatus, OwnerRequest)
"""What only the owner of the broker may ask, who is on its machine."""


class CallerDesk:
    """Implements `ports.Attendant` for links of role `caller`; one task a request.

    A process of this machine speaks for itself and may name any source.  Another device speaks for
    its sessions only, and its principal is the device, whatever it says.
    """

    def __init__(self, switchboard: Switchboard, office: Office, *, local_device: DeviceId) -> None:
        self._switchboard = switchboard
        self._local_device = local_device
        self._tasks: anyio.abc.TaskGroup | None = None
        self._running: dict[Link, dict[int, tuple[anyio.CancelScope, Withdrawal]]] = {}
        self._serve: dict[type[CallerRequest], Callable[[Any], Awaitable[Request]]] = {
            ListSessions: switchboard.sessions,
            OpenSession: switchboard.init,
            ListTools: switchboard.tools,
            Submit: switchboard.call,
            Chat: switchboard.chat,
            Transfer: switchboard.transfer,
            Push: switchboard.push,
            Ask: switchboard.ask,
            AssertAsked: switchboard.ask_assert,
            Respond: switchboard.answer,
            FetchHistory: switchboard.history,
            FetchBytes: switchboard.fetch,
            TypeInput: switchboard.say,
            Unbind: switchboard.unbind,
            BrokerStatus: switchboard.status,
            MakeCode: office.make_code,
            RedeemCode: office.redeem_code,
            ListOperations: office.operations,
            CancelOperation: office.cancel,
            ListApprovals: office.approvals,
            AnswerApproval: office.answer_approval,
            ListQuestions: office.questions,
            AnswerQuestion: office.answer_question,
            AwaitChange: office.change,
            ListApps: office.list_apps,
            RevokeApp: office.revoke_app,
            ListSubjects: office.list_subjects,
            RuleSubject: office.rule_subject,
            ReadAudit: office.audit,
            TakeMeasures: office.measures,
            PairDevice: office.pair,
            ListDevices: office.devices,
            RevokeDevice: office.revoke,
        }

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Serve while the context lasts; leaving it cancels what is served."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                yield
            finally:
                self._tasks = None
                tasks.cancel_scope.cancel()

    # --- Attendant ---

    def link_up(self, link: Link) -> None:
        self._running[link] = {}

    def link_back(self, link: Link) -> None:
        pass

    def link_down(self, link: Link) -> None:
        pass  # its requests go on; the replies wait for the next socket

    def link_gone(self, link: Link) -> None:
        for scope, _ in self._running.pop(link, {}).values():
            scope.cancel()

    def received(self, link: Link, message: Message) -> None:
        if isinstance(message, Withdraw):
            found = self._running.get(link, {}).get(message.request)
            if found is not None:
                scope, withdrawal = found
                withdrawal.stop = message.stop
                scope.cancel()
        elif isinstance(message, Receipt):
            self._switchboard.told(message.receipt, sent=message.sent)
        elif isinstance(message, CallerRequest):
            try:
                self._accept(link, message)
            except BridgeError as error:
                _send(link, Failed(request=message.request, failure=error.failure()))

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> None:
        pass  # callers send no bytes

    # --- the rest ---

    def _accept(self, link: Link, request: CallerRequest) -> None:
        serve = self._serve.get(type(request))
        if serve is None:
            raise Unsupported
        allowed = self._allowed(link, request)
        running = self._running.get(link)
        if self._tasks is None or running is None:
            raise Overloaded("The broker is not ready, or about to stop.")
        if len(running) >= MAX_REQUESTS or request.request in running:
            raise Overloaded("Too many requests of this caller wait for their replies.")
        scope, withdrawal = running[request.request] = anyio.CancelScope(), Withdrawal()
        self._tasks.start_soon(self._answer, link, allowed, serve, scope, withdrawal)

    def _allowed(self, link: Link, request: CallerRequest) -> CallerRequest:
        device = link.peer.device
        if device == self._local_device:
            return request
        if isinstance(request, OWNERS):
            raise Forbidden("Only the broker's own machine may ask this.")
        if request.caller.source != "session":
            raise Forbidden("Another device speaks for its sessions only.")
        caller = request.caller.model_copy(update={"principal": f"device:{device}"})
        return request.model_copy(update={"caller": caller})

    async def _answer(
        self,
        link: Link,
        request: CallerRequest,
        serve: Callable[[Any], Awaitable[Request]],
        scope: anyio.CancelScope,
        withdrawal: Withdrawal,
    ) -> None:
        reply: Request | None = None
        WITHDRAWAL.set(withdrawal)
        try:
            with scope:
                reply = await serve(request)
        except BridgeError as error:
            reply = Failed(failure=error.failure())
        except Exception:
            reply = Failed(failure=_fault(request).failure())
        finally:
            self._running.get(link, {}).pop(request.request, None)
        if reply is None:
            return  # withdrawn
        whole = not scope.cancel_called and _send(link, reply.model_copy(update={"request": request.request}))
        if not whole and isinstance(reply, (OperationView, SessionOpened, QuestionView)):
            receipt = reply.companions.receipt
            if receipt is not None:
                self._switchboard.told(receipt, sent=False)


def _send(link: Link, reply: Request) -> bool:
    """False when not all of the reply could be sent; what accompanied it must be offered again."""
    try:
        try:
            link.send(reply)
        except TooLarge:
            return _send_in_parts(link, reply)
    except TooLarge as error:
        executed = reply.executed if isinstance(reply, OperationView) else error.executed
        failure = TooLarge("The reply does not fit the link. Ask for less.", executed=executed).failure()
        with suppress(Overloaded):
            link.send(Failed(request=reply.request, failure=failure))
        return False
    except Overloaded:  # it takes nothing, not even that news; its request runs out of patience
        _log.warning("%s takes no replies", link.peer.instance)
        return False
    return True


def _send_in_parts(link: Link, reply: Request) -> bool:
    """:raises TooLarge: when a part is too large, too.  :raises Overloaded:"""
    if not isinstance(reply, (OperationView, SessionOpened, QuestionView)):
        raise TooLarge
    bare = reply
    if isinstance(bare, OperationView):
        for result in bare.results:
            link.send(ViewPart(request=reply.request, deferred=None, result=result))
        bare = bare.model_copy(update={"results": ()})
    items: list[Companion] = []
    for place, item in enumerate(reply.companions.items):
        if isinstance(item, DeferredItem):
            for result in item.results:
                link.send(ViewPart(request=reply.request, deferred=place, result=result))
            items.append(item.model_copy(update={"results": ()}))
        else:
            items.append(item)
    companions = reply.companions.model_copy(update={"items": tuple(items)})
    try:
        link.send(bare.model_copy(update={"companions": companions}))
    except TooLarge:  # inputs with images, say: the operation's own outcome comes first
        left = Companions(more=companions.more + len(items))
        link.send(bare.model_copy(update={"companions": left}))
        return False
    return True


def _fault(request: CallerRequest) -> Internal:
    number = secrets.token_hex(4)
    _log.exception("%s failed, %s", type(request).__name__, number)
    return Internal(f"The broker failed; its log says more under {number}.")
