"""Knows what was promised: told of everything that clients, tools and people see, it says what is wrong."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from chappie_bridge.wire.batch import OPEN, Status
from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.errors import Executed
from chappie_bridge.wire.messages import RunBatch
from chappie_bridge.wire.requests import OperationView
from chappie_bridge.wire.values import Companions, DeferredItem, InputItem, ToolResult

DAY = 86_400.0


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(eq=False)
class Intent:
    """Something that a client wants done once; its retries are the same intent."""

    name: str
    conversation: str
    calls: int
    key: str | None = None
    tunnel: str | None = None
    target: str | None = None
    """The session that was named; None: the conversation's default."""
    defaults: set[str] = field(default_factory=set)
    """The sessions that may have been the default when it was asked for; empty: not known."""
    submissions: int = 0
    began: int = 0
    """Number of the client's event in which it was first asked for."""
    ended: int = 0
    """Number of the client's event in which its (only) answer came; 0: none yet."""
    asked_at: float = 0.0
    """By the clocks of the machines, their jumps included."""
    operations: dict[str, int | None] = field(default_factory=dict)
    """Those that ran, with the life of the broker that made each."""


@dataclass(eq=False)
class Response:
    """One answer that left through the gate and did not arrive."""

    conversation: str
    life: int
    operations: tuple[str, ...]
    inputs: tuple[str, ...]


@dataclass
class Outcome:
    status: Status
    executed: Executed
    conversation: str


