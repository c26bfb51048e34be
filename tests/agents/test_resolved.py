"""Opening what was checked: a link put in between check and open is refused."""

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from chappie_agents.policy import Approval, Decision, Policy, Rule
from chappie_agents.resolved import Changed, NotRegular, directory, reading, replace
from chappie_agents.spool import Spool
from chappie_agents.tools import ToolContext
from chappie_agents.tools.edit import EDIT
from chappie_agents.tools.read import READ
from chappie_agents.tools.tool import Tool
from chappie_agents.tools.write import WRITE
from pydantic import JsonValue

from chappie_bridge.wire.errors import Denied
from chappie_bridge.wire.ids import SessionId


@pytest.fixture
def place(tmp_path: Path) -> Path:
    base = tmp_path.resolve()
    (base / "root/dir").mkdir(parents=True)
    (base / "root/dir/file").write_text("mine", encoding="utf-8")
    (base / "outside").mkdir()
    (base / "outside/file").write_text("secret", encoding="utf-8")
    return base


def swap_parent(place: Path) -> None:
    (place / "root/dir").rename(place / "root/moved")
    (place / "root/dir").symlink_to(place / "outside")


def swap_file(place: Path) -> None:
    (place / "root/dir/file").unlink(missing_ok=True)
    (place / "root/dir/file").symlink_to(place / "outside/file")


def swap_root(place: Path) -> None:
    (place / "root").rename(place / "moved")
    (place / "outside/dir").mkdir()
    (place / "outside/dir/file").write_text("secret", encoding="utf-8")
    (place / "root").symlink_to(place / "outside")


CALLS: dict[str, tuple[Tool, dict[str, JsonValue]]] = {
    "read": (READ, {"path": "dir/file"}),
    "write": (WRITE, {"path": "dir/file", "content": "evil"}),
    "write a new one": (WRITE, {"path": "dir/new/file", "content": "evil"}),
    "edit": (EDIT, {"path": "dir/file", "edits": [{"oldText": "secret", "newText": "evil"}]}),
}
SWAPS = [
    (swap, call)
    for swap, call in itertools.product((swap_parent, swap_file, swap_root), CALLS)
    if (swap, call) != (swap_file, "write a new one")  # that file is not on this path
]


@pytest.mark.anyio
@pytest.mark.parametrize("rooted", [True, False])
@pytest.mark.parametrize(("swap", "call"), SWAPS)
async def test_a_swap_between_check_and_open_is_refused(
    place: Path, swap: Callable[[Path], None], rooted: bool, call: str
) -> None:
    """S05: while the owner is being asked, somebody turns a directory into a link."""

    tool, arguments = CALLS[call]

    async def approve(approval: Approval) -> bool:
        swap(place)
        return True

    policy = Policy((Rule("*", Decision.ASK),), (place / "root",) if rooted else (), approve=approve)
    context = ToolContext(place / "root", Spool(place / "spool"), policy, SessionId("s"), {})
    with pytest.raises(Denied, match="link"):
        await tool.run(tool.parse(arguments), context)
    assert sorted(path.name for path in (place / "outside").rglob("*")) in (["file"], ["dir", "file", "file"])
    for file in (place / "outside").rglob("file"):
        assert file.read_text(encoding="utf-8") == "secret"


def test_a_rename_over_a_fresh_link_replaces_the_link_not_its_target(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S05: the last moment there is."""
    rename = os.replace

    def late(source: str, target: str, **where: int) -> None:
        swap_file(place)
        rename(source, target, **where)

    monkeypatch.setattr(os, "replace", late)
    replace(place / "root/dir/file", b"new")
    assert (place / "outside/file").read_text(encoding="utf-8") == "secret"
    assert (place / "root/dir/file").read_text(encoding="utf-8") == "new"


def test_a_file_that_is_another_by_now_is_not_replaced(place: Path) -> None:
    file = place / "root/dir/file"
    before = file.stat()
    (place / "root/dir/other").write_text("else", encoding="utf-8")
    (place / "root/dir/other").rename(file)
    with pytest.raises(Changed):
        replace(file, b"new", expected=before)
    file.unlink()
    with pytest.raises(Changed):
        replace(file, b"new", expected=before)
    assert list((place / "root/dir").iterdir()) == []


def test_directories_are_made_only_when_asked_for(place: Path) -> None:
    with pytest.raises(FileNotFoundError), directory(place / "root/a/b"):
        pass
    with directory(place / "root/a/b", create=True):
        assert (place / "root/a/b").is_dir()
    with pytest.raises(NotADirectoryError), directory(place / "root/dir/file/x", create=True):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="wrong platform: only Linux has /proc")
def test_nothing_stays_open(place: Path) -> None:
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(3):
        with reading(place / "root/dir/file") as descriptor:
            assert os.read(descriptor, 9) == b"mine"
        with pytest.raises(NotRegular), reading(place / "root/dir"):
            pass
        with pytest.raises(FileNotFoundError), reading(place / "root/none/file"):
            pass
        replace(place / "root/dir/file", b"mine")
    assert len(list(descriptors.iterdir())) == before
