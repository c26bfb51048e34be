"""Operations in memory: what was asked, how far it is, who waits.  State changes only through BATCH."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Literal, NamedTuple

import anyio

from chappie_bridge.wire.batch import BATCH, OPEN, Status
from chappie_bridge.wire.errors import Executed, Failure, Lost
from chappie_bridge.wire.ids import EntryId, OperationId, SessionId
from chappie_bridge.wire.messages import PostChat, RunBatch
from chappie_bridge.wire.requests import Chat, Submit, Transfer
from chappie_bridge.wire.values import FileReport, Need, Origin, SessionHead, ToolResult

from .store.rows import Operation as OperationStored
from .store.rows import RequestKey

Kind = Literal["batch", "chat", "transfer"]


@dataclass(slots=True, eq=False)
class Operation:
    """`message` is what goes to the agent; None for one that this broker only heard of."""

    id: OperationId
    kind: Kind
    origin: Origin
    target: SessionHead
    seq: int
    accepted: float
    message: RunBatch | PostChat | None = None
    fingerprint: str = ""
    key: str | None = None
    tunnel_request: str | None = None
    status: Status = Status.QUEUED
    executed: Executed = Executed.NO
    results: dict[int, ToolResult] = field(default_factory=dict)
    files: Callable[[], tuple[FileReport, ...]] = tuple
    """How each file of a transfer stands now."""
    error: Failure | None = None
    needs: tuple[Need, ...] = ()
    entry: EntryId | None = None
    finished: float | None = None
    told_open: bool = False
    """Its id is told as not finished, so the store hears of its end."""
    committed: bool = False
    """The store has it as open; before that nobody is told."""
    stored_as_queued: bool = False
    """The store has it as never sent; that must change before it is sent."""
    sending: bool = False
    """That is being changed: from here on the store must not hear again that it is queued."""
    shown: bool = False
    """A response that named it left through the gate, whatever its status was then."""
    offered: bool = False
    """A doubt about its end was in a response before."""
    delivered: bool = False
    """A response that carried its outcome left through the gate."""
    waiters: int = 0
    _changed: anyio.Event | None = None

    @property
    def outgoing(self) -> RunBatch | PostChat:
        """What goes to the agent.  :raises Lost: it came from an earlier life of the broker."""
        if self.message is None:
            raise Lost
        return self.message

    @property
    def open(self) -> bool:
        return self.status in OPEN

    def advance(self, event: str, now: float) -> bool:
        """Take an input; True when it ended the operation just now."""
        before = self.status
        self.status = BATCH.next(before, event)
        if self.status is not before:
            self.wake()
        ended = (
            self.status not in OPEN
            and (before in OPEN or before is Status.INTERRUPTED)
            and self.status is not before
        )
        if ended:
            self.finished = now
            self.needs = ()
        return ended

    def wake(self) -> None:
        """Let every waiter look again."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def wait(self) -> None:
        """Until something changes."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    @property
    def failure(self) -> Failure | None:
        """Its error, which says of all its calls whether any ran."""
        return self.error and self.error.model_copy(update={"executed": self.executed})

    @property
    def ordered_results(self) -> tuple[ToolResult, ...]:
        return tuple(self.results[index] for index in sorted(self.results))

    @property
    def size(self) -> int:
        """Rough bytes kept for it."""
        return 2_000 + sum(result_size(result) for result in self.results.values())


def result_size(result: ToolResult) -> int:
    """Rough bytes kept for it."""
    total = 200
    for block in result.content:
        if block.type == "text":
            total += len(block.text)
        elif block.type == "image":
            total += len(block.data)
        elif block.type == "spill":
            total += len(block.head) + len(block.tail)
    return total


class _Ended(NamedTuple):
    size: int
    at: float
    """Of the loop's clock, which never jumps."""


