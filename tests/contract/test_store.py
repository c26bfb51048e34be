"""What every store must do, run on every adapter."""

from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from chappie_broker.store.port import DAY, Retention, Store
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
    Question,
    RequestKey,
    Session,
    Subject,
)
from chappie_broker.store.sqlite import InlineSqliteStore, SqliteStore

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import Executed, PathExists
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

pytestmark = pytest.mark.anyio

Open = Callable[[], Coroutine[Any, Any, Store]]

DEVICE = Device(DeviceId("d1"), "laptop", "hash", created_at=1.5, last_seen=2.5)
SESSION = Session(
    SessionId("s1"), DEVICE.id, "pi", "/w", 10.25, 11.5, model="m", name="n", parent=SessionId("s0")
)
CHAT = Conversation(ConversationId("c1"), "owner", first_seen=20.0, last_seen=21.0)
OPERATION = Operation(
    OperationId("op_1"),
    "batch",
    "conversation",
    CHAT.id,
    SESSION.id,
    "/w",
    Status.RUNNING,
    Executed.UNKNOWN,
    "owner",
    created_at=30.0,
    key="k",
)
KEY = RequestKey(CHAT.id, "k", "print", OPERATION.id, accepted_at=30.0, expires_at=30.0 + DAY)
DELIVERY = Delivery(
    DeliveryId("dl_1"),
    "conversation",
    CHAT.id,
    SESSION.id,
    "/w",
    "result",
    "offered",
    '{"é":"\U0001f600"}',
    created_at=40.0,
    operation=OPERATION.id,
)
QUESTION = Question(
    QuestionId("q_1"),
    "conversation",
    CHAT.id,
    "owner",
    SESSION.id,
    "laptop",
    "/w",
    '{"question":"\u00e9?"}',
    Stage.ASKED,
    revision=0,
    version=0,
    asked_at=40.0,
    changed_at=40.0,
)
ANSWERED = replace(
    QUESTION,
    stage=Stage.ANSWERED,
    revision=1,
    version=1,
    changed_at=41.0,
    loaded_at=40.5,
    answer='{"text":"x"}',
)
LINE = AuditLine(at=50.0, who="owner", what="call", target="s1", size=7, outcome="ok", duration_ms=3)


@pytest.fixture(params=[SqliteStore, InlineSqliteStore])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return lambda: request.param.open(tmp_path / "broker.db")


@pytest.fixture
async def store(open_store: Open) -> AsyncIterator[Store]:
    store = await open_store()
    yield store
    await store.close()


async def fill(store: Store) -> None:
    """One row of each kind, all of them live."""
    await store.save_device(DEVICE)
    assert not await store.upsert_sessions([SESSION])
    await store.save_binding(CHAT, SESSION.id, at=22.0)
    await store.accept_key(KEY, OPERATION)
    await store.save_delivery(DELIVERY)
    await store.save_question(QUESTION)
    await store.append_audit([LINE])


async def test_what_was_saved_is_loaded_after_a_restart(open_store: Open) -> None:
    """B01: bindings, devices, sessions and what is under way outlive the broker."""
    store = await open_store()
    await fill(store)
    await store.close()
    store = await open_store()
    found = await store.load(now=31.0)
    await store.close()
    assert found.devices == (DEVICE,)
    assert found.sessions == (SESSION,)
    assert found.conversations == (CHAT,)
    assert found.bindings == (Binding(CHAT.id, SESSION.id, 22.0),)
    assert found.operations == (OPERATION,)
    assert found.keys == (KEY,)
    assert found.deliveries == (DELIVERY,)
    assert isinstance(found.operations[0].status, Status)
    assert isinstance(found.operations[0].executed, Executed)


async def test_an_empty_store_loads_empty(store: Store) -> None:
    found = await store.load(now=0.0)
    assert not any((found.devices, found.sessions, found.conversations, found.bindings))
    assert not any((found.operations, found.keys, found.deliveries))


