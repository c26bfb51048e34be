"""Sessions that register at one moment, and the commits that they take."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import pytest
from chappie_broker.arrivals import AT_ONCE, Arrivals
from chappie_broker.store.port import Store, StoreFull
from chappie_broker.store.rows import Session

from chappie_bridge.wire.errors import BridgeError, DiskFull, SessionConflict
from chappie_bridge.wire.ids import DeviceId, SessionId

pytestmark = pytest.mark.anyio


class Commits:
    """A store that knows how often it was asked, and what is to be done later."""

    def __init__(self, error: Exception | None = None) -> None:
        self.made: list[list[str]] = []
        self.later: list[Callable[[], Awaitable[None]]] = []
        self._error = error

    async def upsert_sessions(self, sessions: Sequence[Session]) -> frozenset[str]:
        self.made.append([session.id for session in sessions])
        if self._error is not None:
            raise self._error
        return frozenset(session.id for session in sessions if session.device != "d1")

    async def write(self) -> None:
        while self.later:
            await self.later.pop(0)()


def row(number: int, device: str = "d1") -> Session:
    return Session(SessionId(f"s{number}"), DeviceId(device), "a", "/", first_seen=1.0, last_seen=1.0)


def arrivals(commits: Commits) -> Arrivals:
    return Arrivals(cast("Store", commits), commits.later.append)


async def test_those_who_come_together_share_a_commit() -> None:
    commits, told = Commits(), list[BridgeError | None]()
    coming = arrivals(commits)
    for number in range(AT_ONCE + 2):
        coming.add(row(number), told.append)
    assert told == []
    await commits.write()
    assert [len(made) for made in commits.made] == [AT_ONCE, 2]
    assert told == [None] * (AT_ONCE + 2)
    coming.add(row(0), told.append)
    await commits.write()
    assert commits.made[2:] == [["s0"]]


async def test_whose_session_belongs_to_another_device_is_told_and_nobody_else() -> None:
    commits, told = Commits(), dict[str, BridgeError | None]()

    def tells(name: str) -> Callable[[BridgeError | None], None]:
        def tell(error: BridgeError | None) -> None:
            told[name] = error
            raise BrokenPipeError  # and who cannot be told is nobody else's trouble

        return tell

    coming = arrivals(commits)
    for number, device in enumerate(("d1", "d2", "d1")):
        coming.add(row(number, device), tells(f"s{number}"))
    await commits.write()
    assert told["s0"] is told["s2"] is None
    assert isinstance(told["s1"], SessionConflict)


async def test_a_registry_that_takes_nothing_is_told_to_all() -> None:
    commits, told = Commits(StoreFull(Path("registry"))), list[BridgeError | None]()
    coming = arrivals(commits)
    for number in range(3):
        coming.add(row(number), told.append)
    await commits.write()
    assert [type(error) for error in told] == [DiskFull] * 3


async def test_who_comes_after_an_end_is_written_after_it() -> None:
    """Else a session that left and came back would stand in the registry as gone."""
    commits = Commits()
    coming = arrivals(commits)
    coming.add(row(1), lambda _: None)

    async def ended() -> None:
        commits.made.append(["end of s2"])

    coming.seal()
    commits.later.append(ended)
    coming.add(row(2), lambda _: None)
    await commits.write()
    assert commits.made == [["s1"], ["end of s2"], ["s2"]]
