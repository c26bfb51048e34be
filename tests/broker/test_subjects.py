"""The persons behind a credential, on a real registry: who is pinned, who waits, what is kept of them."""

from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from chappie_broker.store.sqlite import InlineSqliteStore
from chappie_broker.subjects import MAX_WAITING, Subjects, name

from chappie_bridge.wire.errors import BadArguments, Forbidden
from chappie_bridge.wire.values import Caller

pytestmark = pytest.mark.anyio


def who(subject: str, credential: str = "") -> Caller:
    return Caller(principal="owner", source="openai", value="v1/a", subject=subject, credential=credential)


@asynccontextmanager
async def opened(path: Path) -> Any:
    store = await InlineSqliteStore.open(path)
    later: list[Any] = []
    subjects = Subjects(store, later.append, key=b"k" * 32, now=lambda: 1000.0 + len(later))
    subjects.load(await store.access())
    yield subjects
    for write in later:
        await write()
    await store.close()


async def test_the_first_person_of_a_credential_is_pinned_and_another_waits(tmp_path: Path) -> None:
    async with opened(tmp_path / "r.db") as subjects:
        subjects.admit(who(""))
        subjects.admit(who("v1/me"))
        with pytest.raises(Forbidden) as refused:
            subjects.admit(who("v1/other"))
        subjects.admit(who("v1/me"))
        subjects.admit(who("v1/other", "g2"))  # another credential, another first
    async with opened(tmp_path / "r.db") as subjects:
        with pytest.raises(Forbidden):
            subjects.admit(who("v1/other"))
        (waiting,) = [row for row in subjects.known() if row.status == "waiting"]
        assert f"subjects allow {name(waiting)}" in str(refused.value.hint)
        await subjects.allow(name(waiting))
        subjects.admit(who("v1/other"))
        subjects.admit(who("v1/me"))
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"v1/me" not in stored


async def test_when_all_of_a_credential_are_forgotten_the_next_one_is_pinned(tmp_path: Path) -> None:
    async with opened(tmp_path / "r.db") as subjects:
        subjects.admit(who("v1/me"))
        (row,) = subjects.known()
        await subjects.forget(name(row))
        subjects.admit(who("v1/other"))
        with pytest.raises(Forbidden):
            subjects.admit(who("v1/me"))
        with pytest.raises(BadArguments):
            await subjects.allow("nobody")


async def test_who_waits_is_bounded(tmp_path: Path) -> None:
    """S22"""
    async with opened(tmp_path / "r.db") as subjects:
        subjects.admit(who("v1/me"))
        for number in range(MAX_WAITING + 50):
            with pytest.raises(Forbidden):
                subjects.admit(who(f"v1/{number}"))
        assert len(subjects.known()) == MAX_WAITING + 1


async def test_the_persons_of_a_consent_that_is_over_are_forgotten(tmp_path: Path) -> None:
    async with opened(tmp_path / "r.db") as subjects:
        subjects.admit(who("v1/me", "a" * 32))
    async with opened(tmp_path / "r.db") as subjects:
        assert subjects.known() == ()
