"""What the broker asks of its store, and how a store fails.  No SQL and no database in here.

One method is one transaction: after it returned, what it wrote survives a kill of the process.  A call
that its caller cancels may still have been committed; each method may therefore be repeated safely.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from typing import ClassVar, Protocol

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import BY_CODE, BridgeError, Executed
from chappie_bridge.wire.ids import (
    AppId,
    ConversationId,
    DeviceId,
    GrantId,
    OperationId,
    QuestionId,
    SessionId,
)

from .rows import (
    App,
    AppGrant,
    AuditLine,
    Binding,
    Conversation,
    Delivery,
    DeliveryId,
    Device,
    Operation,
    OriginKind,
    Question,
    RequestKey,
    Session,
    Subject,
    Transfer,
)


class StoreError(Exception):
    """The registry failed."""

    code: ClassVar[str] = "internal"
    """The code of the closed list under which a caller hears of it."""

    def __init__(self, path: Path, message: str | None = None) -> None:
        """`message` defaults to the class's docstring, the text for the person.  `path` is the file."""
        super().__init__(message or cleandoc(type(self).__doc__ or "").replace("\n", " "))
        self.path = path

    def bridge_error(self, executed: Executed, hint: str | None = None) -> BridgeError:
        """The same for a caller of the broker, who alone knows whether a tool ran, and what to do next."""
        return BY_CODE[self.code](str(self), executed=executed, hint=hint)


class StoreFull(StoreError):
    """The registry cannot grow: its disk or its own size limit is full. Nothing stored is lost. Free
    some space on the disk that holds the state directory, then try again."""

    code = "disk_full"


class StoreReadOnly(StoreError):
    """The registry cannot be written: its file or its directory is missing or read-only. Give your user
    the right to write there, or choose another directory with `--state`."""


class StoreTooNew(StoreError):
    """The registry was written by a newer version of this program and was left as it is. Upgrade this
    program, or choose another directory with `--state`."""

    code = "version_mismatch"


class StoreDamaged(StoreError):
    """The registry is damaged and was left as it is. Run `chappie-bridge doctor`: it can restore a
    backup, or move the file aside so that the next start makes an empty one."""


class StoreBusy(StoreError):
    """Another process held the registry for too long. Try again; if it lasts, look for a program that
    has the file open, such as a backup or a database browser."""

    code = "overloaded"


class StoreUnreadable(StoreError):
    """The disk that holds the registry reported an error. Look at the system's log and copy the state
    directory to another disk."""


class StoreUnsupported(StoreError):
    """The SQLite library of this Python is too old: 3.37 or newer is needed. Install a newer Python."""

    code = "unsupported"


DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """How long rows stay, in seconds, and how many audit lines at most."""

    operations: float = DAY
    """After the end.  Open ones stay: the broker closes what a restart left open."""
    settled: float = DAY
    """Deliveries, after they were settled."""
    unsettled: float = 30 * DAY
    """Deliveries whose conversation never came back, after they were made."""
    questions: float = 90 * DAY
    """After their last change."""
    conversations: float = 365 * DAY
    """After the last request.  The binding goes with its conversation."""
    sessions: float = 365 * DAY
    """After the last sign of life; bound ones stay.  Revoked devices without sessions likewise."""
    audit: float = 90 * DAY
    audit_lines: int = 200_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a broker keeps in memory, as of one moment."""

    devices: tuple[Device, ...]
    sessions: tuple[Session, ...]
    """Earliest first seen first."""
    conversations: tuple[Conversation, ...]
    """Those with a binding."""
    bindings: tuple[Binding, ...]
    operations: tuple[Operation, ...]
    """Open ones, oldest first."""
    keys: tuple[RequestKey, ...]
    """Not expired."""
    deliveries: tuple[Delivery, ...]
    """Not settled, oldest first."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may come in besides the owner's own secret."""

    apps: tuple[App, ...]
    grants: tuple[AppGrant, ...]
    subjects: tuple[Subject, ...]