class Oracle:
    def __init__(self) -> None:
        self.intents: dict[str, Intent] = {}
        self.runs: dict[str, set[str]] = {}
        """Operation -> tags that ran."""
        self.origin: dict[str, str] = {}
        """Operation -> conversation."""
        self.where: dict[str, str] = {}
        """Operation -> session in which it ran."""
        self.outcomes: dict[str, Outcome] = {}
        self.open: dict[str, str] = {}
        """Operations of which a client heard that they are not finished -> conversation."""
        self.never: set[str] = set()
        """Operations of which it was said that nothing of them ran."""
        self.typed: dict[str, str] = {}
        """Inputs that an agent took -> session."""
        self.read: dict[str, list[tuple[int, str]]] = {}
        """Input -> (life of the broker, conversation) that received it."""
        self.excused: set[str] = set()
        """Operations and inputs in an answer that left, was lost behind us, and was not asked for again."""
        self.targets: dict[str, set[str]] = {}
        """Conversation -> sessions that may be its default, as far as its client can know."""
        self.forgetful = False
        """An agent's disk was full: the end of an operation may be known in its memory only."""
        self.stale = False
        """The registry was full: a broker that ends then may find an operation open that had ended."""
        self._lost: list[Response] = []
        self._recalled: list[Response] = []
        """Lost ones that were asked for again in this life of the broker."""
        self._seen: set[tuple[int, str, str]] = set()
        self._begun: set[str] = set()
        self._events = 0
        self._newest: dict[tuple[str, str], int] = {}

    def event(self) -> int:
        self._events += 1
        return self._events

    # -- what tools do ---------------------------------------------------------------------------

    def ran(self, message: RunBatch, tag: str, session: str, life: int | None, now: float) -> None:
        """A tool runs on behalf of an operation; `life`: of the broker that made it, where known."""
        operation = str(message.operation)
        tags = self.runs.setdefault(operation, set())
        if tag in tags:
            raise Violation(f"{tag} runs twice in {operation}")
        if operation in self.never:
            raise Violation(f"{operation} runs after it was said that it never ran")
        intent = self.intents[tag.rpartition(".")[0]]
        if not tags:
            self.origin[operation] = intent.conversation
            self.where[operation] = session
            self._begins(intent, operation, session, life, now)
        tags.add(tag)

    def begins(self, operation: str, tag: str, session: str) -> None:
        """The first tool of an operation is about to run; it may have to wait for the owner."""
        intent = self.intents[tag.rpartition(".")[0]]
        if operation in self._begun or intent.submissions != 1:
            return
        self._begun.add(operation)
        line = intent.conversation, session
        if intent.ended and intent.ended < self._newest.get(line, 0):
            raise Violation(f"{intent.name} was overtaken by a later request of its conversation")
        self._newest[line] = max(self._newest.get(line, 0), intent.began)

    def _begins(self, intent: Intent, operation: str, session: str, life: int | None, now: float) -> None:
        if intent.target is not None and session != intent.target:
            raise Violation(f"{intent.name} was for {intent.target} and runs in {session}")
        known = intent.defaults
        if intent.target is None and known and session not in known:
            raise Violation(f"{intent.name} runs in {session}; its default was one of {sorted(known)}")
        if intent.operations:
            if intent.key is not None and now - intent.asked_at < DAY:
                raise Violation(f"{intent.name} has a key and runs a second time")
            if intent.tunnel is not None and life is not None and life in intent.operations.values():
                raise Violation(f"{intent.name} came twice through the tunnel and runs a second time")
            if len(intent.operations) >= intent.submissions:
                raise Violation(f"{intent.name} runs more often than it was asked for")
        intent.operations[operation] = life

    # -- what clients see ------------------------------------------------------------------------

    def asked(self, conversation: str, *, again: bool) -> None:
        """A request that settles; `again`: one that can be told to be the same as one before, so that
        everything in the lost answers is offered again."""
        for response in [each for each in self._lost if each.conversation == conversation]:
            self._lost.remove(response)
            if again:
                self._recalled.append(response)
            else:
                self.excused.update(response.operations, response.inputs)

    def broker_gone(self) -> None:
        """What was asked for again was so in its memory only."""
        self._lost += self._recalled
        self._recalled.clear()

    def lost(self, conversation: str, life: int, view: Any) -> None:
        """The gate saw this answer leave, and nobody received it."""
        operations, inputs = _carried(view)
        if operations or inputs:
            self._lost.append(Response(conversation, life, operations, inputs))

    def received(self, conversation: str, life: int, view: Any, *, joined: bool = False) -> None:
        if isinstance(view, OperationView):
            self._view(conversation, view, joined=joined)
        companions: Companions | None = getattr(view, "companions", None)
        for item in companions.items if companions is not None else ():
            if isinstance(item, DeferredItem):
                self._again(life, conversation, str(item.operation), again=item.again)
                self._ended(conversation, item.operation, item.status, item.executed, item.results)
            elif isinstance(item, InputItem):
                self._again(life, conversation, str(item.input.id), again=item.again)
                self._input(conversation, life, item)

    def _again(self, life: int, conversation: str, name: str, *, again: bool) -> None:
        mark = life, conversation, name
        if mark in self._seen and not again:
            raise Violation(f"{name} comes a second time to {conversation} and does not say so")
        self._seen.add(mark)

    def _view(self, conversation: str, view: OperationView, *, joined: bool) -> None:
        operation = str(view.operation)
        owner = self.origin.setdefault(operation, conversation)
        if owner != conversation and not joined:
            raise Violation(f"{conversation} got {operation} of {owner}")
        if view.status in OPEN:
            self.open[operation] = owner
        else:
            self._ended(owner, view.operation, view.status, view.executed, view.results)

    def _ended(
        self,
        conversation: str,
        name: str,
        status: Status,
        executed: Executed,
        results: Iterable[ToolResult],
    ) -> None:
        operation = str(name)
        owner = self.origin.setdefault(operation, conversation)
        if owner != conversation:
            raise Violation(f"{conversation} got the outcome of {operation}, which is {owner}'s")
        tags = {tag for result in results for tag in _tags(result)}
        strangers = [tag for tag in tags if self.intents[tag.rpartition(".")[0]].conversation != owner]
        if strangers:
            raise Violation(f"{operation} of {owner} shows results of {strangers}")
        ran = self.runs.get(operation, set())
        if not tags <= ran:
            raise Violation(f"{operation} shows results of {sorted(tags - ran)}, which did not run")
        if status is Status.LOST or executed is Executed.NO:
            self.never.add(operation)
            if ran:
                raise Violation(f"{operation} is said to be {status} ({executed}) and ran {sorted(ran)}")
        if status is Status.DONE and ran:
            intent = self.intents[next(iter(ran)).rpartition(".")[0]]
            if len(tuple(results)) != intent.calls:
                raise Violation(f"{operation} is done with {len(tuple(results))} of {intent.calls} results")
        before = self.outcomes.get(operation)
        if before is not None and before.status is not status and not self._may_change(before, executed):
            raise Violation(f"{operation} was {before.status} and is now {status}")
        self.outcomes[operation] = Outcome(status, executed, owner)
        self.open.pop(operation, None)

    def _may_change(self, before: Outcome, executed: Executed) -> bool:
        """Doubt may end; what never ran may be called lost after a crash; a full disk remembers no end."""
        if before.status is Status.INTERRUPTED or self.forgetful:
            return True
        if self.stale and executed is Executed.UNKNOWN:
            return True
        return before.executed is Executed.NO and executed is Executed.NO

    def _input(self, conversation: str, life: int, item: InputItem) -> None:
        name = str(item.input.id)
        if name not in self.typed:
            raise Violation(f"{conversation} got the input {name}, which nobody typed")
        if self.typed[name] != item.session:
            raise Violation(f"the input {name} of {self.typed[name]} came from {item.session}")
        readers = self.read.setdefault(name, [])
        if any(reader != conversation and when == life for when, reader in readers):
            raise Violation(f"the input {name} went to {conversation} and to {readers}")
        readers.append((life, conversation))

    # -- at the end ------------------------------------------------------------------------------

    def unreported(self, jumped: float) -> list[str]:
        """Operations that ran or were told as open, and whose end nobody has told.  After clocks that jumped
        by a day, only those that ran: that one never did is known to the registry alone, for a day."""
        due = self.runs if jumped >= DAY else [*self.runs, *self.open]
        return [name for name in dict.fromkeys(due) if name not in self.outcomes and name not in self.excused]

    def unread(self) -> list[str]:
        return [name for name in self.typed if name not in self.read and name not in self.excused]


def _tags(result: ToolResult) -> list[str]:
    return [
        block.text.split()[1].rstrip(".")
        for block in result.content
        if isinstance(block, Text) and block.text.startswith("ran ")
    ]


def _carried(view: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    operations: list[str] = []
    inputs: list[str] = []
    if isinstance(view, OperationView) and view.status not in OPEN:
        operations.append(str(view.operation))
    companions: Companions | None = getattr(view, "companions", None)
    for item in companions.items if companions is not None else ():
        if isinstance(item, DeferredItem):
            operations.append(str(item.operation))
        elif isinstance(item, InputItem):
            inputs.append(str(item.input.id))
    return tuple(operations), tuple(inputs)
