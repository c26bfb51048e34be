"""Sessions started on request: only inside the owner's roots, and remembered across a crash."""

import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from chappie_agents import residency
from chappie_agents.attendant import AgentHost
from chappie_agents.hosts.builtin import Opened, open_session
from chappie_agents.residency import Residency

from chappie_bridge.wire.errors import BadArguments, Denied, Overloaded, PathMissing
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.messages import Failed, Register, Residence, SessionStarted, StartSession
from tests.agents.stage import FakeLink

pytestmark = pytest.mark.anyio

STALE = "s_0123456789abcdef0123"


class Place:
    """A root with a directory in it, one beside it, and the processes that started agents there."""

    def __init__(self, above: Path) -> None:
        self.above, self.root = above, above / "root"
        self.project = self.root / "project"
        self.project.mkdir(parents=True)
        (above / "root-beside").mkdir()
        self._all: list[Residency] = []

    def residency(self, *, fresh: bool = False) -> Residency:
        def open_one(directory: Path, session: SessionId | None) -> Opened:
            return open_session(
                directory,
                self.above / "state",
                new=session is None,
                resumed=session,
                environment={"CHAPPIE_SESSION": STALE},
                configuration=self.above / "configuration",
            )

        made = Residency((str(self.root),), self.above / "resident", open_one, fresh=fresh)
        self._all.append(made)
        return made

    def crash(self) -> None:
        """All locks are let go; nothing else is done."""
        for each in self._all:
            each.close()
        self._all.clear()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.crash()


async def test_each_start_is_a_session_of_its_own_whatever_the_environment_says(place: Place) -> None:
    """B34: never one that exists, although the environment names one and an ended one lies there."""
    made = place.residency()
    first, second = await made.start(str(place.project)), await made.start(str(place.project))
    place.crash()
    third = await place.residency(fresh=True).start(str(place.project))
    assert len({first.info.id, second.info.id, third.info.id, STALE}) == 4


@pytest.mark.parametrize("where", ["root-beside", "root/../root-beside", "link", "."])
async def test_outside_the_roots_nothing_is_started(place: Place, where: str) -> None:
    (place.above / "link").symlink_to(place.above / "root-beside")
    with pytest.raises(Denied):
        await place.residency().start(f"{place.above}/{where}")


async def test_a_link_into_a_root_is_inside_and_one_out_of_it_is_not(place: Place) -> None:
    (place.above / "in").symlink_to(place.project)
    (place.root / "out").symlink_to(place.above / "root-beside")
    made = place.residency()
    assert (await made.start(str(place.above / "in"))).info.cwd == str(place.project.resolve())
    with pytest.raises(Denied):
        await made.start(str(place.root / "out"))


async def test_a_missing_directory_is_not_made(place: Place) -> None:
    made = place.residency()
    with pytest.raises(PathMissing):
        await made.start(str(place.root / "new"))
    assert not (place.root / "new").exists()
    with pytest.raises(BadArguments):
        await made.start("project")


async def test_what_was_open_is_resumed_after_a_crash(place: Place) -> None:
    gone = place.root / "gone"
    gone.mkdir()
    made = place.residency()
    kept = await made.start(str(place.project))
    await made.start(str(gone))
    place.crash()
    gone.rmdir()
    for _ in range(2):
        assert [each.info.id for each in place.residency().resume()] == [kept.info.id]
        place.crash()
    assert place.residency(fresh=True).resume() == ()


async def test_a_session_that_somebody_else_holds_is_left_to_them(place: Place) -> None:
    kept = await place.residency().start(str(place.project))
    place.crash()
    other = open_session(place.project, place.above / "state")
    assert other.session.info.id == kept.info.id
    assert place.residency().resume() == ()
    other.close()


async def test_one_process_starts_the_agents_of_a_state_directory(place: Place) -> None:
    place.residency()
    with pytest.raises(BlockingIOError):
        place.residency()


async def test_the_number_of_sessions_has_a_bound(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "MAX_SESSIONS", 1)
    made = place.residency()
    await made.start(str(place.root))
    with pytest.raises(Overloaded):
        await made.start(str(place.root))


async def test_the_broker_is_told_the_roots_and_of_a_session_before_it_registers(place: Place) -> None:
    link, host = FakeLink(), AgentHost(place.residency())
    async with anyio.create_task_group() as group:
        await group.start(host.run)
        host.link_up(link)
        assert link.all(Residence)[0].roots == (str(place.root.resolve()),)
        host.received(link, StartSession(request=7, directory=str(place.project)))
        register = await link.one(Register)
        (started,) = link.all(SessionStarted)
        assert (started.request, started.session) == (7, register.session.id)
        assert link.sent.index(started) < link.sent.index(register)
        host.received(link, StartSession(request=8, directory=os.sep))
        assert (await link.reply(Failed, 8)).failure.code == "denied"
        group.cancel_scope.cancel()