async def test_closing_twice_is_closing_once(open_store: Open) -> None:
    store = await open_store()
    await store.close()
    await store.close()


# Devices and sessions.


async def test_a_device_is_revoked_once_and_stays_known(store: Store) -> None:
    await store.save_device(DEVICE)
    assert await store.revoke_device(DEVICE.id, at=60.0)
    assert not await store.revoke_device(DEVICE.id, at=70.0)
    assert not await store.revoke_device(DeviceId("nobody"), at=70.0)
    assert (await store.load(0.0)).devices == (replace(DEVICE, token_hash="", revoked_at=60.0),)


async def test_a_device_paired_anew_keeps_its_first_day(store: Store) -> None:
    await store.save_device(DEVICE)
    again = replace(DEVICE, name="desk", token_hash="other", created_at=99.0, last_seen=99.0)
    await store.save_device(again)
    assert (await store.load(0.0)).devices == (replace(again, created_at=DEVICE.created_at),)


async def test_a_session_never_changes_its_device(store: Store) -> None:
    await fill(store)
    other = replace(DEVICE, id=DeviceId("d2"))
    await store.save_device(other)
    second = replace(SESSION, id=SessionId("s2"))
    stolen = replace(SESSION, device=other.id, cwd="/stolen")
    assert await store.upsert_sessions([stolen, second]) == {SESSION.id}
    assert set((await store.load(0.0)).sessions) == {SESSION, second}


async def test_a_session_that_registers_again_is_the_same_session(store: Store) -> None:
    """B37: the id stays, what the agent says of it is news, `first_seen` is history."""
    await fill(store)
    await store.end_session(SESSION.id, at=12.0)
    assert (await store.load(0.0)).sessions[0].ended_at == 12.0
    again = replace(SESSION, agent="codex", cwd="/x", model=None, first_seen=90.0, last_seen=91.0)
    assert not await store.upsert_sessions([again])
    assert (await store.load(0.0)).sessions == (replace(again, first_seen=SESSION.first_seen),)


async def test_sessions_come_in_the_order_of_the_automatic_choice(store: Store) -> None:
    await store.save_device(DEVICE)
    for name, first_seen in (("b", 3.0), ("a", 2.0), ("c", 1.0)):
        await store.upsert_sessions([replace(SESSION, id=SessionId(name), first_seen=first_seen)])
    assert [session.id for session in (await store.load(0.0)).sessions] == ["c", "a", "b"]


async def test_last_seen_moves_forward_only(store: Store) -> None:
    await fill(store)
    await store.touch_devices([(DEVICE.id, 80.0), (DEVICE.id, 70.0), (DeviceId("nobody"), 1.0)])
    await store.touch_sessions([(SESSION.id, 81.0), (SESSION.id, 71.0)])
    later = replace(CHAT, principal="somebody else", first_seen=0.0, last_seen=82.0)
    await store.touch_conversations([later, replace(CHAT, last_seen=72.0)])
    found = await store.load(0.0)
    assert found.devices == (replace(DEVICE, last_seen=80.0),)
    assert found.sessions == (replace(SESSION, last_seen=81.0),)
    assert found.conversations == (replace(CHAT, last_seen=82.0),)


async def test_an_empty_batch_is_fine(store: Store) -> None:
    await store.touch_sessions([])
    await store.touch_conversations([])
    await store.append_audit([])
    await store.mark_sent([], at=1.0)


# Bindings.


async def test_a_binding_stays_what_it_was_until_it_is_changed(store: Store) -> None:
    """B45: the stored id counts, whoever registers first after a restart."""
    await fill(store)
    second = replace(SESSION, id=SessionId("s2"))
    assert not await store.upsert_sessions([second])
    await store.end_session(SESSION.id, at=12.0)
    assert (await store.load(0.0)).bindings == (Binding(CHAT.id, SESSION.id, 22.0),)
    await store.save_binding(CHAT, second.id, at=23.0)
    assert (await store.load(0.0)).bindings == (Binding(CHAT.id, second.id, 23.0),)


