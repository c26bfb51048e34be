"""Files from one device to another, whatever happens on the way: the right bytes or a clear error."""

import base64
import hashlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from chappie_agents import part as parts
from chappie_agents.sinks import Permit
from chappie_broker import relay

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.errors import BridgeError, Executed, PathMissing
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.reference import parse
from chappie_bridge.wire.requests import FetchBytes, ListSessions, Push, Submit, Transfer, Upload
from chappie_bridge.wire.transfer import WINDOW, Move
from chappie_bridge.wire.values import Caller, NewCall, Origin, RemotePaths
from tests.peer.link_rig import room
from tests.peer.transfer_rig import CHAT, ELSE, Agent, World, copy, world

pytestmark = pytest.mark.anyio


@pytest.fixture
def here() -> Iterator[Path]:
    with room() as directory:
        yield directory


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def until(condition: Callable[[], object]) -> None:
    """Of what lies on the disk, which tells nobody when it changes."""
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.001)


async def gone_through(agent: Agent) -> None:
    """Until bytes have been written at this agent."""
    await until(lambda: any((agent.directory / name).stat().st_size for name in agent.leftovers()))


async def test_files_move_between_two_devices(tmp_path: Path, here: Path) -> None:
    sizes = {"empty": 0, "one": 1, "less": 65535, "chunk": 65536, "more": 65537, "big": 5_000_001}
    async with world(tmp_path, here) as w:
        a, b = await w.agent("a"), await w.agent("b")
        for name, size in sizes.items():
            (a.directory / name).write_bytes(os.urandom(size))
        view = await w.move(copy(a, b, *sizes))
        assert (view.status, view.executed) == (Status.DONE, Executed.YES)
        for name, report in zip(sizes, view.files, strict=True):
            data = (a.directory / name).read_bytes()
            assert (b.directory / name).read_bytes() == data
            assert (report.status, report.moved, report.sha256) == (Move.DONE, len(data), sha(data))
        assert b.leftovers() == []
        back = Transfer(
            caller=CHAT,
            session=b.id,
            paths=("big",),
            sink=RemotePaths(session=a.id, paths=("deep/copy of big",)),
        )
        assert (await w.move(back)).status is Status.DONE
        assert (a.directory / "deep/copy of big").read_bytes() == (a.directory / "big").read_bytes()


async def test_both_ends_are_told_who_asked(tmp_path: Path, here: Path) -> None:
    async with world(tmp_path, here) as w:
        a, b = await w.agent("a"), await w.agent("b")
        (a.directory / "file").write_bytes(b"data")
        asked: list[tuple[SessionId, bool, object]] = []
        for agent in (a, b):
            files = agent.opened.session._files
            for part in (files._sources, files._sinks):
                part._permit = _watched(agent.id, part._permit, asked)
        copied = await w.move(copy(a, b, "file"))
        exported = await w.move(Transfer(caller=ELSE, session=a.id, paths=("file",)))
        origins = []
        for view in (copied, exported):
            assert view.status is Status.DONE
            operation = w.broker.dispatch.ledger.get(view.operation)
            assert operation is not None
            origins.append(operation.origin)
        assert origins[0] != origins[1]
        assert asked == [(a.id, False, origins[0]), (b.id, True, origins[0]), (a.id, False, origins[1])]


def _watched(name: SessionId, permit: Permit, asked: list[tuple[SessionId, bool, object]]) -> Permit:
    async def watched(path: str, *, writing: bool, origin: Origin | None) -> Path:
        asked.append((name, writing, origin))
        return await permit(path, writing=writing, origin=origin)

    return watched


async def test_each_file_of_a_batch_has_its_own_outcome(tmp_path: Path, here: Path) -> None:
    """Of five, one is missing and one is cancelled half-way: the other three stay."""
    async with world(tmp_path, here) as w:
        a, b = await w.agent("a"), await w.agent("b")
        for name in ("one", "two", "three"):
            (a.directory / name).write_bytes(name.encode())
        (a.directory / "huge").touch()
        os.truncate(a.directory / "huge", 200_000_000_000)
        view = await w.broker.transfer(copy(a, b, "one", "missing", "two", "three", "huge", wait=0))
        assert view.status in (Status.QUEUED, Status.RUNNING)
        operation = w.broker.dispatch.ledger.get(view.operation)
        assert operation is not None
        with anyio.fail_after(20):
            while sum(each.status is Move.DONE for each in operation.files()) < 3 or b.leftovers() == []:
                await operation.wait()
        rows = (await w.broker.sessions(ListSessions(caller=CHAT))).sessions
        assert all(row.transfers[0].operation == view.operation for row in rows)
        assert all(row.transfers[0].files == 5 for row in rows)
        await w.broker.call(Submit(caller=CHAT, operation=view.operation, cancel=True))
        view = await w.end(view)
        assert view.status is Status.CANCELLED
        assert view.executed is Executed.YES
        assert [each.status for each in view.files] == [
            Move.DONE,
            Move.REFUSED,
            Move.DONE,
            Move.DONE,
            Move.FAILED,
        ]
        codes = [each.error.code if each.error else None for each in view.files]
        assert codes == [None, "path_missing", None, None, "cancelled"]
        for name in ("one", "two", "three"):
            assert (b.directory / name).read_bytes() == name.encode()
        await until(lambda: not b.leftovers())
        assert not (b.directory / "huge").exists()
        rows = (await w.broker.sessions(ListSessions(caller=CHAT))).sessions
        assert all(row.transfers == () for row in rows)


