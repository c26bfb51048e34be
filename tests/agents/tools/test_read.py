"""`read`: text exactly, images exactly, and a clear word for everything else."""

import base64
import dataclasses
import hashlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from chappie_agents.tools import ToolContext, ToolFailed
from chappie_agents.tools.read import image_type, is_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from chappie_bridge.wire.blocks import Content, Image, Spill, Text

pytestmark = pytest.mark.anyio

Call = Callable[..., Awaitable[Content]]
Said = Callable[[Content], dict[str, JsonValue]]

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def words(content: Content) -> str:
    return "\n".join(block.text for block in content if isinstance(block, Text))


@pytest.mark.parametrize(
    "text",
    [
        "one\ntwo\n",
        "no end",
        "crlf\r\nand\rcr\r\n",
        "\ufeffwith a mark\n",
        "😀 ж é\n",
        "esc \x1b[31m and a NUL \0 in a long line of plain text, " + "x" * 200,
    ],
)
async def test_text_comes_exactly_as_it_is(call: Call, context: ToolContext, text: str) -> None:
    (context.cwd / "file").write_bytes(text.encode())
    assert await call("read", path="file") == (Text(text=text),)


async def test_an_empty_file_is_said_to_be_empty(call: Call, context: ToolContext) -> None:
    (context.cwd / "file").touch()
    assert words(await call("read", path="file")) == '{"bytes":0}'


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["", "a", "ж", "line\r", "x" * 40])),
    st.booleans(),
    st.integers(1, 8),
    st.integers(1, 8) | st.none(),
)
def test_a_range_is_the_lines_counted_from_one(
    context: ToolContext,
    call_in: Callable[[ToolContext], Call],
    monkeypatch: pytest.MonkeyPatch,
    lines: list[str],
    ended: bool,
    offset: int,
    limit: int | None,
) -> None:
    whole = [line + "\n" for line in lines]
    if whole and not ended:
        whole[-1] = whole[-1][:-1]
        whole = whole if whole[-1] else whole[:-1]
    text = "".join(whole)
    (context.cwd / "file").write_bytes(text.encode())
    monkeypatch.setattr("chappie_agents.tools.read.SNIFF", 3)
    monkeypatch.setattr("chappie_agents.tools.read.CHUNK", 5)
    wanted = whole[offset - 1 :] if limit is None else whole[offset - 1 : offset - 1 + limit]

    async def read() -> None:
        call = call_in(context)
        if not wanted:
            with pytest.raises(ToolFailed, match=f"has {len(whole)} lines"):
                await call("read", path="file", offset=offset, limit=limit)
            return
        content = await call("read", path="file", offset=offset, limit=limit)
        assert content[0] == Text(text="".join(wanted))
        more = str(offset - 1 + len(wanted) < len(whole)).lower()
        assert f'{{"firstLine":{offset},"lines":{len(wanted)},"more":{more},' in words(content)

    anyio.run(read)


async def test_a_long_text_is_spilled_whole(call: Call, context: ToolContext, said: Said) -> None:
    data = "".join(f"line {number} ж\n" for number in range(20_000)).encode()
    (context.cwd / "long").write_bytes(data)
    content = await call("read", path="long")
    spill = content[0]
    assert isinstance(spill, Spill)
    assert (spill.size, spill.sha256, spill.lossy) == (len(data), hashlib.sha256(data).hexdigest(), False)
    assert Path(spill.path).read_bytes() == data
    assert data.decode().startswith(spill.head)
    assert data.decode().endswith(spill.tail)
    assert said(content)["truncated"] is True


async def test_lines_from_the_middle_of_a_long_text_come_alone(call: Call, context: ToolContext) -> None:
    (context.cwd / "long").write_text("".join(f"line {n}\n" for n in range(1, 100_001)), encoding="utf-8")
    content = await call("read", path="long", offset=77_777, limit=2)
    assert content[0] == Text(text="line 77777\nline 77778\n")


@pytest.mark.parametrize(
    ("start", "mime_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0....", "image/jpeg"),
        (b"GIF89a....", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0WAVEfmt ", None),
        (b"BM......", None),
    ],
)
def test_an_image_is_known_by_its_bytes(start: bytes, mime_type: str | None) -> None:
    assert image_type(start) == mime_type


