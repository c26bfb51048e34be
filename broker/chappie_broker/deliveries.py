"""What accompanies results (SPEC §3): offered, sent, settled.  Decides in memory; writing is others'."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.blocks import Content
from chappie_bridge.wire.ids import Mint, OperationId, QuestionId, ReceiptId, SessionId
from chappie_bridge.wire.machine import Table
from chappie_bridge.wire.values import AnswerItem, Companion, Companions, DeferredItem, InputItem

from .limits import Limits
from .operations import Operation


class Stage(StrEnum):
    WAITING = "waiting"
    OFFERED = "offered"
    """In a response on its way."""
    SENT = "sent"
    """The gate saw that response leave; the conversation's next request settles it."""
    SETTLED = "settled"


DELIVERY = Table(
    "delivery",
    {
        (Stage.WAITING, "offered"): Stage.OFFERED,
        (Stage.WAITING, "sent"): Stage.WAITING,  # of an older receipt that came late
        (Stage.WAITING, "unsent"): Stage.WAITING,
        (Stage.OFFERED, "sent"): Stage.SENT,
        (Stage.OFFERED, "unsent"): Stage.WAITING,
        (Stage.SENT, "unsent"): Stage.WAITING,  # the same request came again: the reply was lost later
        (Stage.SENT, "sent"): Stage.SENT,
        (Stage.SENT, "next_request"): Stage.SETTLED,
    },
)


@dataclass(slots=True, eq=False)
class Parcel:
    """One item for one addressee.  `key` is unique among the addressee's parcels."""

    key: str
    addressee: str
    item: Companion
    size: int
    number: int
    """In the order in which all parcels came."""
    stage: Stage = Stage.WAITING
    receipt: ReceiptId | None = None
    offers: int = 0
    left: bool = False
    """A response that carried it left through the gate: the addressee may have read it."""
    stored: bool = False
    """The store has it, too: it outlives this process whatever the agent does."""

    @property
    def session(self) -> SessionId:
        if isinstance(self.item, DeferredItem):
            return self.item.target.session
        return self.item.question.session if isinstance(self.item, AnswerItem) else self.item.session

    @property
    def operation(self) -> OperationId | None:
        return self.item.operation if isinstance(self.item, DeferredItem) else None

    def advance(self, event: str) -> None:
        self.stage = DELIVERY.next(self.stage, event)
        if self.stage is Stage.WAITING:
            self.receipt = None

    def presented(self) -> Companion:
        return self.item.model_copy(update={"again": True}) if self.offers > 1 else self.item


@dataclass(slots=True)
class Sending:
    """One response on its way."""

    addressee: str
    began: float
    parcels: list[Parcel] = field(default_factory=list)
    operation: Operation | None = None
    final: bool = False
    """It tells how the operation ended."""


class Waiting(NamedTuple):
    """How many of each wait for an addressee."""

    inputs: int
    results: int
    answers: int


class Doubt(NamedTuple):
    """What was told of an operation whose end nobody knew."""

    shown: bool
    """It was in a response."""
    stored: bool
    """The store has it: what takes its place must be stored, too."""