async def test_a_binding_goes_and_its_conversation_stays(store: Store) -> None:
    await fill(store)
    assert await store.delete_binding(CHAT.id)
    assert not await store.delete_binding(CHAT.id)
    found = await store.load(0.0)
    assert found.bindings == ()
    assert found.conversations == ()
    await store.save_binding(replace(CHAT, first_seen=90.0, last_seen=90.0), SESSION.id, at=90.0)
    assert (await store.load(0.0)).conversations == (replace(CHAT, last_seen=90.0),)


# Operations and keys.


async def test_a_finished_operation_is_no_longer_open_and_can_be_read(store: Store) -> None:
    await fill(store)
    await store.finish_operation(OPERATION.id, Status.DONE, Executed.YES, at=33.0)
    assert (await store.load(31.0)).operations == ()
    done = replace(OPERATION, status=Status.DONE, executed=Executed.YES, finished_at=33.0)
    assert await store.operation(OPERATION.id) == done
    assert await store.operation(OperationId("op_none")) is None


async def test_a_late_result_replaces_our_doubt(store: Store) -> None:
    await store.save_operation(OPERATION)
    doubt = replace(DELIVERY, body="{}")
    await store.finish_operation(OPERATION.id, Status.INTERRUPTED, Executed.UNKNOWN, at=33.0, delivery=doubt)
    await store.settle([doubt.id], at=33.5)
    await store.finish_operation(OPERATION.id, Status.DONE, Executed.YES, at=34.0, delivery=DELIVERY)
    found = await store.operation(OPERATION.id)
    assert found is not None
    assert (found.status, found.executed, found.finished_at) == (Status.DONE, Executed.YES, 34.0)
    assert (await store.load(31.0)).deliveries == (DELIVERY,)


async def test_an_operation_and_its_delivery_are_saved_together_or_not_at_all(store: Store) -> None:
    await store.save_operation(OPERATION)
    broken = replace(DELIVERY, status="nonsense")
    with pytest.raises(Exception, match="constraint"):
        await store.finish_operation(OPERATION.id, Status.DONE, Executed.YES, at=33.0, delivery=broken)
    assert await store.operation(OPERATION.id) == OPERATION
    await store.finish_operation(OPERATION.id, Status.DONE, Executed.YES, at=33.0, delivery=DELIVERY)
    found = await store.load(31.0)
    assert (found.operations, found.deliveries) == ((), (DELIVERY,))


async def test_saving_an_operation_again_changes_only_how_far_it_is(store: Store) -> None:
    await store.save_operation(OPERATION)
    await store.save_operation(
        replace(OPERATION, status=Status.ASKING, session=SessionId("other"), cwd="/other")
    )
    assert await store.operation(OPERATION.id) == replace(OPERATION, status=Status.ASKING)


async def test_a_key_stands_for_its_first_request(store: Store) -> None:
    """B48: the repeated request finds the operation of the first one and saves nothing of its own."""
    assert await store.accept_key(KEY, OPERATION) == KEY
    repeated = replace(OPERATION, id=OperationId("op_2"))
    assert await store.accept_key(replace(KEY, operation=repeated.id, accepted_at=35.0), repeated) == KEY
    assert await store.operation(repeated.id) is None
    assert (await store.load(35.0)).keys == (KEY,)


async def test_a_key_belongs_to_its_origin(store: Store) -> None:
    await store.accept_key(KEY, OPERATION)
    other = replace(KEY, origin="c2", operation=OperationId("op_2"))
    assert await store.accept_key(other, replace(OPERATION, id=other.operation)) == other


async def test_a_key_is_free_again_when_it_has_expired(store: Store) -> None:
    await store.accept_key(KEY, OPERATION)
    at = KEY.expires_at
    assert (await store.load(at - 0.001)).keys == (KEY,)
    assert (await store.load(at)).keys == ()
    later = replace(KEY, operation=OperationId("op_2"), accepted_at=at, expires_at=at + DAY)
    assert await store.accept_key(later, replace(OPERATION, id=later.operation)) == later


