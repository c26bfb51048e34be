"""A session's files: given, taken, gone on with after a loss, published once and whole or not at all."""

import errno
import hashlib
import itertools
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
from chappie_agents import part as parts
from chappie_agents.policy import Answer, Decision, Policy, Rule, Scope
from chappie_agents.sources import IDLE

from chappie_bridge.wire.blocks import Image
from chappie_bridge.wire.files import (
    CloseSink,
    CloseSource,
    DropSink,
    HashSource,
    OpenSink,
    OpenSource,
    Published,
    SinkFailed,
    SinkOpened,
    SourceHashed,
    SourceOpened,
    Written,
)
from chappie_bridge.wire.link import CHUNK_BYTES
from chappie_bridge.wire.messages import Failed, Message, Pull, Pulled, Request
from chappie_bridge.wire.values import Origin
from tests.agents.stage import ORIGIN, SESSION, Clock, FakeLink, Gate, Stage, batch, call, stage

pytestmark = pytest.mark.anyio

R = TypeVar("R", bound=Request)
numbers = itertools.count(50_000)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Rig:
    """One session and the broker's side of its link."""

    def __init__(self, on: Stage, link: FakeLink) -> None:
        self.on, self.link = on, link

    def say(self, message: Message) -> None:
        self.on.host.received(self.link, message)

    async def ask(self, message: Request, reply: type[R]) -> R:
        message = message.model_copy(update={"request": next(numbers)})
        self.say(message)
        got = await self.link.one(
            Request,
            lambda each: each.request == message.request and not isinstance(each, OpenSink),
        )
        assert isinstance(got, reply), got
        return got

    async def refused(self, message: Request) -> str:
        return (await self.ask(message, Failed)).failure.code

    def source(self, path: str | None, **more: object) -> OpenSource:
        return OpenSource.model_validate({"session": SESSION, "transfer": "t:0", "path": path, **more})

    def sink(self, path: str, **more: object) -> OpenSink:
        asked = {"session": SESSION, "transfer": "t:0", "stream": 7, "path": path, "fingerprint": "f", **more}
        return OpenSink.model_validate(asked)

    async def pull(self, source: str, offset: int = 0, length: int = 512 * 1024) -> tuple[bytes, Pulled]:
        stream = next(numbers)
        asked = Pull(session=SESSION, stream=stream, source=source, offset=offset, length=length)
        pulled = await self.ask(asked, Pulled)
        return b"".join(data for on, _, data in self.link.chunks if on == stream), pulled

    async def put(self, data: bytes, *, offset: int = 0, stream: int = 7) -> None:
        """Chunks, until they are written."""
        for start in range(0, len(data), CHUNK_BYTES):
            self.on.host.received_chunk(self.link, stream, offset + start, data[start : start + CHUNK_BYTES])
        end = offset + len(data)
        if data:
            await self.link.one(Written, lambda each: each.stream == stream and each.offset == end)

    def close(self, data: bytes, **more: object) -> CloseSink:
        asked = {"session": SESSION, "transfer": "t:0", "size": len(data), "sha256": sha(data), **more}
        return CloseSink.model_validate(asked)


@asynccontextmanager
async def rig(directory: Path, policy: Policy | None = None) -> AsyncIterator[Rig]:
    async with stage(directory, (), policy=policy) as on:
        yield Rig(on, await on.link())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("*.part")]


NAMES = [
    "with spaces",
    "two\nlines",
    "\U0001f600\u200d\U0001f4a9",
    "x" * 255,
    "é" * 127,
    "CON",
    "aux.txt",
    "a:b",
    " .",
    "-rf",
    "\x1b]0;title\x07\x1b[2J",
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
async def test_any_name_that_the_disk_takes_can_be_taken_and_given(home: Path, name: str) -> None:
    """S17: the name table: what a name does to a terminal or to another system does not matter here."""
    data = name.encode() * 3
    async with rig(home) as r:
        await r.ask(r.sink(name), SinkOpened)
        await r.put(data)
        published = await r.ask(r.close(data), Published)
        assert (home / name).read_bytes() == data
        assert Path(published.path) == home / name
        opened = await r.ask(r.source(name), SourceOpened)
        got, pulled = await r.pull(opened.source)
        assert (got, pulled.sha256, opened.name) == (data, sha(data), name)
    assert leftovers(home) == []


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 7])
async def test_every_size_arrives_whole(home: Path, size: int) -> None:
    data = os.urandom(size)
    (home / "from").write_bytes(data)
    async with rig(home) as r:
        opened = await r.ask(r.source("from"), SourceOpened)
        got, pulled = await r.pull(opened.source)
        assert (got, pulled.end, pulled.size, pulled.sha256) == (data, size, size, sha(data))
        await r.ask(r.sink("deep/er/to"), SinkOpened)
        await r.put(got)
        await r.ask(r.close(data), Published)
    assert (home / "deep" / "er" / "to").read_bytes() == data


