"""The rows of the registry, as values.  No SQL, no I/O.

Times are seconds since the epoch (UTC).  Fields stand in the order of the columns in `schema.sql`; what
may be absent comes last.  Ids and texts are bounded by whoever accepts them (`wire`), not here.
"""

from dataclasses import dataclass
from typing import Literal, NewType

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import Executed
from chappie_bridge.wire.ids import (
    AppId,
    ConversationId,
    DeviceId,
    GrantId,
    OperationId,
    QuestionId,
    SessionId,
)
from chappie_bridge.wire.question import Stage

DeliveryId = NewType("DeliveryId", str)
"""One item that accompanies a later response; the receiver drops an id that it knows."""

OriginKind = Literal["conversation", "session", "shell"]
"""Who asked: a chat, an agent's session, a person at a shell.  `origin` is its id."""

OperationKind = Literal["batch", "chat", "transfer"]
DeliveryKind = Literal["result", "answer"]
DeliveryStatus = Literal["offered", "sent", "settled"]


@dataclass(frozen=True, slots=True)
class Device:
    """One device credential.  The token itself is never stored."""

    id: DeviceId
    name: str
    token_hash: str
    created_at: float
    last_seen: float
    revoked_at: float | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """One agent session; it belongs for ever to the device that first registered it."""

    id: SessionId
    device: DeviceId
    agent: str
    cwd: str
    first_seen: float
    last_seen: float
    model: str | None = None
    name: str | None = None
    parent: SessionId | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """One chat of one principal.  `id` is a keyed hash over both, so `principal` never changes."""

    id: ConversationId
    principal: str
    first_seen: float
    last_seen: float


@dataclass(frozen=True, slots=True)
class Binding:
    """A conversation's default session."""

    conversation: ConversationId
    session: SessionId
    saved_at: float


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that somebody was told of before it finished, or that was accepted with a key.

    `cwd` is the session's at that time: the row outlives the session's."""

    id: OperationId
    kind: OperationKind
    origin_kind: OriginKind
    origin: str
    session: SessionId
    cwd: str
    status: Status
    executed: Executed
    principal: str
    created_at: float
    key: str | None = None
    finished_at: float | None = None


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a transfer was asked to do, and how its files stand.  Both are JSON text; no address that a
    client gave for a download is in there."""

    operation: OperationId
    request: str
    files: str


@dataclass(frozen=True, slots=True)
class RequestKey:
    """A caller's `key`: the one request, by fingerprint, that it stands for until `expires_at`."""

    origin: str
    key: str
    fingerprint: str
    operation: OperationId
    accepted_at: float
    expires_at: float


@dataclass(frozen=True, slots=True)
class Delivery:
    """A finished output or an answer on its way to who asked.  `body` is JSON text.

    `sent_at` stays when the item is offered once more: so it tells `again`."""

    id: DeliveryId
    origin_kind: OriginKind
    origin: str
    session: SessionId
    cwd: str
    kind: DeliveryKind
    status: DeliveryStatus
    body: str
    created_at: float
    operation: OperationId | None = None
    sent_at: float | None = None
    settled_at: float | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the person in a chat.  `asked` and `answer` are JSON text; `version` counts changes,
    `revision` those that the person made."""

    id: QuestionId
    origin_kind: OriginKind
    origin: str
    principal: str
    session: SessionId
    device: str
    cwd: str
    asked: str
    stage: Stage
    revision: int
    version: int
    asked_at: float
    changed_at: float
    loaded_at: float | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class App:
    """One client program.  `redirects` is a JSON list of addresses."""

    id: AppId
    name: str
    redirects: str
    created_at: float
    last_used: float


@dataclass(frozen=True, slots=True)
class AppGrant:
    """One consent of the owner.  Tokens are hashed; `before_hash` is empty where there is none."""

    id: GrantId
    app: AppId
    resource: str
    created_at: float
    last_used: float
    refresh_hash: str
    refresh_until: float
    access_hash: str
    access_until: float
    before_hash: str
    before_until: float


@dataclass(frozen=True, slots=True)
class Subject:
    """One person as ChatGPT names them, seen with one credential.  `hash` is keyed."""

    credential: str
    hash: str
    status: Literal["allowed", "waiting"]
    first_seen: float
    last_seen: float


@dataclass(frozen=True, slots=True)
class AuditLine:
    """Who did what, where, how large (bytes), how long, with what outcome; already redacted.

    `id` is the store's own count, absent until it is written."""

    at: float
    who: str
    what: str
    target: str
    size: int
    outcome: str
    duration_ms: int | None = None
    id: int | None = None