async def test_a_key_is_released_only_for_its_own_operation(store: Store) -> None:
    await store.accept_key(KEY, OPERATION)
    await store.release_key(KEY.origin, KEY.key, OperationId("op_2"))
    assert (await store.load(31.0)).keys == (KEY,)
    await store.release_key(KEY.origin, KEY.key, OPERATION.id)
    assert (await store.load(31.0)).keys == ()


async def test_of_many_requests_with_one_key_exactly_one_is_accepted(open_store: Open) -> None:
    """B48: also when they come through several brokers at the same moment."""
    stores = [await open_store() for _ in range(4)]
    found: list[RequestKey] = []

    async def accept(store: Store, number: int) -> None:
        operation = replace(OPERATION, id=OperationId(f"op_{number}"))
        found.append(await store.accept_key(replace(KEY, operation=operation.id), operation))

    async with anyio.create_task_group() as group:
        for number in range(16):
            group.start_soon(accept, stores[number % 4], number)
    snapshot = await stores[0].load(31.0)
    for store in stores:
        await store.close()
    assert len(found) == 16
    assert set(found) == set(snapshot.keys)
    assert [operation.id for operation in snapshot.operations] == [snapshot.keys[0].operation]


# Deliveries.


async def test_a_delivery_goes_from_offered_to_sent_to_settled(store: Store) -> None:
    await store.save_delivery(DELIVERY)
    await store.mark_sent([DELIVERY.id], at=41.0)
    sent = replace(DELIVERY, status="sent", sent_at=41.0)
    assert await store.deliveries_of("conversation", CHAT.id) == (sent,)
    await store.mark_unsent([DELIVERY.id])
    assert await store.deliveries_of("conversation", CHAT.id) == (replace(sent, status="offered"),)
    await store.mark_sent([DELIVERY.id], at=42.0)
    await store.settle([DELIVERY.id], at=43.0)
    assert await store.deliveries_of("conversation", CHAT.id) == ()
    assert (await store.load(0.0)).deliveries == ()


async def test_what_is_settled_stays_settled(store: Store) -> None:
    """B41: an item that comes again is known by its id."""
    await store.save_delivery(DELIVERY)
    await store.settle([DELIVERY.id], at=43.0)
    await store.mark_sent([DELIVERY.id], at=44.0)
    await store.mark_unsent([DELIVERY.id])
    await store.save_delivery(DELIVERY)
    assert await store.deliveries_of("conversation", CHAT.id) == ()


async def test_deliveries_come_oldest_first_and_only_to_their_origin(store: Store) -> None:
    for number, created_at in enumerate((3.0, 1.0, 2.0)):
        await store.save_delivery(replace(DELIVERY, id=DeliveryId(f"dl_{number}"), created_at=created_at))
    await store.save_delivery(replace(DELIVERY, id=DeliveryId("dl_shell"), origin_kind="shell"))
    found = await store.deliveries_of("conversation", CHAT.id)
    assert [row.created_at for row in found] == [1.0, 2.0, 3.0]
    assert await store.deliveries_of("conversation", CHAT.id, limit=2) == found[:2]
    assert [row.id for row in await store.deliveries_of("shell", CHAT.id)] == ["dl_shell"]


# Questions.


async def test_a_question_is_there_after_a_restart(open_store: Open) -> None:
    """B51 B55: also before anybody answered it."""
    store = await open_store()
    await store.save_question(QUESTION)
    await store.save_question(replace(QUESTION, asked="another"))
    await store.close()
    store = await open_store()
    found = await store.question(QUESTION.id)
    assert found == QUESTION
    assert isinstance(found.stage, Stage)
    assert await store.question(QuestionId("q_none")) is None
    await store.close()


