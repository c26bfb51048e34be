"""The store on SQLite.  Each method is written once; the two adapters differ only in where it runs: on
aiosqlite's thread, or at once in the caller.  No SQL in here.

A method hands one function to the thread, and that function is the whole transaction: one hop there and
back, where a hop for BEGIN, each statement and COMMIT would cost several times as much.
"""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import aiosqlite
import anyio

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
from chappie_broker.store.port import Access, Retention, Snapshot, Store
from chappie_broker.store.rows import (
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

from .database import DEFAULTS, Database, Options, columns, open_connection
from .files import copy, faults

Result = TypeVar("Result")

_NEWEST = 2**63 - 1
"""Above every number of an audit line."""


class _SqliteMethods(ABC, Store):
    """The port's methods, for any way to run a function on a database."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    async def _run(self, work: Callable[[Database], Result]) -> Result:
        """`work` on the connection of this store, after everything that was asked before."""

    @abstractmethod
    async def _aside(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """`work`, which reads for long, without keeping writers waiting where that can be."""

    async def _write(self, work: Callable[[Database], Result]) -> Result:
        return await self._run(lambda database: database.transaction("IMMEDIATE", work))

    async def _read(self, work: Callable[[Database], Result]) -> Result:
        return await self._run(lambda database: database.transaction("DEFERRED", work))

    async def load(self, now: float) -> Snapshot:
        return await self._read(
            lambda database: Snapshot(
                devices=database.rows(Device, "devices"),
                sessions=database.rows(Session, "sessions"),
                conversations=database.rows(Conversation, "bound_conversations"),
                bindings=database.rows(Binding, "bindings"),
                operations=database.rows(Operation, "open_operations"),
                keys=database.rows(RequestKey, "live_keys", now=now),
                deliveries=database.rows(Delivery, "unsettled_deliveries"),
            )
        )

    async def devices(self) -> tuple[Device, ...]:
        return await self._read(lambda database: database.rows(Device, "devices"))

    async def save_device(self, device: Device) -> None:
        await self._write(lambda database: database.run("save_device", **columns(device)))

    async def touch_devices(self, seen: Sequence[tuple[DeviceId, float]]) -> None:
        await self._touch("touch_device", seen)

    async def revoke_device(self, device: DeviceId, at: float) -> bool:
        return await self._write(lambda database: database.run("revoke_device", id=device, at=at)) > 0

    async def upsert_sessions(self, sessions: Sequence[Session]) -> frozenset[str]:
        return await self._write(
            lambda database: frozenset(
                session.id for session in sessions if not database.run("upsert_session", **columns(session))
            )
        )

    async def touch_sessions(self, seen: Sequence[tuple[SessionId, float]]) -> None:
        await self._touch("touch_session", seen)

    async def _touch(self, query: str, seen: Sequence[tuple[str, float]]) -> None:
        rows = [{"id": who, "at": at} for who, at in seen]
        await self._write(lambda database: database.run_each(query, rows))

    async def end_session(self, session: SessionId, at: float) -> None:
        await self._write(lambda database: database.run("end_session", id=session, at=at))

    async def save_binding(self, conversation: Conversation, session: SessionId, at: float) -> None:
        def work(database: Database) -> None:
            database.run("touch_conversation", **columns(conversation))
            database.run("save_binding", **columns(Binding(conversation.id, session, at)))

        await self._write(work)

    async def delete_binding(self, conversation: ConversationId) -> bool:
        return (
            await self._write(lambda database: database.run("delete_binding", conversation=conversation)) > 0
        )

    async def touch_conversations(self, seen: Sequence[Conversation]) -> None:
        rows = [columns(conversation) for conversation in seen]
        await self._write(lambda database: database.run_each("touch_conversation", rows))

    async def operation(self, operation: OperationId) -> Operation | None:
        return await self._read(lambda database: database.row(Operation, "operation", id=operation))

    async def save_operation(self, operation: Operation) -> None:
        await self._write(lambda database: database.run("save_operation", **columns(operation)))

    async def finish_operation(
        self,
        operation: OperationId,
        status: Status,
        executed: Executed,
        at: float,
        delivery: Delivery | None = None,
    ) -> None:
        def work(database: Database) -> None:
            database.run("finish_operation", id=operation, status=status, executed=executed, at=at)
            if delivery is not None:
                database.run("drop_delivery", id=delivery.id)
                database.run("save_delivery", **columns(delivery))

        await self._write(work)

    async def save_transfer(self, transfer: Transfer) -> None:
        await self._write(lambda database: database.run("save_transfer", **columns(transfer)))

    async def transfer(self, operation: OperationId) -> Transfer | None:
        return await self._read(lambda database: database.row(Transfer, "transfer", operation=operation))

    async def accept_key(self, key: RequestKey, operation: Operation) -> RequestKey:
        def work(database: Database) -> RequestKey | None:
            if database.run("accept_key", **columns(key)):
                database.run("save_operation", **columns(operation))
                return key
            return database.row(RequestKey, "request_key", origin=key.origin, key=key.key)

        # The transaction holds the write lock, so a key that was not free is there to be read.
        return cast("RequestKey", await self._write(work))

    async def release_key(self, origin: str, key: str, operation: OperationId) -> None:
        await self._write(
            lambda database: database.run("release_key", origin=origin, key=key, operation=operation)
        )

    async def save_delivery(self, delivery: Delivery) -> None:
        await self._write(lambda database: database.run("save_delivery", **columns(delivery)))

    async def mark_sent(self, deliveries: Sequence[DeliveryId], at: float) -> None:
        await self._touch("mark_sent", [(delivery, at) for delivery in deliveries])

    async def mark_unsent(self, deliveries: Sequence[DeliveryId]) -> None:
        rows = [{"id": delivery} for delivery in deliveries]
        await self._write(lambda database: database.run_each("mark_unsent", rows))

    async def settle(self, deliveries: Sequence[DeliveryId], at: float) -> None:
        await self._touch("settle", [(delivery, at) for delivery in deliveries])

    async def deliveries_of(self, kind: OriginKind, origin: str, limit: int = 64) -> tuple[Delivery, ...]:
        return await self._read(
            lambda database: database.rows(
                Delivery, "deliveries_of", origin_kind=kind, origin=origin, limit=limit
            )
        )

    async def save_question(self, question: Question) -> None:
        await self._write(lambda database: database.run("save_question", **columns(question)))

    async def question(self, question: QuestionId) -> Question | None:
        return await self._read(lambda database: database.row(Question, "question", id=question))

    async def recent_questions(self, limit: int) -> tuple[Question, ...]:
        return await self._read(lambda database: database.rows(Question, "recent_questions", limit=limit))

    async def change_question(
        self,
        question: Question,
        delivery: Delivery | None = None,
        superseded: DeliveryId | None = None,
    ) -> bool:
        def work(database: Database) -> bool:
            if not database.run("change_question", **columns(question)):
                return False
            if superseded is not None:
                database.run("settle", id=superseded, at=question.changed_at)
            if delivery is not None:
                database.run("save_delivery", **columns(delivery))
            return True

        return await self._write(work)

    async def open_questions(self, kind: OriginKind, origin: str) -> int:
        return cast(
            "int",
            await self._read(
                lambda database: database.value("open_questions", origin_kind=kind, origin=origin)
            ),
        )

    async def access(self) -> Access:
        return await self._read(
            lambda database: Access(
                apps=database.rows(App, "apps"),
                grants=database.rows(AppGrant, "app_grants"),
                subjects=database.rows(Subject, "subjects"),
            )
        )

    async def save_app(self, app: App) -> None:
        await self._write(lambda database: database.run("save_app", **columns(app)))

    async def delete_app(self, app: AppId) -> None:
        await self._write(lambda database: database.run("delete_app", id=app))

    async def save_grant(self, grant: AppGrant, app: App) -> None:
        def work(database: Database) -> None:
            database.run("save_app", **columns(app))
            database.run("save_app_grant", **columns(grant))

        await self._write(work)

    async def touch_grants(self, seen: Sequence[tuple[GrantId, float]]) -> None:
        await self._touch("touch_app_grant", seen)

    async def delete_grant(self, grant: GrantId) -> None:
        await self._write(lambda database: database.run("delete_app_grant", id=grant))

    async def save_subject(self, subject: Subject) -> None:
        await self._write(lambda database: database.run("save_subject", **columns(subject)))

    async def delete_subject(self, credential: str, digest: str) -> None:
        await self._write(lambda database: database.run("delete_subject", credential=credential, hash=digest))

    async def append_audit(self, lines: Sequence[AuditLine]) -> None:
        rows = [columns(line) for line in lines]
        await self._write(lambda database: database.run_each("append_audit", rows))

    async def audit_page(self, before: int | None = None, limit: int = 100) -> tuple[AuditLine, ...]:
        last = _NEWEST if before is None else before
        return await self._read(
            lambda database: database.rows(AuditLine, "audit_page", before=last, limit=limit)
        )

    async def prune(self, now: float, keep: Retention, max_rows: int = 500) -> int:
        def work(database: Database) -> int:
            unsettled = now - keep.unsettled
            database.run("note_unsettled", now=now, before=unsettled, limit=max_rows)
            # Children before parents, so that what loses its last child goes in the same step.
            steps = (
                ("prune_keys", now),
                ("prune_operations", now - keep.operations),
                ("prune_settled", now - keep.settled),
                ("prune_unsettled", unsettled),
                ("prune_questions", now - keep.questions),
                ("prune_audit", now - keep.audit),
                ("prune_conversations", now - keep.conversations),
                ("prune_sessions", now - keep.sessions),
                ("prune_devices", now - keep.sessions),
            )
            gone = sum(database.run(query, before=before, limit=max_rows) for query, before in steps)
            last = (database.value("last_audit") or 0) - keep.audit_lines
            return gone + database.run("prune_audit_to", last=last, limit=max_rows)

        return await self._write(work)

    async def meta(self, name: str) -> str | None:
        return cast("str | None", await self._read(lambda database: database.value("meta", name=name)))

    async def meta_once(self, name: str, value: str) -> str:
        def work(database: Database) -> str:
            database.run("meta_once", name=name, value=value)
            return cast("str", database.value("meta", name=name))

        return await self._write(work)

    async def backup(self, target: Path) -> None:
        await self._aside(partial(copy, path=self.path, target=target))

    async def integrity_check(self) -> tuple[str, ...]:
        return await self._aside(faults)


class SqliteStore(_SqliteMethods):
    """The store of a running broker: SQLite on aiosqlite's thread."""

    def __init__(
        self, path: Path, thread: aiosqlite.Connection, database: Database, options: Options
    ) -> None:
        super().__init__(path)
        self._thread = thread
        self._database = database
        self._options = options
        self._open = True

    @classmethod
    async def open(cls, path: Path, options: Options = DEFAULTS) -> "SqliteStore":
        """Open the registry at `path`, making or upgrading it first.  Close it, or its thread keeps the
        process alive.

        :raises StoreError: any kind; see there what to do."""
        # Opened before aiosqlite's thread exists: a thread whose opening fails talks to the loop once more,
        # without anybody waiting for it.
        connection = await anyio.to_thread.run_sync(open_connection, path, options)
        thread = await aiosqlite.Connection(lambda: connection, iter_chunk_size=64)
        return cls(path, thread, Database(connection, path), options)

    async def _run(self, work: Callable[[Database], Result]) -> Result:
        # aiosqlite's own step to its thread.  Its public methods take one such step for each statement.
        return cast("Result", await self._thread._execute(work, self._database))  # type: ignore[no-untyped-call]

    async def _aside(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        def alone() -> Result:
            with closing(open_connection(self.path, self._options)) as connection:
                return work(connection)

        return await anyio.to_thread.run_sync(alone)

    async def close(self) -> None:
        if self._open:
            self._open = False
            with anyio.CancelScope(shield=True):
                await self._thread.close()


class InlineSqliteStore(_SqliteMethods):
    """The same SQL at once in the caller: for the deterministic simulation, where a thread would bring
    its own order of events.  `:memory:` is a path too."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        super().__init__(path)
        self._database = Database(connection, path)

    @classmethod
    async def open(cls, path: Path, options: Options = DEFAULTS) -> "InlineSqliteStore":
        """See SqliteStore.open."""
        return cls(path, open_connection(path, options))

    async def _run(self, work: Callable[[Database], Result]) -> Result:
        return work(self._database)

    async def _aside(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        return work(self._database.connection)

    async def close(self) -> None:
        self._database.connection.close()