async def test_what_does_not_fit_is_refused_before_anything_moves(tmp_path: Path, here: Path) -> None:
    async with world(tmp_path, here) as w:
        a, b = await w.agent("a"), await w.agent("b")
        (a.directory / "dir").mkdir()
        (a.directory / "file").write_bytes(b"new")
        (b.directory / "file").write_bytes(b"old")
        view = await w.move(copy(a, b, "dir", "file"))
        assert (view.status, view.executed) == (Status.FAILED, Executed.NO)
        assert [each.error.code for each in view.files if each.error] == ["not_a_file", "path_exists"]
        assert "archive" in str(view.files[0].error)
        assert (b.directory / "file").read_bytes() == b"old"
        assert (await w.move(copy(a, b, "file", overwrite=True))).status is Status.DONE
        assert (b.directory / "file").read_bytes() == b"new"
        for wrong in (
            Transfer(caller=CHAT, session=b.id, paths=()),
            Transfer(caller=CHAT, session=b.id, paths=("x",), source=RemotePaths(session=a.id, paths=())),
            Transfer(caller=CHAT, session=b.id, paths=("x",), attachments=(), uploads=()),
            copy(a, b, "chappie://session/x/file/y/z"),
        ):
            with pytest.raises(BridgeError) as refused:
                await w.broker.transfer(wrong)
            assert refused.value.code == "bad_arguments"
        unknown = RemotePaths(session=SessionId("nobody"), paths=("x",))
        with pytest.raises(BridgeError) as refused:
            await w.broker.transfer(Transfer(caller=CHAT, session=b.id, paths=("x",), source=unknown))
        assert refused.value.code == "unknown_session"


async def test_other_work_goes_on_while_a_file_moves(tmp_path: Path, here: Path) -> None:
    async with world(tmp_path, here) as w:
        a, b = await w.agent("a"), await w.agent("b")
        (a.directory / "huge").touch()
        os.truncate(a.directory / "huge", 200_000_000_000)
        view = await w.broker.transfer(copy(a, b, "huge", wait=0))
        await until(b.leftovers)
        ls = Submit(caller=CHAT, session=b.id, calls=(NewCall(name="ls", arguments={}),), wait=20)
        assert (await w.broker.call(ls)).status is Status.DONE
        await w.broker.call(Submit(caller=CHAT, operation=view.operation, cancel=True))
        assert (await w.end(view)).status is Status.CANCELLED