async def test_of_two_changes_at_once_one_is_taken(store: Store) -> None:
    """B53: the other is told, and nothing of it stays."""
    await store.save_question(QUESTION)
    assert await store.change_question(ANSWERED, replace(DELIVERY, kind="answer"))
    other = replace(ANSWERED, answer='{"text":"y"}', revision=7)
    assert not await store.change_question(other, replace(DELIVERY, id=DeliveryId("dl_2"), kind="answer"))
    assert await store.question(QUESTION.id) == ANSWERED
    assert [row.id for row in await store.deliveries_of("conversation", CHAT.id)] == [DELIVERY.id]


async def test_a_revision_takes_the_place_of_an_answer_that_was_not_sent(store: Store) -> None:
    await store.save_question(QUESTION)
    await store.change_question(ANSWERED, replace(DELIVERY, kind="answer"))
    revised = replace(ANSWERED, version=2, revision=2, changed_at=42.0)
    second = replace(DELIVERY, id=DeliveryId("dl_2"), kind="answer", created_at=42.0)
    assert await store.change_question(revised, second, superseded=DELIVERY.id)
    assert await store.deliveries_of("conversation", CHAT.id) == (second,)
    assert (await store.load(50.0)).deliveries == (second,)


async def test_only_questions_that_wait_for_their_origin_are_counted(store: Store) -> None:
    for number in range(3):
        await store.save_question(replace(QUESTION, id=QuestionId(f"q_{number}")))
    await store.save_question(replace(QUESTION, id=QuestionId("q_other"), origin="c2"))
    assert await store.open_questions("conversation", CHAT.id) == 3
    await store.change_question(replace(ANSWERED, id=QuestionId("q_0")))
    await store.change_question(replace(QUESTION, id=QuestionId("q_1"), stage=Stage.SHOWN, version=1))
    assert await store.open_questions("conversation", CHAT.id) == 2
    assert await store.open_questions("shell", CHAT.id) == 0


# The audit log.


async def test_the_audit_log_is_paged_newest_first(store: Store) -> None:
    await store.append_audit([replace(LINE, what=str(number)) for number in range(5)])
    first = await store.audit_page(limit=2)
    assert [line.what for line in first] == ["4", "3"]
    second = await store.audit_page(before=first[-1].id, limit=9)
    assert [line.what for line in second] == ["2", "1", "0"]
    assert replace(second[-1], id=None) == replace(LINE, what="0")


# The house.


async def test_meta_is_made_once(store: Store) -> None:
    assert await store.meta("hmac") is None
    assert await store.meta_once("hmac", "first") == "first"
    assert await store.meta_once("hmac", "second") == "first"
    assert await store.meta("hmac") == "first"


async def test_pruning_keeps_what_is_young_or_open(store: Store) -> None:
    """B38: nothing that waits to be delivered is tidied away."""
    await fill(store)
    before = await store.load(31.0)
    assert await store.prune(now=100.0, keep=Retention()) == 0
    assert await store.load(31.0) == before
    assert len(await store.audit_page()) == 1


async def test_pruning_forgets_what_is_old_one_step_at_a_time(store: Store) -> None:
    await fill(store)
    await store.finish_operation(OPERATION.id, Status.DONE, Executed.YES, at=33.0)
    await store.settle([DELIVERY.id], at=43.0)
    await store.save_delivery(replace(DELIVERY, id=DeliveryId("dl_2")))
    await store.revoke_device(DEVICE.id, at=60.0)
    others = [replace(CHAT, id=ConversationId(f"c{number}")) for number in range(2, 5)]
    await store.touch_conversations(others)
    gone = [await store.prune(now=1000 * DAY, keep=Retention(), max_rows=2) for _ in range(3)]
    (notice,) = await store.audit_page()
    assert (notice.target, notice.outcome) == (f"{DELIVERY.session} {DELIVERY.operation}", "given up")
    # key, operation, two deliveries, question, audit line, four conversations, session, device: two of each.
    assert sum(gone) == 12
    assert gone[1] >= 2
    assert gone[2] == 0
    found = await store.load(0.0)
    assert not any((found.devices, found.sessions, found.bindings, found.deliveries, found.keys))
    assert await store.operation(OPERATION.id) is None