async def test_what_is_only_zeros_takes_no_room(home: Path) -> None:
    data = b"begin" + bytes(40 * CHUNK_BYTES) + b"end" + bytes(3 * CHUNK_BYTES)
    async with rig(home) as r:
        await r.ask(r.sink("sparse"), SinkOpened)
        for start in range(0, len(data), 8 * CHUNK_BYTES):
            await r.put(data[start : start + 8 * CHUNK_BYTES], offset=start)
        await r.ask(r.close(data), Published)
    status = (home / "sparse").stat()
    assert (home / "sparse").read_bytes() == data
    assert status.st_size == len(data)
    assert status.st_blocks * 512 < len(data) // 2


async def test_an_existing_file_is_replaced_only_when_that_is_wanted(home: Path) -> None:
    (home / "there").write_bytes(b"old")
    (home / "there").chmod(0o640)
    async with rig(home) as r:
        assert await r.refused(r.sink("there")) == "path_exists"
        await r.ask(r.sink("there", overwrite=True), SinkOpened)
        await r.put(b"new")
        assert (home / "there").read_bytes() == b"old"
        await r.ask(r.close(b"new"), Published)
    assert (home / "there").read_bytes() == b"new"
    assert (home / "there").stat().st_mode & 0o777 == 0o640


def _no_links(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "no hard links here")


