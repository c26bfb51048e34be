"""`write`: whole files in one step."""

import errno
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from chappie_agents.tools import ToolContext
from chappie_agents.tools.write import WRITE
from pydantic import JsonValue

from chappie_bridge.wire.blocks import Content, Text
from chappie_bridge.wire.errors import BadArguments

pytestmark = pytest.mark.anyio

Call = Callable[..., Awaitable[Content]]
Said = Callable[[Content], dict[str, JsonValue]]


async def test_a_new_file_gets_its_parents_and_exactly_these_bytes(
    call: Call, context: ToolContext, said: Said
) -> None:
    text = "\ufeffone\r\ntwo ж 😀\0"
    facts = said(await call("write", path="a/b/c.txt", content=text))
    assert (context.cwd / "a/b/c.txt").read_bytes() == text.encode()
    assert facts == {
        "path": str(context.cwd / "a/b/c.txt"),
        "bytes": len(text.encode()),
        "created": True,
    }


async def test_a_replaced_file_keeps_its_mode(call: Call, context: ToolContext, said: Said) -> None:
    target = context.cwd / "script"
    target.write_text("old", encoding="utf-8")
    target.chmod(0o751)
    assert said(await call("write", path="script", content="new"))["created"] is False
    assert (target.read_text(encoding="utf-8"), stat.S_IMODE(target.stat().st_mode)) == ("new", 0o751)


async def test_a_new_file_obeys_the_umask(call: Call, context: ToolContext) -> None:
    before = os.umask(0o027)
    try:
        await call("write", path="file", content="")
    finally:
        os.umask(before)
    assert stat.S_IMODE((context.cwd / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize("exists", [True, False])
async def test_a_link_stays_and_the_file_it_leads_to_is_written(
    call: Call, context: ToolContext, exists: bool
) -> None:
    target = context.cwd / "target"
    if exists:
        target.write_text("old", encoding="utf-8")
    (context.cwd / "link").symlink_to("target")
    await call("write", path="link", content="new")
    assert (context.cwd / "link").is_symlink()
    assert target.read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize(
    ("path", "message"), [(".", "is a directory"), ("pipe", "is a pipe"), ("f/x", "Not a dir")]
)
async def test_only_files_are_written(failing: Call, context: ToolContext, path: str, message: str) -> None:
    os.mkfifo(context.cwd / "pipe")
    (context.cwd / "f").touch()
    (block,) = await failing("write", path=path, content="x")
    assert isinstance(block, Text)
    assert message in block.text


async def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    failing: Call, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (context.cwd / "file").write_text("old", encoding="utf-8")
    monkeypatch.setattr(os, "fsync", full)
    (block,) = await failing("write", path="file", content="new")
    assert isinstance(block, Text)
    assert "No space left" in block.text
    assert [path.name for path in context.cwd.iterdir()] == ["file"]
    assert (context.cwd / "file").read_text(encoding="utf-8") == "old"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
async def test_a_write_protected_file_is_left_alone(failing: Call, context: ToolContext) -> None:
    (context.cwd / "file").touch(mode=0o444)
    (block,) = await failing("write", path="file", content="new")
    assert isinstance(block, Text)
    assert "write-protected" in block.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_a_replaced_file_keeps_its_owner(call: Call, context: ToolContext) -> None:
    target = context.cwd / "file"
    target.touch()
    os.chown(target, 12345, 12346)
    await call("write", path="file", content="new")
    assert (target.stat().st_uid, target.stat().st_gid) == (12345, 12346)


async def test_home_is_the_users(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    await call("write", path="~/x/note", content="hi")
    assert (tmp_path / "home/x/note").read_text(encoding="utf-8") == "hi"


def test_half_a_character_is_refused_with_its_position() -> None:
    with pytest.raises(BadArguments, match=r"`content`: half of a character .* at position 1"):
        WRITE.parse({"path": "x", "content": "a\ud83d"})