class Store(Protocol):
    """The registry.  Every method raises StoreError; what else it raises is said there.

    Sequences are written in one transaction; who calls keeps them short (thousands at most)."""

    async def load(self, now: float) -> Snapshot:
        """Everything for the broker's memory; `now` decides which keys have expired."""
        ...

    # Devices.

    async def devices(self) -> tuple[Device, ...]:
        """All of them, revoked ones too."""
        ...

    async def save_device(self, device: Device) -> None:
        """Add a device, or change its name, token or revocation."""
        ...

    async def touch_devices(self, seen: Sequence[tuple[DeviceId, float]]) -> None:
        """Move `last_seen` forward, never back.  Unknown ids are skipped."""
        ...

    async def revoke_device(self, device: DeviceId, at: float) -> bool:
        """Forget its token's hash.  False: unknown, or revoked before.  Its sessions stay its own."""
        ...

    # Sessions.

    async def upsert_sessions(self, sessions: Sequence[Session]) -> frozenset[str]:
        """Register sessions, or register them again: `device` and `first_seen` stay as they were.

        Gives the ids of those that belong to another device; of these nothing was changed."""
        ...

    async def touch_sessions(self, seen: Sequence[tuple[SessionId, float]]) -> None:
        """Move `last_seen` forward, never back.  Unknown ids are skipped."""
        ...

    async def end_session(self, session: SessionId, at: float) -> None: ...

    # Conversations and bindings.

    async def save_binding(self, conversation: Conversation, session: SessionId, at: float) -> None:
        """Make `session`, which must be registered, the conversation's default; add the conversation
        where it is new."""
        ...

    async def delete_binding(self, conversation: ConversationId) -> bool:
        """False: there was none."""
        ...

    async def touch_conversations(self, seen: Sequence[Conversation]) -> None:
        """Add new conversations and move `last_seen` of the others forward, never back."""
        ...

    # Operations and keys.

    async def operation(self, operation: OperationId) -> Operation | None: ...

    async def save_operation(self, operation: Operation) -> None:
        """Add an operation, or change its status, executed and end."""
        ...

    async def finish_operation(
        self,
        operation: OperationId,
        status: Status,
        executed: Executed,
        at: float,
        delivery: Delivery | None = None,
    ) -> None:
        """Note the end, where the operation was saved, and save the delivery of its output with it.
        A later word (a result after `interrupted`) replaces an earlier one, the delivery included."""
        ...

    async def save_transfer(self, transfer: Transfer) -> None:
        """Add what there is to know of a saved operation's files, or change how they stand."""
        ...

    async def transfer(self, operation: OperationId) -> Transfer | None: ...

    async def accept_key(self, key: RequestKey, operation: Operation) -> RequestKey:
        """The row that stands for (origin, key): `key` itself, saved together with `operation`, or an
        earlier one that has not expired at `key.accepted_at`; then nothing was changed.  Of any number
        of equal calls at the same moment exactly one gets its own."""
        ...

    async def release_key(self, origin: str, key: str, operation: OperationId) -> None:
        """Forget the key where it still stands for `operation`: that never ran, the key may be used again."""
        ...

    # Deliveries.

    async def save_delivery(self, delivery: Delivery) -> None:
        """Add a delivery; one that is there already stays as it is."""
        ...

    async def mark_sent(self, deliveries: Sequence[DeliveryId], at: float) -> None:
        """offered → sent.  Other states stay."""
        ...

    async def mark_unsent(self, deliveries: Sequence[DeliveryId]) -> None:
        """sent → offered, to be offered `again`.  Other states stay."""
        ...

    async def settle(self, deliveries: Sequence[DeliveryId], at: float) -> None:
        """→ settled; what is settled keeps its time."""
        ...

    async def deliveries_of(self, kind: OriginKind, origin: str, limit: int = 64) -> tuple[Delivery, ...]:
        """What is not settled for one origin, oldest first, at most `limit`."""
        ...

    # Questions.

    async def save_question(self, question: Question) -> None:
        """Add a question; one that is there already stays as it is."""
        ...

    async def question(self, question: QuestionId) -> Question | None: ...

    async def recent_questions(self, limit: int) -> tuple[Question, ...]:
        """Those that changed last, newest first."""
        ...

    async def change_question(
        self,
        question: Question,
        delivery: Delivery | None = None,
        superseded: DeliveryId | None = None,
    ) -> bool:
        """Change how it stands, save the delivery of its answer, settle the one that this replaces.
        False: it is not at `question.version - 1` any more; then nothing was changed."""
        ...

    async def open_questions(self, kind: OriginKind, origin: str) -> int:
        """How many questions of this origin wait for the person."""
        ...

    # Apps, consents, persons.

    async def access(self) -> Access: ...

    async def save_app(self, app: App) -> None:
        """Add an app, or change its name, redirects and last use."""
        ...

    async def delete_app(self, app: AppId) -> None:
        """With the owner's consents."""
        ...

    async def save_grant(self, grant: AppGrant, app: App) -> None:
        """Add a consent, or change its tokens; the app is saved with it."""
        ...

    async def touch_grants(self, seen: Sequence[tuple[GrantId, float]]) -> None:
        """Move `last_used` forward, never back.  Unknown ids are skipped."""
        ...

    async def delete_grant(self, grant: GrantId) -> None: ...

    async def save_subject(self, subject: Subject) -> None:
        """Add a person, or change status and last sign of life."""
        ...

    async def delete_subject(self, credential: str, digest: str) -> None: ...

    # The audit log.

    async def append_audit(self, lines: Sequence[AuditLine]) -> None:
        """Write a group of lines, in order."""
        ...

    async def audit_page(self, before: int | None = None, limit: int = 100) -> tuple[AuditLine, ...]:
        """Newest first, older than line `before`, at most `limit`."""
        ...

    # The house.

    async def prune(self, now: float, keep: Retention, max_rows: int = 500) -> int:
        """One step of tidying: delete what is older than `keep` says, at most `max_rows` of each kind; an
        undelivered outcome leaves a line in the audit log.
        Returns how many rows went; 0 says that nothing is left to do."""
        ...

    async def meta(self, name: str) -> str | None: ...

    async def meta_once(self, name: str, value: str) -> str:
        """The value of `name`, which is `value` if there was none: the first one stays for ever."""
        ...

    async def backup(self, target: Path) -> None:
        """Write a consistent copy to the new file `target` (0600), while everything goes on.

        :raises PathExists: when there is such a file; it is left alone."""
        ...

    async def integrity_check(self) -> tuple[str, ...]:
        """What is wrong inside the registry, at most 20 lines; empty when it is sound.  Reads all of it,
        while everything goes on."""
        ...

    async def close(self) -> None:
        """Finish what was asked, then let go.  May be called twice; nothing else may be called after it."""
        ...