@pytest.fixture(params=["link", "renameat2", "reserve"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How a file gets its name without replacing another, on three kinds of file system."""
    if request.param != "link":
        monkeypatch.setattr(parts.os, "link", _no_links)
    if request.param == "reserve":
        monkeypatch.setattr(parts, "_renameat2", lambda *_: False)
    return str(request.param)


async def test_a_file_that_appeared_meanwhile_is_never_replaced(home: Path, way: str) -> None:
    async with rig(home) as r:
        await r.ask(r.sink("late"), SinkOpened)
        await r.put(b"mine")
        (home / "late").write_bytes(b"theirs")
        assert await r.refused(r.close(b"mine")) == "path_exists"
        await r.ask(r.sink("free"), SinkOpened)
        await r.put(b"mine")
        await r.ask(r.close(b"mine"), Published)
    assert (home / "late").read_bytes() == b"theirs"
    assert (home / "free").read_bytes() == b"mine"
    assert leftovers(home) == []


async def test_a_part_has_no_final_name_and_the_old_file_stays_until_all_is_there(home: Path) -> None:
    """B81: what was half-way when the process ended is gone on with, but never taken for whole."""
    data = os.urandom(300_000)
    (home / "target").write_bytes(b"old")
    async with rig(home) as r:
        await r.ask(r.sink("target", overwrite=True), SinkOpened)
        await r.put(data[:150_000])
    assert (home / "target").read_bytes() == b"old"
    assert len(leftovers(home)) == 1
    async with rig(home) as r:
        opened = await r.ask(r.sink("target", overwrite=True), SinkOpened)
        assert (opened.offset, opened.sha256) == (150_000, sha(data[:150_000]))
        await r.put(data[150_000:], offset=150_000)
        await r.ask(r.close(data), Published)
    assert (home / "target").read_bytes() == data
    assert leftovers(home) == []


async def test_a_part_of_another_source_is_not_gone_on_with(home: Path) -> None:
    async with rig(home) as r:
        await r.ask(r.sink("target"), SinkOpened)
        await r.put(b"x" * 1000)
        opened = await r.ask(r.sink("target", fingerprint="another", stream=8), SinkOpened)
        assert (opened.offset, opened.discarded) == (0, True)
        await r.put(b"y" * 1000, stream=8)
    async with rig(home) as r:
        opened = await r.ask(r.sink("target", fingerprint="third"), SinkOpened)
        assert (opened.offset, opened.discarded) == (0, True)
        r.say(DropSink(session=SESSION, transfer="t:0"))
        assert await r.refused(r.close(b"")) == "unknown_operation"
    assert leftovers(home) == []
    assert not (home / "target").exists()


async def test_chunks_after_a_lost_one_are_left_for_the_next_attempt(home: Path) -> None:
    async with rig(home) as r:
        await r.ask(r.sink("target"), SinkOpened)
        await r.put(b"a" * 10)
        r.on.host.received_chunk(r.link, 7, 20, b"c" * 10)
        opened = await r.ask(r.sink("target", stream=9), SinkOpened)
        assert opened.offset == 10
        r.on.host.received_chunk(r.link, 7, 10, b"stale")
        await r.put(b"b" * 10, offset=10, stream=9)
        data = b"a" * 10 + b"b" * 10
        await r.ask(r.close(data), Published)
        again = await r.ask(r.close(data), Published)
        assert again.sha256 == sha(data)
        found = await r.ask(r.sink("target", stream=10), SinkOpened)
        assert (found.published, found.sha256) == (True, sha(data))


async def test_wrong_bytes_get_no_name(home: Path) -> None:
    """B83: all of the bytes are compared, not a sample of them."""
    data = bytearray(os.urandom(200_000))
    async with rig(home) as r:
        await r.ask(r.sink("target"), SinkOpened)
        await r.put(bytes(data))
        data[100_000] ^= 1
        assert await r.refused(r.close(bytes(data))) == "checksum"
    assert not (home / "target").exists()
    assert leftovers(home) == []


async def test_a_full_disk_fails_at_once_and_leaves_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with rig(home) as r:
        await r.ask(r.sink("target"), SinkOpened)
        monkeypatch.setattr(parts.os, "pwritev", full)
        r.on.host.received_chunk(r.link, 7, 0, b"x" * 100)
        failed = await r.link.one(SinkFailed)
        assert (failed.stream, failed.failure.code) == (7, "disk_full")
        assert await r.refused(r.close(b"x" * 100)) == "disk_full"
    assert leftovers(home) == []
    assert not (home / "target").exists()


async def test_a_target_directory_that_goes_away_fails_the_file(home: Path) -> None:
    async with rig(home) as r:
        await r.ask(r.sink("sub/target"), SinkOpened)
        await r.put(b"data")
        (home / "sub" / leftovers(home)[0]).unlink()
        (home / "sub").rmdir()
        assert await r.refused(r.close(b"data")) == "path_missing"


async def test_directories_devices_pipes_and_proc_are_no_files(home: Path) -> None:
    os.mkfifo(home / "fifo")
    (home / "dir").mkdir()
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(home / "s"))
        async with rig(home) as r:
            for path in (
                "dir",
                "fifo",
                "s",
                "/dev/null",
                "/dev/zero",
                "/proc/self/status",
                "/proc/kmsg",
                "/",
            ):
                code = await r.refused(r.source(path))
                assert code in ("not_a_file", "denied"), path
            assert await r.refused(r.source("nothing")) == "path_missing"
            for path in ("dir", "dir/", "fifo", "/dev/null", "/"):
                assert await r.refused(r.sink(path, overwrite=True)) == "not_a_file", path


async def test_a_link_as_source_is_followed_and_told(home: Path) -> None:
    (home / "real").write_bytes(b"data")
    (home / "link").symlink_to("real")
    async with rig(home) as r:
        opened = await r.ask(r.source("link"), SourceOpened)
        assert (opened.followed, opened.size) == (str(home / "real"), 4)
        assert (await r.pull(opened.source))[0] == b"data"


BAD = ["{root}_evil/x", "{root}/../x", "//etc/x", "{root}/%2e%2e/x", "out/x", "out", "../x"]


@pytest.mark.parametrize("given", BAD)
async def test_nothing_outside_a_root_is_read_or_written(home: Path, given: str) -> None:
    """S04 S05 S17 B85: prefixes, dots, encoded dots, links and their children are refused."""
    root = home / "root"
    root.mkdir()
    (home / "root_evil").mkdir()
    (home / "outside").mkdir()
    (home / "outside" / "x").write_bytes(b"secret")
    (root / "out").symlink_to(home / "outside")
    async with rig(home, Policy(roots=(root,))) as r:
        path = given.format(root=root)
        path = path if path.startswith("/") else str(root / path)
        assert await r.refused(r.sink(path, overwrite=True)) == "denied"
        assert await r.refused(r.source(path)) == "denied"
    assert (home / "outside" / "x").read_bytes() == b"secret"
    assert [each.name for each in (home / "outside").iterdir()] == ["x"]
    assert leftovers(home) == []


async def test_a_directory_swapped_for_a_link_is_not_followed_at_the_end(home: Path) -> None:
    """S05: the check is not only at the beginning."""
    root, outside = home / "root", home / "outside"
    (root / "sub").mkdir(parents=True)
    outside.mkdir()
    async with rig(home, Policy(roots=(root,))) as r:
        await r.ask(r.sink(str(root / "sub" / "x")), SinkOpened)
        await r.put(b"data")
        (root / "sub").rename(root / "gone")
        (root / "sub").symlink_to(outside)
        assert await r.refused(r.close(b"data")) == "denied"
    assert list(outside.iterdir()) == []


async def test_a_source_that_changes_while_it_is_read_is_noticed(home: Path) -> None:
    """B83: also when its size stays the same."""
    data = os.urandom(400_000)
    (home / "file").write_bytes(data)
    async with rig(home) as r:
        opened = await r.ask(r.source("file"), SourceOpened)
        assert (await r.pull(opened.source, 0, 100_000))[0] == data[:100_000]
        with (home / "file").open("r+b") as file:
            file.seek(300_000)
            file.write(b"!")
            file.flush()
            os.utime(file.fileno(), ns=(1, 1))
        asked = Pull(session=SESSION, stream=1, source=opened.source, offset=100_000, length=100)
        assert await r.refused(asked) == "source_changed"
        again = await r.ask(r.source("file"), SourceOpened)
        assert again.fingerprint != opened.fingerprint
        got, pulled = await r.pull(again.source)
        assert pulled.sha256 == sha(got) == sha((home / "file").read_bytes())


@pytest.mark.parametrize("length", [0, 1, 65_536, 99_999, 100_000, 250_000, 400_000])
async def test_the_hash_of_any_beginning_can_be_had_and_the_whole_is_right_after(
    home: Path, length: int
) -> None:
    data = os.urandom(400_000)
    (home / "file").write_bytes(data)
    async with rig(home) as r:
        opened = await r.ask(r.source("file"), SourceOpened)
        await r.pull(opened.source, 0, 100_000)
        opened = await r.ask(r.source("file"), SourceOpened)
        hashed = await r.ask(HashSource(session=SESSION, source=opened.source, length=length), SourceHashed)
        assert hashed.sha256 == sha(data[:length])
        got, pulled = await r.pull(opened.source, length)
        assert (got, pulled.sha256) == (data[length:], sha(data))
        r.say(CloseSource(session=SESSION, source=opened.source))
        r.say(CloseSource(session=SESSION, source=opened.source))


async def test_an_offered_file_can_be_read_after_a_restart_until_it_changes(home: Path) -> None:
    data = os.urandom(100_000)
    (home / "a b.pdf").write_bytes(data)
    async with rig(home) as r:
        offered = await r.ask(r.source("a b.pdf", keep=True, limit=100_000), SourceOpened)
        assert (offered.sha256, offered.mime_type, offered.name) == (sha(data), "application/pdf", "a b.pdf")
        assert await r.refused(r.source("a b.pdf", keep=True, limit=99_999)) == "too_large"
    async with rig(home) as r:
        assert (await r.pull(offered.source))[0] == data
        again = await r.ask(r.source(None, reference=offered.source, keep=True), SourceOpened)
        assert again.source == offered.source
        (home / "a b.pdf").write_bytes(data[::-1])
        asked = Pull(session=SESSION, stream=1, source=offered.source, offset=0, length=10)
        assert await r.refused(asked) == "source_changed"
        for unknown in ("file:nope", "image:" + "0" * 64, "image:../../etc/passwd", "file:../x"):
            assert await r.refused(asked.model_copy(update={"source": unknown})) == "path_missing"


async def test_a_native_image_is_read_by_its_hash_exactly(home: Path) -> None:
    """B72 B73: the bytes are those of the tool, whatever was shown."""
    import base64

    data = b"\x89PNG\r\n\x1a\n" + os.urandom(52_000)
    async with rig(home) as r:
        image = Image(data=base64.b64encode(data).decode(), mime_type="image/png")
        r.on.session._files.keep((image,))
        opened = await r.ask(r.source(None, reference=f"image:{sha(data)}", keep=True), SourceOpened)
        assert (opened.size, opened.mime_type, opened.name) == (len(data), "image/png", "image.png")
        assert (await r.pull(opened.source))[0] == data
        spilled = r.on.session._spool.spill_image(data * 3, "image/png")
        r.on.session._files.keep((spilled,))
        assert (await r.pull(f"image:{spilled.sha256}"))[0] == (data * 3)[: 512 * 1024]


async def test_a_part_that_nobody_goes_on_with_is_swept_after_a_day(home: Path) -> None:
    import time

    async with rig(home) as r:
        await r.ask(r.sink("target"), SinkOpened)
        await r.put(b"half")
    assert len(leftovers(home)) == 1
    async with rig(home) as r:
        await r.on.session._files.tidy(time.time())
        assert len(leftovers(home)) == 1
        await r.on.session._files.tidy(time.time() + 25 * 3600)
    assert leftovers(home) == []


async def test_sinks_that_were_left_open_make_room_again_after_a_day(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chappie_agents.sinks.MAX_SINKS", 2)
    clock = Clock()
    async with stage(home, (), clock=clock) as on:
        r = Rig(on, await on.link())
        for number, name in enumerate(("left", "used")):
            await r.ask(r.sink(name, transfer=name, stream=number), SinkOpened)
            await r.put(b"half", stream=number)
        assert await r.refused(r.sink("more", transfer="more", stream=9)) == "overloaded"
        clock.time += 20 * 3600
        await r.put(b"more", offset=4, stream=1)
        clock.time += 5 * 3600
        await on.session._files.tidy(clock.time)
        assert len(leftovers(home)) == 1
        await r.ask(r.sink("more", transfer="more", stream=9), SinkOpened)
        data = b"halfmore"
        published = await r.ask(r.close(data, transfer="used"), Published)
        assert Path(published.path).read_bytes() == data
        assert await r.refused(r.close(b"half", transfer="left")) == "unknown_operation"


async def test_a_failed_sink_whose_broker_is_gone_makes_room(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chappie_agents.sinks.MAX_SINKS", 2)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with rig(home) as r:
        for number, name in enumerate(("first", "second")):
            await r.ask(r.sink(name, transfer=name, stream=number), SinkOpened)
        assert await r.refused(r.sink("third", transfer="third", stream=2)) == "overloaded"
        with monkeypatch.context() as patch:
            patch.setattr(parts.os, "pwritev", full)
            r.on.host.received_chunk(r.link, 0, 0, b"x")
            await r.link.one(SinkFailed)
        await r.ask(r.sink("third", transfer="third", stream=2), SinkOpened)
        assert await r.refused(r.close(b"x", transfer="first")) == "unknown_operation"
        assert await r.refused(r.sink("fourth", transfer="fourth", stream=3)) == "overloaded"


async def test_a_part_in_use_is_gone_on_with_after_a_restart_however_long_it_takes(home: Path) -> None:
    import time

    clock = Clock()
    async with stage(home, (), clock=clock) as on:
        r = Rig(on, await on.link())
        await r.ask(r.sink("target"), SinkOpened)
        await r.put(b"half")
        clock.time = time.time() + 30 * 3600
        await r.put(b"more", offset=4)
        await on.session._files.tidy(clock.time)
    async with rig(home) as r:
        opened = await r.ask(r.sink("target"), SinkOpened)
        assert (opened.offset, opened.discarded) == (8, False)


async def test_a_source_that_nobody_closed_makes_room_once_it_is_idle(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chappie_agents.sources.MAX_SOURCES", 2)
    (home / "file").write_bytes(b"data")
    clock = Clock()
    async with stage(home, (), clock=clock) as on:
        r = Rig(on, await on.link())
        used, left = [
            (await r.ask(r.source("file", transfer=name), SourceOpened)).source for name in ("used", "left")
        ]
        clock.time += IDLE - 1
        assert await r.refused(r.source("file", transfer="more")) == "overloaded"
        assert (await r.pull(used))[0] == b"data"
        clock.time += 1
        more = await r.ask(r.source("file", transfer="more"), SourceOpened)
        assert await r.refused(r.source("file", transfer="another")) == "overloaded"
        for open_ in (used, more.source):
            assert (await r.pull(open_))[0] == b"data"
        asked = Pull(session=SESSION, stream=1, source=left, offset=0, length=4)
        assert await r.refused(asked) == "source_changed"


async def test_sources_that_nobody_asks_for_are_closed_after_a_day(home: Path) -> None:
    (home / "file").write_bytes(b"data")
    clock = Clock()
    async with stage(home, (), clock=clock) as on:
        r = Rig(on, await on.link())
        opened = await r.ask(r.source("file"), SourceOpened)
        clock.time += 24 * 3600 - 1
        await on.session._files.tidy(clock.time)
        assert (await r.pull(opened.source))[0] == b"data"
        clock.time += 24 * 3600
        await on.session._files.tidy(clock.time)
        asked = Pull(session=SESSION, stream=1, source=opened.source, offset=0, length=4)
        assert await r.refused(asked) == "source_changed"


async def test_leave_given_to_one_conversation_holds_for_no_other(home: Path) -> None:
    """Whoever ran the last batch is not who asks for a transfer."""
    (home / "file").write_bytes(b"data")
    asks = Policy(rules=(Rule("transfer", Decision.ASK),))
    other = ORIGIN.model_copy(update={"id": "d" * 43})
    shell = Origin(kind="shell", id=ORIGIN.id, label="a shell")
    async with stage(home, Gate().tools(), policy=asks) as on:
        r = Rig(on, await on.link())

        async def asked(message: Request) -> None:
            """The owner is asked, and says no."""
            refusals.append(await r.refused(message))

        refusals: list[str] = []
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(r.ask, r.source("file", transfer="t:0", origin=ORIGIN), SourceOpened)
                await on.screen.more.wait()
                (question,) = on.screen.approvals
                assert question.conversation == ORIGIN.id
                on.session.approvals.answer(question.id, Answer(True, Scope.CONVERSATION))
            run = batch(call("say", text="mine"))
            r.say(run)
            await r.link.finished(run.operation)
            await r.ask(r.source("file", transfer="t:1", origin=ORIGIN), SourceOpened)
            assert len(on.screen.approvals) == 1
            strangers: list[Request] = [
                r.source("file", transfer="t:2", origin=other),
                r.source("file", transfer="t:3", origin=shell),
                r.source("file", transfer="t:4"),
                r.sink("file", transfer="t:5", origin=ORIGIN, overwrite=True),
                r.sink("new", transfer="t:6", origin=other),
            ]
            for message in strangers:
                on.screen.more = anyio.Event()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(asked, message)
                    await on.screen.more.wait()
                    on.session.approvals.answer(on.screen.approvals[-1].id, Answer(False))
        assert refusals == ["denied"] * len(strangers)


async def test_a_cancelled_file_leaves_nothing(home: Path) -> None:
    async with rig(home) as r:
        await r.ask(r.sink("target"), SinkOpened)
        await r.put(b"half")
        r.say(DropSink(session=SESSION, transfer="t:0"))
        opened = await r.ask(r.sink("target"), SinkOpened)
        assert opened.offset == 0
        r.say(DropSink(session=SESSION, transfer="t:0"))
        with anyio.fail_after(5):
            assert await r.refused(r.close(b"half")) == "unknown_operation"
    assert leftovers(home) == []