class Mailroom:
    """Parcels by addressee (an origin's id), in the order in which they came."""

    def __init__(self, mint: Mint, limits: Limits) -> None:
        self._mint, self._limits = mint, limits
        self._boxes: dict[str, OrderedDict[str, Parcel]] = {}
        self._readers: dict[str, str] = {}
        """Whose each input is; an agent that offers one again does not give it to somebody else."""
        self._sending: dict[ReceiptId, Sending] = {}
        self._number = 0

    @property
    def undelivered(self) -> int:
        """Parcels that are not known to have arrived."""
        return sum(map(len, self._boxes.values()))

    def put(self, addressee: str, key: str, item: Companion, *, shown_before: bool = False) -> Parcel | None:
        """A new parcel; None when there is one of this key already (idempotent), or when it is an input
        that another addressee has."""
        if isinstance(item, InputItem) and self._readers.setdefault(key, addressee) != addressee:
            return None
        box = self._boxes.setdefault(addressee, OrderedDict())
        if key in box:
            return None
        self._number += 1
        offers = int(shown_before)
        parcel = box[key] = Parcel(key, addressee, item, body_size(item), self._number, offers=offers)
        return parcel

    def restore(self, addressee: str, key: str, item: Companion, *, sent: bool) -> None:
        """A parcel from the store, at start."""
        parcel = self.put(addressee, key, item, shown_before=True)
        if parcel is not None:
            parcel.stored = True
            parcel.stage = Stage.SENT if sent else Stage.WAITING

    def take_back(self, addressee: str, key: str) -> Parcel | None:
        """Remove a parcel that nobody has been shown for certain."""
        box = self._boxes.get(addressee)
        parcel = box.get(key) if box else None
        if parcel is None or parcel.stage in (Stage.OFFERED, Stage.SENT):
            return None
        self._remove(parcel)
        return parcel

    def supersede_doubt(self, addressee: str, key: str) -> Doubt:
        """Remove a parcel that only says that nobody knows how its operation ended, for better word takes
        its place.  However far it is, its receipt no longer matters, nor does the store's row of it."""
        box = self._boxes.get(addressee)
        parcel = box.get(key) if box else None
        if parcel is None or not isinstance(parcel.item, DeferredItem):
            return Doubt(shown=False, stored=False)
        if parcel.item.status is not Status.INTERRUPTED:
            return Doubt(shown=False, stored=False)
        self._remove(parcel)
        was_stored, parcel.stored = parcel.stored, False
        return Doubt(shown=parcel.offers > 0, stored=was_stored)

    def open(self, addressee: str, now: float, operation: Operation | None = None) -> ReceiptId:
        """Begin a response."""
        receipt = self._mint.receipt()
        final = operation is not None and not operation.open
        self._sending[receipt] = Sending(addressee, now, operation=operation, final=final)
        return receipt

    def attach(self, receipt: ReceiptId, addressee: str, key: str, item: Companion) -> None:
        """The response's own outcome: a parcel that is part of it already."""
        parcel = self.put(addressee, key, item)
        if parcel is None:
            parcel = self._boxes[addressee][key]
        self._offer(parcel, receipt)

    def companions(self, receipt: ReceiptId, first: Iterable[Companion] = ()) -> Companions:
        """What rides along: `first` (model requests), then the oldest waiting parcels within bounds."""
        sending = self._sending[receipt]
        items = list(first)[: self._limits.companions]
        room = self._limits.companion_bytes
        more = 0
        for parcel in list(self._boxes.get(sending.addressee, {}).values()):
            if parcel.stage is not Stage.WAITING:
                continue
            if more or len(items) >= self._limits.companions or (items and parcel.size > room):
                more += 1
                continue
            room -= parcel.size
            self._offer(parcel, receipt)
            items.append(parcel.presented())
        return Companions(receipt=receipt, items=tuple(items), more=more)

    def told(self, receipt: ReceiptId, *, sent: bool) -> Sending | None:
        """The gate's word; None when it was told before."""
        sending = self._sending.pop(receipt, None)
        if sending is None:
            return None
        for parcel in sending.parcels:
            if parcel.receipt == receipt:
                parcel.advance("sent" if sent else "unsent")
                parcel.left = parcel.left or sent
        return sending

    def overdue(self, before: float) -> list[ReceiptId]:
        """Responses of which nobody ever told."""
        return [receipt for receipt, sending in self._sending.items() if sending.began < before]

    def sent(self, addressee: str) -> list[Parcel]:
        """What left through the gate and waits for the addressee's next request."""
        box = self._boxes.get(addressee)
        return [parcel for parcel in box.values() if parcel.stage is Stage.SENT] if box else []

    def settle(self, sent: Iterable[Parcel]) -> list[Parcel]:
        """A request came after these were sent, so they have arrived; those that did."""
        settled = [parcel for parcel in sent if parcel.stage is Stage.SENT]
        for parcel in settled:
            parcel.advance("next_request")
            self._remove(parcel)
        return settled

    def oldest(self, limit: int) -> tuple[list[Parcel], list[Parcel]]:
        """What must go so that bodies fit `limit` bytes, oldest first: of what was sent, then of the
        results that wait and whose operations their agents or the store still know."""
        over = sum(parcel.size for box in self._boxes.values() for parcel in box.values()) - limit
        chosen: tuple[list[Parcel], list[Parcel]] = ([], [])
        if over <= 0:
            return chosen
        parcels = sorted((p for box in self._boxes.values() for p in box.values()), key=lambda p: p.number)
        for found, stage in zip(chosen, (Stage.SENT, Stage.WAITING), strict=True):
            for parcel in parcels:
                if over > 0 and parcel.stage is stage and parcel.operation is not None:
                    found.append(parcel)
                    over -= parcel.size
        return chosen

    def discard(self, parcel: Parcel) -> None:
        self._remove(parcel)

    def recall(self, addressee: str) -> list[Parcel]:
        """The same request came again: what its reply carried never arrived."""
        recalled = self.sent(addressee)
        for parcel in recalled:
            parcel.advance("unsent")
        return recalled

    def inputs_of(self, addressee: str, session: SessionId) -> list[Parcel]:
        """Local input of a session that this addressee has never been sent."""
        return [
            parcel
            for parcel in self._boxes.get(addressee, {}).values()
            if isinstance(parcel.item, InputItem)
            and parcel.item.session == session
            and parcel.stage is Stage.WAITING
            and not parcel.left
        ]

    def holds(self, addressee: str, key: str) -> bool:
        """Does this parcel wait, shown to nobody for certain?"""
        box = self._boxes.get(addressee)
        parcel = box.get(key) if box else None
        return parcel is not None and parcel.stage is Stage.WAITING

    def waiting(self, addressee: str) -> Waiting:
        inputs = results = answers = 0
        for parcel in self._boxes.get(addressee, {}).values():
            if parcel.stage is Stage.WAITING:
                inputs += isinstance(parcel.item, InputItem)
                results += isinstance(parcel.item, DeferredItem)
                answers += isinstance(parcel.item, AnswerItem)
        return Waiting(inputs, results, answers)

    def _offer(self, parcel: Parcel, receipt: ReceiptId) -> None:
        if parcel.stage is Stage.SENT:
            parcel.advance("unsent")
        if parcel.stage is Stage.OFFERED:
            return  # in another response right now; that one's receipt decides
        parcel.advance("offered")
        parcel.receipt = receipt
        parcel.offers += 1
        self._sending[receipt].parcels.append(parcel)

    def _remove(self, parcel: Parcel) -> None:
        box = self._boxes[parcel.addressee]
        del box[parcel.key]
        self._readers.pop(parcel.key, None)
        if not box:
            del self._boxes[parcel.addressee]


def input_key(identifier: str) -> str:
    return f"input:{identifier}"


def result_key(operation: OperationId) -> str:
    return f"result:{operation}"


def answer_key(question: QuestionId, revision: int) -> str:
    return f"answer:{question}:{revision}"


def deferred(operation: Operation) -> DeferredItem:
    """The outcome of a finished operation as an item of its own."""
    return DeferredItem(
        operation=operation.id,
        what=operation.kind,
        target=operation.target,
        status=operation.status,
        executed=operation.executed,
        results=operation.ordered_results,
        files=operation.files(),
        error=operation.failure,
    )


def body_size(item: Companion) -> int:
    """Bytes of text and images in an item, roughly."""
    if isinstance(item, DeferredItem):
        return 200 + sum(_content_size(result.content) for result in item.results)
    if isinstance(item, InputItem):
        return 200 + _content_size(item.input.content)
    if isinstance(item, AnswerItem):
        return 1_000 + len(item.question.answer.text if item.question.answer else "")
    return 200 + _content_size(item.request.content)


def _content_size(content: Content) -> int:
    total = 0
    for block in content:
        if block.type == "text":
            total += len(block.text)
        elif block.type == "spill":
            total += len(block.head) + len(block.tail)
    return total
