"""Which session is a conversation's default while requests of the same conversation save one side by side."""

from pathlib import Path

import anyio
import pytest
from chappie_broker.store.port import Store, StoreFull

from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.requests import ListSessions, OpenSession, Submit
from chappie_bridge.wire.values import NewCall
from tests.broker.rig import ScriptedAgent, broker, chat, settle_down

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("fails", [False, True], ids=["saved", "the disk is full"])
async def test_a_default_that_is_being_saved_decides_for_those_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A call that chose by itself waits to see whether the `init` beside it is saved; when it is not, the
    call saves its own choice: no answer names a default that a restart would forget."""
    going, go_on = anyio.Event(), anyio.Event()
    saved, refused = list[str](), list[str]()
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        for name in ("s1", "s2"):
            agent.register(name)
        await settle_down()
        store: Store = board._store
        save = store.save_binding

        async def slow(conversation: object, session: str, at: float) -> None:
            if session == "s2":
                going.set()
                await go_on.wait()
                if fails:
                    raise StoreFull(tmp_path)
            await save(conversation, session, at)
            saved.append(session)

        monkeypatch.setattr(store, "save_binding", slow)

        async def init() -> None:
            try:
                await board.init(OpenSession(caller=chat("a"), session="s2"))
            except BridgeError as error:
                refused.append(error.code)

        async def call() -> None:
            await board.call(Submit(caller=chat("a"), calls=(NewCall(name="noop", arguments={}),)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(init)
            await going.wait()
            tasks.start_soon(call)
            await settle_down()
            go_on.set()
        assert refused == ["disk_full"] * fails
        listed = await board.sessions(ListSessions(caller=chat("a")))
        assert [listed.binding] == saved == ["s1" if fails else "s2"]
        assert board._targets._reserved == board._targets._saving == {}


async def test_a_default_that_was_only_reserved_gives_way_to_the_one_that_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three first requests side by side: one names s2, the next reserves s1, the last finds that."""
    going, go_on = anyio.Event(), anyio.Event()
    ran: dict[str, str] = {}
    async with broker(tmp_path) as board:
        agent = ScriptedAgent(board.dispatch)
        for name in ("s1", "s2"):
            agent.register(name)
        await settle_down()
        store: Store = board._store
        save = store.save_binding

        async def slow(conversation: object, session: str, at: float) -> None:
            going.set()
            await go_on.wait()
            await save(conversation, session, at)

        monkeypatch.setattr(store, "save_binding", slow)

        async def call(name: str, session: str | None = None) -> None:
            calls = (NewCall(name="noop", arguments={}),)
            view = await board.call(Submit(caller=chat("a"), session=session, calls=calls))
            ran[name] = view.target.session

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, "first", "s2")
            await going.wait()
            for name in ("second", "third"):
                tasks.start_soon(call, name)
                await settle_down()
            go_on.set()
        listed = await board.sessions(ListSessions(caller=chat("a")))
    assert listed.binding == "s2"
    assert ran == {"first": "s2", "second": "s2", "third": "s2"}
