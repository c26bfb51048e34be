"""`init` with `create`: who is asked to start a session, who gets it, and what is said when nobody may."""

from pathlib import Path

import anyio
import pytest

from chappie_bridge.wire.errors import (
    BadArguments,
    Denied,
    Forbidden,
    NoFreeSession,
    NoSession,
    PathMissing,
    SessionOffline,
    Timeout,
)
from chappie_bridge.wire.messages import StartSession
from chappie_bridge.wire.requests import OpenSession, SessionOpened
from chappie_bridge.wire.values import Caller
from tests.broker.rig import ScriptedAgent, agent, broker, chat, settle_down

pytestmark = pytest.mark.anyio


def create(caller: Caller, directory: str = "/work/a", **more: object) -> OpenSession:
    return OpenSession(caller=caller, directory=directory, create=True, **more)


def asked(resident: ScriptedAgent) -> list[str]:
    return [message.directory for message in resident.got if isinstance(message, StartSession)]


async def test_a_session_is_started_where_the_owner_allowed_it(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        resident = ScriptedAgent(board.dispatch)
        resident.reside("/work")
        opened = await board.init(create(chat("one")))
        assert opened.selection == "created"
        assert (opened.session.id, opened.session.cwd) == ("started-laptop-0", "/work/a")
        again = await board.init(OpenSession(caller=chat("one")))
        assert (again.selection, again.session.id) == ("existing", opened.session.id)


async def test_the_same_init_again_starts_nothing_more(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        resident = ScriptedAgent(board.dispatch)
        resident.reside("/home/me/src")
        first = await board.init(create(chat("one"), "~/src/a"))
        second = await board.init(create(chat("one"), "~/src/a"))
        assert (second.selection, second.session.id) == ("existing", first.session.id)
        assert resident.started == [first.session.id]
        third = await board.init(create(chat("one"), "~/src/b"))
        assert third.selection == "created"


async def test_the_same_init_twice_at_once_starts_one_session(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        resident = ScriptedAgent(board.dispatch)
        resident.reside("/work")
        got: list[SessionOpened] = []

        async def one() -> None:
            got.append(await board.init(create(chat("one"))))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
        assert {opened.session.id for opened in got} == {"started-laptop-0"}
        assert sorted(opened.selection for opened in got) == ["created", "existing"]


async def test_two_conversations_that_create_in_one_directory_get_two_sessions(tmp_path: Path) -> None:
    """B34: also while a third waits for whatever session comes."""
    async with broker(tmp_path) as board:
        resident = ScriptedAgent(board.dispatch)
        resident.reside("/work")
        got: dict[str, str] = {}

        async def one(name: str) -> None:
            got[name] = (await board.init(create(chat(name)))).session.id

        async def any_session() -> None:
            with pytest.raises((NoSession, NoFreeSession)):
                await board.init(OpenSession(caller=chat("third"), wait=0.2))

        async with anyio.create_task_group() as group:
            group.start_soon(any_session)
            await settle_down()
            group.start_soon(one, "one")
            group.start_soon(one, "two")
        assert sorted(got.values()) == ["started-laptop-0", "started-laptop-1"]


async def test_a_free_session_of_the_directory_comes_first(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        resident = ScriptedAgent(board.dispatch)
        resident.reside("/work")
        resident.register("there", cwd="/work/a")
        await settle_down()
        opened = await board.init(create(chat("one")))
        assert (opened.selection, opened.session.id) == ("automatic", "there")
        assert not asked(resident)


async def test_without_create_nobody_is_asked(tmp_path: Path) -> None:
    async with broker(tmp_path, session_wait=0) as board:
        resident = ScriptedAgent(board.dispatch)
        resident.reside("/work")
        with pytest.raises(NoSession):
            await board.init(OpenSession(caller=chat("one"), directory="/work/a"))
        assert not asked(resident)


async def test_outside_all_roots_the_error_names_them_and_says_what_to_do(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        resident = ScriptedAgent(board.dispatch)
        resident.reside("/work")
        with pytest.raises(Denied) as caught:
            await board.init(create(chat("one"), "/etc"))
        assert caught.value.data == {"residents": [{"device": "laptop", "roots": ["/work"]}]}
        assert "agent_roots" in str(caught.value.hint)
        with pytest.raises(PathMissing):
            await board.init(create(chat("one"), "/work/missing"))
        assert not resident.started


async def test_without_a_resident_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    async with broker(tmp_path, session_wait=0) as board:
        with pytest.raises(NoSession) as none:
            await board.init(create(chat("one")))
        assert "agent --daemon" in str(none.value.hint)
        plain = ScriptedAgent(board.dispatch)
        plain.register("elsewhere", cwd="/other")
        await settle_down()
        with pytest.raises(NoFreeSession) as taken:
            await board.init(create(chat("one")))
        assert "agent --daemon" in str(taken.value.hint)
        assert taken.value.data is not None
        assert taken.value.data["sessions"]


async def test_a_resident_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        resident = ScriptedAgent(board.dispatch)

        async def one() -> None:
            assert (await board.init(create(chat("one")))).selection == "created"

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            await settle_down()
            resident.reside("/work")


async def test_the_device_whose_roots_hold_the_directory_is_asked_first(tmp_path: Path) -> None:
    async with broker(tmp_path, devices=("laptop", "desk")) as board:
        one = ScriptedAgent(board.dispatch)
        two = ScriptedAgent(board.dispatch, "desk", "i2")
        one.reside("/work")
        two.reside("/srv")
        assert (await board.init(create(chat("one"), "/srv/x"))).session.id == "started-desk-0"
        assert not asked(one)
        with pytest.raises(Denied):
            await board.init(create(chat("two"), "/mnt"))
        assert asked(one) == ["/mnt"], "a link there may lead into a root"


async def test_a_device_that_left_is_asked_no_more(tmp_path: Path) -> None:
    async with broker(tmp_path, session_wait=0) as board:
        resident = ScriptedAgent(board.dispatch)
        resident.reside("/work")
        board.dispatch.link_gone(resident)
        with pytest.raises(NoSession):
            await board.init(create(chat("one")))
        assert not asked(resident)


async def test_a_session_that_never_registers_costs_the_deadline_at_most(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        resident = ScriptedAgent(board.dispatch)
        resident.reside("/work")
        resident.half = True
        with pytest.raises(Timeout):
            await board.init(create(chat("one"), wait=0.05))
        resident.register("started-laptop-0", cwd="/work/a")
        await settle_down()
        late = await board.init(create(chat("two")))
        assert (late.selection, late.session.id) == ("automatic", "started-laptop-0"), "it is free then"


async def test_a_device_that_leaves_while_it_starts_one_is_an_error_at_once(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        resident = ScriptedAgent(board.dispatch)
        resident.reside("/work")
        resident.half = True

        async def one() -> None:
            with pytest.raises(SessionOffline):
                await board.init(create(chat("one")))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            await settle_down()
            board.dispatch.link_gone(resident)


async def test_sessions_start_no_agents_and_paths_are_absolute(tmp_path: Path) -> None:
    async with broker(tmp_path) as board:
        resident = ScriptedAgent(board.dispatch)
        resident.reside("/work")
        with pytest.raises(Forbidden):
            await board.init(create(agent("s1")))
        with pytest.raises(BadArguments):
            await board.init(create(chat("one"), "a/b"))
        opened = await board.init(create(Caller(principal="owner", source="none")))
        assert (opened.selection, opened.bound) == ("created", False)