@pytest.mark.parametrize("seed", range(4))
async def test_fifty_cuts_of_either_link_lose_nothing(
    tmp_path: Path, here: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B82: it goes on from what was written, and sends no more than a window again for each cut."""
    monkeypatch.setattr(relay, "PAUSE", 0.0)
    chance = random.Random(seed)
    async with world(tmp_path, here) as w:
        a, b = await w.agent("a"), await w.agent("b")
        data = chance.randbytes(24 * 1024 * 1024 + 12345)
        (a.directory / "file").write_bytes(data)
        sent = 0
        received = b.opened.session.received_chunk

        def counted(link: object, stream: int, offset: int, chunk: bytes) -> bool:
            nonlocal sent
            sent += len(chunk)
            return received(link, stream, offset, chunk)

        monkeypatch.setattr(b.opened.session, "received_chunk", counted)
        view = await w.broker.transfer(copy(a, b, "file", wait=0))
        operation = w.broker.dispatch.ledger.get(view.operation)
        assert operation is not None
        cuts = 0
        at = 0
        step = len(data) // 52
        with anyio.fail_after(60):
            while cuts < 50 and operation.open:
                if operation.files()[0].moved >= at:
                    chance.choice((a, b)).cut()
                    cuts += 1
                    at += step
                await anyio.lowlevel.checkpoint()
        view = await w.end(view)
        assert view.status is Status.DONE, view
        assert cuts == 50
        assert (b.directory / "file").read_bytes() == data
        assert sent <= len(data) + cuts * WINDOW
        assert b.leftovers() == []


@pytest.mark.parametrize("seed", range(6))
async def test_kills_of_every_process_end_with_the_right_bytes(
    tmp_path: Path, here: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B81 B82: the broker and both agents, at any moment; the operation can be joined all the time."""
    monkeypatch.setattr(relay, "PAUSE", 0.0)
    chance = random.Random(seed)
    async with world(tmp_path, here) as w:
        a, b = await w.agent("a"), await w.agent("b")
        data = chance.randbytes(8 * 1024 * 1024 + chance.randrange(100_000))
        (a.directory / "file").write_bytes(data)
        (b.directory / "file").write_bytes(b"old")
        view = await w.broker.transfer(copy(a, b, "file", overwrite=True, wait=0))
        for _ in range(8):
            before = w.broker.dispatch.ledger.get(view.operation)
            with anyio.move_on_after(chance.random() * 0.05):
                while before is not None and before.open:
                    await before.wait()
            assert (b.directory / "file").read_bytes() in (b"old", data)
            which = chance.choice(("broker", "source", "sink", "cut"))
            if which == "broker":
                await w.restart()
            elif which == "cut":
                chance.choice((a, b)).cut()
            else:
                agent = a if which == "source" else b
                await agent.lose()
                await agent.come()
            for agent in (a, b):
                await w.until_online(agent)
        view = await w.end(view)
        assert view.status is Status.DONE, view
        assert view.files[0].sha256 == sha(data)
        assert (b.directory / "file").read_bytes() == data
        assert b.leftovers() == []


async def test_a_source_that_changed_while_its_device_was_away_begins_again_and_says_so(
    tmp_path: Path, here: Path
) -> None:
    """B83: same size, another byte, a time put back: the hash of what was sent tells."""
    async with world(tmp_path, here) as w:
        a, b = await w.agent("a"), await w.agent("b")
        data = bytearray(os.urandom(60_000_000))
        (a.directory / "file").write_bytes(data)
        times = (a.directory / "file").stat()
        view = await w.broker.transfer(copy(a, b, "file", wait=0))
        await gone_through(b)
        await a.lose()
        data[10] ^= 1
        (a.directory / "file").write_bytes(data)
        os.utime(a.directory / "file", ns=(times.st_atime_ns, times.st_mtime_ns))
        await a.come()
        view = await w.end(view)
        assert view.status is Status.DONE, view
        assert view.files[0].restarted
        assert (b.directory / "file").read_bytes() == data


async def test_a_source_that_keeps_changing_fails_clearly(tmp_path: Path, here: Path) -> None:
    async with world(tmp_path, here) as w:
        a, b = await w.agent("a"), await w.agent("b")
        path = a.directory / "log"
        path.write_bytes(bytes(300_000_000))
        view = await w.broker.transfer(copy(a, b, "log", wait=0))
        operation = w.broker.dispatch.ledger.get(view.operation)
        assert operation is not None
        with anyio.fail_after(30), path.open("ab") as file:
            while operation.open:
                file.write(b"one more line\n")
                file.flush()
                await anyio.sleep(0.005)
        view = await w.end(view)
        assert (view.status, view.executed) == (Status.FAILED, Executed.NO)
        assert view.files[0].error is not None
        assert view.files[0].error.code == "source_changed"
        await until(lambda: not b.leftovers())
        assert not (b.directory / "log").exists()


async def test_a_full_disk_is_told_at_both_ends(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, here) as w:
        a, b = await w.agent("a"), await w.agent("b")
        (a.directory / "file").write_bytes(os.urandom(3_000_000))
        real = os.pwritev

        def full(descriptor: int, data: list[bytes], at: int) -> int:
            if at > 1_000_000:
                raise OSError(28, "No space left on device")
            return real(descriptor, data, at)

        monkeypatch.setattr(parts.os, "pwritev", full)
        view = await w.move(copy(a, b, "file"))
        assert view.status is Status.FAILED
        assert view.files[0].error is not None
        assert (view.files[0].status, view.files[0].error.code) == (Move.FAILED, "disk_full")
        assert b.leftovers() == []


async def read(w: World, uri: str, caller: Caller = CHAT) -> bytes:
    found = parse(uri)
    data = b""
    size = 1
    while len(data) < size:
        request = FetchBytes(
            caller=caller,
            session=found.session,
            source=found.source,
            offset=len(data),
            length=512 * 1024,
            capability=found.capability,
        )
        piece = await w.broker.fetch(request)
        size = piece.size
        data += base64.b64decode(piece.data)
    return data


async def test_an_offered_file_is_read_by_whom_it_was_given_to_and_by_nobody_else(
    tmp_path: Path, here: Path
) -> None:
    async with world(tmp_path, here) as w:
        a = await w.agent("a")
        data = os.urandom(1_500_000)
        (a.directory / "build.zip").write_bytes(data)
        view = await w.move(Transfer(caller=CHAT, session=a.id, paths=("build.zip",), limit=2_000_000))
        link, capability = view.files[0].link, view.companions.capability
        assert link is not None
        assert (link.size, link.sha256, link.mime_type) == (len(data), sha(data), "application/zip")
        uri = str(parse(link.uri)._replace(capability=capability))
        assert await read(w, uri) == data
        for wrong in (None, "", "x" * 43, (capability or "")[::-1]):
            with pytest.raises(PathMissing):
                await read(w, str(parse(link.uri)._replace(capability=wrong)))
        with pytest.raises(PathMissing):
            await read(w, uri, ELSE)
        await w.restart()
        await w.until_online(a)
        assert await read(w, uri) == data
        await a.lose()
        await a.come()
        await w.until_online(a)
        assert await read(w, uri) == data
        (a.directory / "build.zip").write_bytes(data + b"!")
        with pytest.raises(BridgeError) as refused:
            await read(w, uri)
        assert refused.value.code == "source_changed"
        view = await w.move(Transfer(caller=CHAT, session=a.id, paths=("build.zip",), limit=1_000_000))
        assert view.files[0].error is not None
        assert view.files[0].error.code == "too_large"


async def test_a_native_image_is_exported_and_copied_by_its_reference(tmp_path: Path, here: Path) -> None:
    """B72 B73: exact bytes, small ones and spilled ones."""
    png = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    async with world(tmp_path, here) as w:
        a, b = await w.agent("a"), await w.agent("b")
        (a.directory / "small.png").write_bytes(png)
        (a.directory / "large.png").write_bytes(png + os.urandom(200_000))
        calls = tuple(NewCall(name="read", arguments={"path": f"{name}.png"}) for name in ("small", "large"))
        view = await w.broker.call(Submit(caller=CHAT, session=a.id, calls=calls))
        assert view.companions.capability is not None
        for result, name in zip(view.results, ("small", "large"), strict=True):
            data = (a.directory / f"{name}.png").read_bytes()
            assert any(block.type in ("image", "spill") for block in result.content)
            uri = f"chappie://session/{a.id}/image/{sha(data)}/image.png"
            assert await read(w, f"{uri}?chatId={view.companions.capability}") == data
            exported = await w.move(Transfer(caller=CHAT, session=a.id, paths=(uri,)))
            assert exported.files[0].sha256 == sha(data)
            moved = Transfer(
                caller=CHAT,
                session=b.id,
                paths=(f"{name}.png",),
                source=RemotePaths(session=a.id, paths=(uri,)),
            )
            assert (await w.move(moved)).status is Status.DONE
            assert (b.directory / f"{name}.png").read_bytes() == data


async def test_a_caller_sends_a_file_piece_by_piece_over_cuts(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "PAUSE", 0.0)
    shell = Caller(principal="owner", source="shell")
    async with world(tmp_path, here) as w:
        b = await w.agent("b")
        data = os.urandom(6_000_000)
        request = Transfer(
            caller=shell,
            session=b.id,
            paths=("sent",),
            uploads=(Upload(name="sent", size=len(data)),),
            wait=0,
        )
        view = await w.broker.transfer(request)
        operation = w.broker.dispatch.ledger.get(view.operation)
        assert operation is not None
        offset: int | None = 0
        cuts = 0
        with anyio.fail_after(30):
            while offset is not None:
                piece = data[offset : offset + 300_000]
                last = offset + len(piece) == len(data)
                push = Push(
                    caller=shell,
                    operation=view.operation,
                    index=0,
                    offset=offset,
                    data=base64.b64encode(piece).decode(),
                    sha256=sha(data) if last else None,
                )
                offset = (await w.broker.push(push)).offset
                if operation.files()[0].moved > cuts * 700_000:
                    b.cut()
                    cuts += 1
        assert cuts >= 5
        view = await w.end(view)
        assert view.status is Status.DONE, view.files
        assert (b.directory / "sent").read_bytes() == data


async def test_the_outcome_of_a_transfer_is_read_after_a_restart(tmp_path: Path, here: Path) -> None:
    async with world(tmp_path, here) as w:
        a, b = await w.agent("a"), await w.agent("b")
        (a.directory / "file").write_bytes(b"data")
        view = await w.move(copy(a, b, "file"))
        await w.restart()
        again = await w.broker.call(Submit(caller=CHAT, operation=view.operation))
        assert (again.status, again.files) == (view.status, view.files)