async def test_pruning_keeps_a_bound_session_however_old(store: Store) -> None:
    await fill(store)
    await store.touch_conversations([replace(CHAT, last_seen=1000 * DAY)])
    await store.prune(now=1000 * DAY, keep=Retention())
    found = await store.load(0.0)
    assert [row.id for row in found.sessions] == [SESSION.id]
    assert [row.session for row in found.bindings] == [SESSION.id]


async def test_pruning_holds_the_audit_log_to_its_size(store: Store) -> None:
    await store.append_audit([replace(LINE, what=str(number)) for number in range(10)])
    keep = Retention(audit_lines=3)
    assert await store.prune(now=51.0, keep=keep, max_rows=5) == 5
    assert await store.prune(now=51.0, keep=keep, max_rows=5) == 2
    assert [line.what for line in await store.audit_page()] == ["9", "8", "7"]


async def test_a_backup_is_a_whole_registry(store: Store, tmp_path: Path) -> None:
    """B88: an online copy that opens by itself, private like the original."""
    await fill(store)
    target = tmp_path / "copy.db"
    await store.backup(target)
    assert target.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if "copy" in path.name] == ["copy.db"]
    copied = await SqliteStore.open(target)
    assert await copied.load(31.0) == await store.load(31.0)
    assert await copied.integrity_check() == ()
    await copied.close()


async def test_a_backup_never_replaces_a_file(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious", encoding="utf-8")
    with pytest.raises(PathExists):
        await store.backup(tmp_path / "mine")
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "precious"


async def test_a_sound_store_passes_its_check(store: Store) -> None:
    await fill(store)
    assert await store.integrity_check() == ()


async def test_a_cancelled_call_leaves_the_store_usable(store: Store) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.save_device(DEVICE)
    await store.save_device(DEVICE)
    assert (await store.load(0.0)).devices == (DEVICE,)


# Apps, consents, persons.

APP = App(AppId("a1"), "ChatGPT", '["https://chatgpt.com/cb"]', 60.0, 61.0)
GRANT = AppGrant(GrantId("g1"), APP.id, "https://b.example/mcp", 62.0, 62.5, "r", 99.0, "a", 70.0, "", 0.0)
PERSON = Subject("g1", "h", "allowed", 63.0, 63.5)


async def test_apps_consents_and_persons_outlive_the_broker(open_store: Open) -> None:
    store = await open_store()
    await store.save_grant(GRANT, APP)
    await store.save_subject(PERSON)
    await store.close()
    store = await open_store()
    found = await store.access()
    await store.close()
    assert (found.apps, found.grants, found.subjects) == ((APP,), (GRANT,), (PERSON,))


async def test_a_consent_goes_with_its_app(store: Store) -> None:
    await store.save_grant(GRANT, APP)
    await store.delete_app(APP.id)
    assert (await store.access()).grants == ()


async def test_tokens_change_and_a_consent_ends_alone(store: Store) -> None:
    await store.save_app(APP)
    await store.save_grant(GRANT, APP)
    newer = replace(GRANT, refresh_hash="r2", access_hash="a2", before_hash="a", before_until=70.0)
    await store.save_grant(newer, replace(APP, last_used=64.0))
    await store.touch_grants([(GRANT.id, 65.0), (GRANT.id, 1.0), (GrantId("?"), 1.0)])
    found = await store.access()
    assert found.grants == (replace(newer, last_used=65.0),)
    assert found.apps == (replace(APP, last_used=64.0),)
    await store.delete_grant(GRANT.id)
    assert (await store.access()).grants == ()
    assert len((await store.access()).apps) == 1


async def test_a_person_is_allowed_later_or_forgotten(store: Store) -> None:
    await store.save_subject(replace(PERSON, status="waiting"))
    await store.save_subject(replace(PERSON, last_seen=70.0))
    assert (await store.access()).subjects == (replace(PERSON, last_seen=70.0),)
    await store.delete_subject(PERSON.credential, PERSON.hash)
    assert (await store.access()).subjects == ()