class Ledger:
    """All operations that this broker remembers: open ones always, finished ones within bounds."""

    def __init__(self, keep: int, keep_bytes: int) -> None:
        self._all: dict[OperationId, Operation] = {}
        self._finished: OrderedDict[OperationId, _Ended] = OrderedDict()
        self._bytes = 0
        self._keep, self._keep_bytes = keep, keep_bytes
        self._by_request: dict[tuple[str, str], Operation] = {}
        self.keys: dict[tuple[str, str], RequestKey] = {}
        """Accepted keys by origin and key, until they expire."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Operation]:
        return iter(list(self._all.values()))

    @property
    def open_count(self) -> int:
        return len(self._all) - len(self._finished)

    def add(self, operation: Operation) -> None:
        self._all[operation.id] = operation
        for name in _request_names(operation):
            self._by_request[operation.origin.id, name] = operation

    def remember(self, row: OperationStored, device: str) -> Operation:
        """One of an earlier life, or one that was forgotten, as the registry has it."""
        operation = Operation(
            id=OperationId(row.id),
            kind=row.kind,
            origin=Origin(kind=row.origin_kind, id=row.origin, label=row.origin, principal=row.principal),
            target=SessionHead(session=SessionId(row.session), device=device, cwd=row.cwd),
            seq=0,
            accepted=row.created_at,
            key=row.key,
            status=Status(row.status),
            executed=Executed(row.executed),
            finished=row.finished_at,
            told_open=True,
            committed=True,
        )
        self.add(operation)
        return operation

    def get(self, operation: OperationId) -> Operation | None:
        return self._all.get(operation)

    def same_request(self, origin: str, name: str) -> Operation | None:
        """The operation that this conversation started under a tunnel request or fingerprint."""
        return self._by_request.get((origin, name))

    def finish(self, operation: Operation) -> None:
        """It ended: from now on it may be forgotten, oldest first, once its outcome was delivered or is
        kept elsewhere."""
        before, size = self._finished.pop(operation.id, None), operation.size
        self._bytes += size - (before.size if before is not None else 0)
        self._finished[operation.id] = _Ended(size, anyio.current_time())
        while self._finished and (len(self._finished) > self._keep or self._bytes > self._keep_bytes):
            oldest = next(iter(self._finished))
            if oldest == operation.id:
                break
            self.forget(oldest)

    def forget(self, identifier: OperationId) -> None:
        operation = self._all.pop(identifier, None)
        ended = self._finished.pop(identifier, None)
        self._bytes -= ended.size if ended is not None else 0
        if operation is not None:
            for name in _request_names(operation):
                if self._by_request.get((operation.origin.id, name)) is operation:
                    del self._by_request[operation.origin.id, name]

    def expired(self, age: float, limit: int) -> list[OperationId]:
        """Ended more than `age` seconds ago, at most `limit`.  The clock on the wall may jump meanwhile."""
        before = anyio.current_time() - age
        old = takewhile(lambda item: item[1].at < before, self._finished.items())
        return [identifier for identifier, _ in islice(old, limit)]


def _request_names(operation: Operation) -> list[str]:
    names = [f"fingerprint:{operation.fingerprint}"] if operation.fingerprint else []
    if operation.tunnel_request is not None:
        names.append(f"tunnel:{operation.tunnel_request}:{operation.fingerprint}")
    return names


def fingerprint(request: Submit) -> str:
    """Of the decoded calls, the tool and the explicit target: SHA-256 over canonical JSON."""
    calls = [[call.name, call.arguments] for call in request.calls or ()]
    text = json.dumps(["call", request.session, calls], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def transfer_fingerprint(request: Transfer) -> str:
    """Of what is moved where.  The address of a download is not part of it: it changes, its file does not."""
    files = [each.file_id for each in request.attachments or ()]
    parts = {"session", "paths", "uploads", "source", "sink", "overwrite"}
    text = json.dumps(["transfer", request.model_dump(mode="json", include=parts), files], sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def chat_fingerprint(request: Chat) -> str:
    """The same for a message."""
    said = ["chat", request.session, request.text, request.reply_to, request.final]
    return hashlib.sha256(json.dumps(said, separators=(",", ":")).encode("ascii")).hexdigest()


def stored_row(operation: Operation) -> OperationStored:
    """As the registry keeps it."""
    sending = operation.sending and operation.status is Status.QUEUED
    return OperationStored(
        id=operation.id,
        kind=operation.kind,
        origin_kind=operation.origin.kind,
        origin=operation.origin.id,
        session=operation.target.session,
        cwd=operation.target.cwd,
        status=Status.RUNNING if sending else operation.status,
        executed=operation.executed,
        principal=operation.origin.principal,
        key=operation.key,
        created_at=operation.accepted,
        finished_at=operation.finished,
    )