async def test_an_image_keeps_its_bytes_whatever_it_is_called(call: Call, context: ToolContext) -> None:
    """B73: a PNG of 52 KB, SHA-256 equal."""
    data = PNG + os.urandom(52_000)
    (context.cwd / "picture.txt").write_bytes(data)
    (image,) = await call("read", path="picture.txt")
    assert isinstance(image, Image)
    assert image.mime_type == "image/png"
    assert hashlib.sha256(base64.b64decode(image.data)).digest() == hashlib.sha256(data).digest()


async def test_a_big_image_is_spilled_with_its_exact_bytes(call: Call, context: ToolContext) -> None:
    """B73: the same above the bound of a block."""
    data = PNG + os.urandom(200_000)
    (context.cwd / "picture.png").write_bytes(data)
    (spill,) = await call("read", path="picture.png")
    assert isinstance(spill, Spill)
    assert (spill.of, spill.mime_type, spill.head, spill.tail) == ("image", "image/png", "", "")
    assert spill.path.endswith(".png")
    assert Path(spill.path).read_bytes() == data


@pytest.mark.parametrize(
    "data",
    [b"\x7fELF\2\1\1" + bytes(200), bytes(range(256)) * 40, b"tar".ljust(512, b"\0"), b"PK\3\4\n\0\xff\xfe"],
)
async def test_binary_is_refused_with_what_identifies_it(
    failing: Call, context: ToolContext, data: bytes
) -> None:
    """B73: never bytes turned into wrong text."""
    (context.cwd / "binary").write_bytes(data)
    text = words(await failing("read", path="binary"))
    assert f"{len(data)} bytes" in text
    assert hashlib.sha256(data).hexdigest() in text
    assert "transfer" in text


async def test_utf_16_is_refused_with_the_way_to_read_it(failing: Call, context: ToolContext) -> None:
    (context.cwd / "wide").write_bytes("hello\r\n".encode("utf-16"))
    assert "iconv" in words(await failing("read", path="wide"))


async def test_text_in_another_code_page_is_read_with_a_flag(
    call: Call, context: ToolContext, said: Said
) -> None:
    """B68: a lossy reading says so, and the bytes are at hand."""
    raw = "Привет, мир\r\n".encode("cp1251") * 3
    (context.cwd / "old.txt").write_bytes(raw)
    content = await call("read", path="old.txt")
    facts = said(content)
    assert facts["lossy"] is True
    assert Path(str(facts["outputPath"])).read_bytes() == raw


def test_a_character_cut_by_the_end_of_the_sample_does_not_make_a_text_binary() -> None:
    for cut in range(4):
        sample = (b"\0" + b"x" * 65531 + "😀".encode() * 2)[: 65536 - cut]
        assert is_text(sample)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing", "no such file"),
        (".", "is a directory"),
        ("/", "is a directory"),
        ("pipe", "is a pipe"),
        ("socket", "is a socket"),
        ("/dev/zero", "is a device"),
        ("file/below", "Not a directory"),
        ("loop", "link"),
    ],
)
async def test_what_is_no_file_is_refused_at_once(
    call: Call, context: ToolContext, path: str, message: str
) -> None:
    os.mkfifo(context.cwd / "pipe")
    (context.cwd / "file").touch()
    (context.cwd / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(context.cwd)  # a socket's path is short
        listening.bind("socket")
        os.chdir(here)
        with anyio.fail_after(20), pytest.raises(Exception, match=message):
            await call("read", path=path)


@pytest.mark.skipif(sys.platform != "linux", reason="wrong platform: only Linux has /proc")
async def test_a_file_without_a_size_is_read_to_its_end(call: Call) -> None:
    assert "Name:" in words(await call("read", path="/proc/self/status"))


async def test_a_file_beyond_the_bound_is_read_in_parts_only(
    context: ToolContext, call_in: Callable[[ToolContext], Call]
) -> None:
    (context.cwd / "huge").write_text("0123456789\n" * 1000, encoding="utf-8")
    call = call_in(dataclasses.replace(context, output_max=5000))
    with pytest.raises(ToolFailed, match="offset and limit"):
        await call("read", path="huge")
    with pytest.raises(ToolFailed, match="offset and limit"):
        await call("read", path="huge", offset=1)
    assert (await call("read", path="huge", offset=999, limit=1))[0] == Text(text="0123456789\n")
    assert not list(context.spool.directory.iterdir())


async def test_a_name_is_shown_without_what_steers_a_terminal(failing: Call, context: ToolContext) -> None:
    (context.cwd / "a\x1b[2J\u202eb").mkdir()
    assert "a\\x1b[2J\\u202eb is a directory" in words(await failing("read", path="a\x1b[2J\u202eb"))
