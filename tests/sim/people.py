"""Conversations: what clients ask, what the gate saw of the answer, and what a client does then."""

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import anyio
from chappie_broker.broker import Broker

from chappie_bridge.wire.batch import OPEN
from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.ids import OperationId, SessionId
from chappie_bridge.wire.requests import (
    Chat,
    FetchHistory,
    HistoryView,
    ListSessions,
    ListTools,
    OpenSession,
    OperationView,
    SessionOpened,
    Submit,
)
from chappie_bridge.wire.values import Caller, HistoryRange, NewCall

from .oracle import DAY, Intent, Violation

if TYPE_CHECKING:
    from .world import World

Fate = Literal["received", "dropped", "unsent", "untold", "late"]
"""Of an answer: it arrives; the tunnel drops it after our gate; the gate sees a disconnect; the gate never
tells; it arrives and the gate tells later."""

GRACE = 1.5
"""Seconds beyond its deadline that an answer may take: the registry's and the network's slowness."""


@dataclass(eq=False)
class Ask:
    """One request of a client."""

    number: int
    kind: str
    message: Any
    fate: Fate
    life: int
    issued: float
    patience: float
    intent: Intent | None = None
    retries: int = 0
    """How often the client will ask again when no answer comes."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    over: bool = False
    beside: bool = False
    """An `init` was under way when it was asked."""
    settles: bool = False
    """What was sent before it arrived counts as received."""
    same: bool = False
    """It can be told to be one that came before."""
    told: bool = False
    """The broker answered, whoever got it: it knows the request."""


class Conversation:
    def __init__(self, world: "World", name: str, principal: str) -> None:
        self._world = world
        self.name = name
        self.caller = Caller(principal=principal, source="openai", value=name)
        self.asks: dict[int, Ask] = {}
        """Not answered yet."""
        self.known: list[OperationId] = []
        """Operations that it was told about, the newest last."""
        self.failed: Ask | None = None
        """To be asked again."""
        self._intents = 0
        self._newest: str | None = None
        self._newest_init = 0

    # -- asking ----------------------------------------------------------------------------------

    def call(self, random: Random, *, fate: Fate, session: str | None = None, plain: bool = False) -> Ask:
        """A batch of one to three calls."""
        self._intents += 1
        intent = Intent(f"{self.name}.{self._intents}", self.name, 1, target=session)
        manner = random.random()
        if not plain:
            intent.calls = 1 if random.random() < 0.7 else random.randint(2, 3)
            if manner < 0.35:
                intent.key = f"key {intent.name}"
            elif manner < 0.65:
                intent.tunnel = f"tunnel {intent.name}"
        calls = []
        for number in range(intent.calls):
            name = "noop" if plain else random.choices(_TOOLS, _WEIGHTS)[0]
            arguments: dict[str, Any] = {"tag": f"{intent.name}.{number}"}
            if name == "slow":
                arguments["seconds"] = random.choice((0.1, 0.5, 2.0, 8.0))
            if random.random() < 0.05:
                arguments["size"] = 3_000
            calls.append(NewCall(name=name, arguments=arguments))
        self._world.oracle.intents[intent.name] = intent
        message = Submit(
            caller=self.caller,
            calls=tuple(calls),
            session=None if session is None else SessionId(session),
            key=intent.key,
            tunnel_request=intent.tunnel,
            wait=5.0 if plain else random.choice((0.2, 1.0, 5.0, 20.0)),
        )
        return self._issue("call", message, fate, message.wait, intent=intent, retries=random.randint(0, 2))

    def init(self, fate: Fate, session: str | None = None) -> Ask:
        possible = self._world.oracle.targets.setdefault(self.name, set())
        if session is not None and possible:
            possible.add(session)
            for ask in self.asks.values():  # one that has not chosen yet may find this
                if ask.intent is not None and ask.intent.defaults:
                    ask.intent.defaults.add(session)
        named = None if session is None else SessionId(session)
        return self._issue("init", OpenSession(caller=self.caller, session=named, wait=6.0), fate, 6.0)

    def chat(self, fate: Fate, session: str | None = None) -> Ask:
        named = None if session is None else SessionId(session)
        return self._issue("chat", Chat(caller=self.caller, session=named, text="so", wait=5.0), fate, 5.0)

    def join(
        self,
        operation: OperationId,
        fate: Fate,
        *,
        wait: float = 2.0,
        cancel: bool = False,
        session: str | None = None,
    ) -> Ask:
        named = None if session is None else SessionId(session)
        message = Submit(caller=self.caller, operation=operation, cancel=cancel, wait=wait, session=named)
        return self._issue("join", message, fate, wait)

    def history(self, random: Random, session: str) -> Ask:
        wait = random.choice((0.0, 0.0, 3.0))
        span = HistoryRange(limit=random.randint(1, 20), wait=wait, after=self._newest if wait else None)
        message = FetchHistory(caller=self.caller, session=SessionId(session), range=span)
        return self._issue("history", message, "received", 8.0 + wait)

    def look(self, random: Random, session: str) -> Ask:
        if random.random() < 0.5:
            return self._issue("sessions", ListSessions(caller=self.caller), "received", 0.0)
        message = ListTools(caller=self.caller, session=SessionId(session), wait=4.0)
        return self._issue("tools", message, "received", 4.0)

    def again(self) -> Ask | None:
        """Ask again what got no answer; None when there is nothing."""
        failed, self.failed = self.failed, None
        if failed is None:
            return None
        return self._issue(
            failed.kind,
            failed.message,
            "received",
            failed.patience,
            intent=failed.intent,
            retries=failed.retries - 1,
            before=failed,
        )

    def _issue(
        self,
        kind: str,
        message: Any,
        fate: Fate,
        patience: float,
        *,
        intent: Intent | None = None,
        retries: int = 0,
        before: Ask | None = None,
    ) -> Ask:
        world, oracle = self._world, self._world.oracle
        ask = Ask(
            oracle.event(), kind, message, fate, world.broker.life, world.loop.now, patience, intent, retries
        )
        ask.beside = kind != "init" and any(each.kind == "init" for each in self.asks.values())
        if kind == "init":
            self._newest_init = ask.number
        ask.told = before is not None and before.told
        if intent is not None:
            intent.submissions += 1
            known = oracle.targets.get(self.name)
            if not known:
                intent.defaults.clear()
            elif intent.submissions == 1 or intent.defaults:
                intent.defaults |= known
            intent.began = intent.began or ask.number
            intent.asked_at = intent.asked_at or world.wall() + world.jumped
        world.note(
            self.name, kind, ask.number, fate, "again" if before else "", intent.name if intent else ""
        )
        broker = world.broker
        if broker.broker is None or broker.process is None:
            ask.retries += before is not None  # it costs nothing to try where nobody listens
            self.unanswered(ask, "nobody listens")
            return ask
        if kind in ("call", "join", "init", "chat"):
            same_life = before is not None and before.life == ask.life
            same = (
                before is not None
                and before.told
                and world.jumped < DAY
                and intent is not None
                and (intent.key is not None or (intent.tunnel is not None and same_life and world.remembers))
            )
            ask.same = same
            ask.settles = True
        self.asks[ask.number] = ask
        world.spawn(broker.process, self._serve(ask, broker.broker))
        return ask

    # -- being answered (in the broker's process) --------------------------------------------------

    async def _serve(self, ask: Ask, broker: Broker) -> None:
        method = getattr(broker, "call" if ask.kind == "join" else ask.kind)
        view: Any = None
        if ask.settles:  # now, for a broker that stood still takes late what was asked long ago
            self._world.oracle.asked(self.name, again=ask.same)
        try:
            with ask.scope:
                view = await method(ask.message)
        except BridgeError as error:
            self._refused(ask, error)
            return
        except Exception as error:
            raise Violation(f"{ask.kind} {ask.number} failed inside: {error!r}") from error
        if view is None:
            self.unanswered(ask, "the client hung up")
            return
        ask.told = True
        receipt = view.companions.receipt if hasattr(view, "companions") else None
        if receipt is None:
            self.answered(ask, view)
        elif ask.fate == "late":
            self.answered(ask, view)
            await anyio.sleep(0.7)
            broker.told(receipt, sent=True)
        else:
            if ask.fate != "untold":
                broker.told(receipt, sent=ask.fate in ("received", "dropped"))
            if ask.fate == "received":
                self.answered(ask, view)
            else:
                if ask.fate == "dropped":
                    self._world.oracle.lost(self.name, ask.life, view)
                self.unanswered(ask, ask.fate)

    def _refused(self, ask: Ask, error: BridgeError) -> None:
        self._world.note(self.name, "is refused", ask.number, error.code)
        self._close(ask)

    def _close(self, ask: Ask) -> None:
        ask.over = True
        self.asks.pop(ask.number, None)
        now = self._world.oracle.event()
        if ask.intent is not None and ask.intent.submissions == 1:
            ask.intent.ended = now

    def unanswered(self, ask: Ask, why: str) -> None:
        if ask.over:
            return
        self._world.note(self.name, "gets no answer", ask.number, why)
        self._close(ask)
        if ask.intent is not None:
            ask.intent.ended = 0  # the client does not know whether it was taken
        if ask.retries > 0:
            self.failed = ask

    def answered(self, ask: Ask, view: Any) -> None:
        world = self._world
        self._close(ask)
        if isinstance(view, OperationView):
            world.note(self.name, "gets", ask.number, str(view.operation)[:9], view.status, view.executed)
            keyed = ask.intent is not None and ask.intent.key is not None
            strange = ask.message.session not in (None, view.target.session)
            if strange and not keyed and ask.kind != "join":
                raise Violation(f"{ask.number} named {ask.message.session}, got {view.target.session}")
            if ask.kind in ("call", "chat") and ask.message.session is None and not view.joined:
                self._default(ask, str(view.target.session))
            if view.status in OPEN:
                self.known.append(view.operation)
                del self.known[:-8]
        elif isinstance(view, SessionOpened):
            world.note(self.name, "gets", ask.number, view.session.id, view.selection)
            self._opened(ask, view)
        elif isinstance(view, HistoryView) and view.page.entries:
            self._newest = view.page.entries[-1].id
        world.oracle.received(self.name, ask.life, view, joined=ask.kind == "join")
        companions = getattr(view, "companions", None)
        if companions is not None and (companions.items or companions.more):
            names = [getattr(each, "operation", None) or each.input.id for each in companions.items]
            world.note(self.name, "also gets", [str(name)[:9] for name in names], companions.more)

    def _opened(self, ask: Ask, view: SessionOpened) -> None:
        session = str(view.session.id)
        if ask.message.session not in (None, session):
            raise Violation(f"init of {ask.message.session} opened {session}")
        self._default(ask, session)

    def _default(self, ask: Ask, session: str) -> None:
        """It saw what its default is; nothing that was asked since, or is under way, may change it."""
        others = any(each.kind == "init" for each in self.asks.values())
        if not others and ask.number >= self._newest_init and not ask.beside:
            self._world.oracle.targets[self.name] = {session}


_TOOLS = ("noop", "effect", "slow", "fail", "guarded")
_WEIGHTS = (4, 5, 4, 1, 2)
