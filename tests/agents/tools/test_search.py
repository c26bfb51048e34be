"""`ls`, `find` and `grep`: the same answers with ripgrep and without."""

import dataclasses
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from chappie_agents.tools import ToolContext, ToolFailed, search
from pydantic import JsonValue

from chappie_bridge.wire.blocks import Content, Spill, Text
from tests.required import required

pytestmark = pytest.mark.anyio

Call = Callable[..., Awaitable[Content]]
Said = Callable[[Content], dict[str, JsonValue]]


@pytest.fixture(params=["stand-in", "ripgrep"])
def searching(request: pytest.FixtureRequest, context: ToolContext, tmp_path: Path) -> ToolContext:
    """A tree to search, with one program or the other; an encoding that is not ours besides (B77)."""
    programs = tmp_path / "programs"
    programs.mkdir()
    if request.param == "ripgrep":
        (programs / "rg").symlink_to(required(shutil.which("rg"), "the program rg of ripgrep"))
    files = {
        "src/a.py": b"alpha\nbeta\nneedle one\ngamma\ndelta\nneedle two\n",
        "src/sub/b.py": b"x\r\nneedle\r\ny\r\n",
        "src/c.txt": "Needle ЖУК ✓\n".encode(),
        ".github/x.yml": b"needle: 1\n",
        ".git/config": b"needle\n",
        "node_modules/m.py": b"needle\n",
        "binary": b"needle\n\0\1\2needle",
        "a/z.txt": b"",
        "a.txt": b"",
        "a0.txt": b"",
    }
    for name, data in files.items():
        file = context.cwd / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    (context.cwd / "outside").symlink_to("/etc")
    os.mkfifo(context.cwd / "pipe")
    environment = {"PATH": str(programs), "PYTHONIOENCODING": "cp1252", "LC_ALL": "C"}
    return dataclasses.replace(context, environment=environment)


@pytest.fixture
def look(searching: ToolContext, call_in: Callable[[ToolContext], Call]) -> Call:
    return call_in(searching)


def text(content: Content) -> str:
    return content[0].text if len(content) > 1 and isinstance(content[0], Text) else ""


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        ({"pattern": "*.py"}, ["src/a.py", "src/sub/b.py"]),
        ({"pattern": "src/*.py"}, ["src/a.py"]),
        ({"pattern": "src/**/*.py"}, ["src/a.py", "src/sub/b.py"]),
        ({"pattern": "**/*.{yml,py}"}, [".github/x.yml", "src/a.py", "src/sub/b.py"]),
        ({"pattern": "a*.txt"}, ["a.txt", "a0.txt"]),
        ({"pattern": "[ab].py"}, ["src/a.py", "src/sub/b.py"]),
        ({"pattern": "[!a].py", "path": "src"}, ["src/sub/b.py"]),
        ({"pattern": "?.txt", "path": "./"}, ["a.txt", "a/z.txt", "src/c.txt"]),
        ({"pattern": "*.py", "path": "node_modules"}, ["node_modules/m.py"]),
        ({"pattern": "nothing"}, []),
    ],
)
async def test_find_matches_names_like_gitignore(
    look: Call, said: Said, arguments: dict[str, JsonValue], files: list[str]
) -> None:
    content = await look("find", **arguments)
    found = text(content).splitlines()
    # Byte order or order by components: ripgrep's releases differ.
    assert sorted(name.removeprefix("./") for name in found) == sorted(files)
    assert said(content)["files"] == len(files)


async def test_a_limit_that_cuts_says_so(look: Call, said: Said) -> None:
    content = await look("find", pattern="*.txt", limit=2)
    assert said(content) == {"files": 2, "more": True}
    assert "more" not in said(await look("find", pattern="*.txt", limit=4))
    content = await look("grep", pattern="needle", limit=2)
    assert said(content) == {"matches": 2, "more": True}
    assert "more" not in said(await look("grep", pattern="needle", limit=4))
    content = await look("ls", limit=3)
    assert text(content) == ".git/\n.github/\na/\n"
    assert said(content) == {"entries": 3, "more": 7}


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            {"pattern": "needle"},
            [
                ".github/x.yml:1: needle: 1",
                "src/a.py:3: needle one",
                "src/a.py:6: needle two",
                "src/sub/b.py:2: needle",
            ],
        ),
        ({"pattern": "needle$"}, ["src/sub/b.py:2: needle"]),
        ({"pattern": "needle", "path": "src/sub"}, ["src/sub/b.py:2: needle"]),
        ({"pattern": "needle", "path": "src/sub/b.py"}, ["src/sub/b.py:2: needle"]),
        ({"pattern": "needle", "glob": "*.yml"}, [".github/x.yml:1: needle: 1"]),
        ({"pattern": "жук", "ignoreCase": True}, ["src/c.txt:1: Needle ЖУК ✓"]),
        ({"pattern": "✓"}, ["src/c.txt:1: Needle ЖУК ✓"]),
        ({"pattern": "e.", "literal": True}, []),
        ({"pattern": "-e"}, []),
        (
            {"pattern": "one", "context": 1},
            ["src/a.py-2- beta", "src/a.py:3: needle one", "src/a.py-4- gamma"],
        ),
        (
            {"pattern": "alpha|two", "context": 1},
            ["src/a.py:1: alpha", "src/a.py-2- beta", "--", "src/a.py-5- delta", "src/a.py:6: needle two"],
        ),
        (
            {"pattern": "alpha|^y", "context": 1, "glob": "*.py"},
            ["src/a.py:1: alpha", "src/a.py-2- beta", "--", "src/sub/b.py-2- needle", "src/sub/b.py:3: y"],
        ),
    ],
)
async def test_grep_finds_these_lines(look: Call, arguments: dict[str, JsonValue], lines: list[str]) -> None:
    """B77: whatever the locale, the text is UTF-8."""
    assert text(await look("grep", **arguments)).splitlines() == lines


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("grep", {"pattern": "("}, "unclosed|unterminated"),
        ("grep", {"pattern": "a\nb"}, "not allowed|line break"),
        ("grep", {"pattern": "x", "path": "missing"}, "no such file"),
        ("grep", {"pattern": "x", "path": "pipe"}, "is a pipe"),
        ("grep", {"pattern": "x", "path": "binary"}, "is binary"),
        ("find", {"pattern": "["}, r"\[|class"),
        ("find", {"pattern": "{a"}, "clos|nest|alternat"),
        ("find", {"pattern": "x", "path": "a.txt"}, "no such directory"),
        ("ls", {"path": "missing"}, "no such file"),
        ("ls", {"path": "a.txt"}, "Not a directory"),
    ],
)
async def test_wrong_use_is_said_clearly(
    look: Call, tool: str, arguments: dict[str, JsonValue], message: str
) -> None:
    with anyio.fail_after(20), pytest.raises(ToolFailed, match=message):
        await look(tool, **arguments)


async def test_ls_marks_directories_and_links(look: Call) -> None:
    names = text(await look("ls")).splitlines()
    assert "src/" in names
    assert "outside -> /etc" in names
    assert names == sorted(names, key=lambda name: name.split(" -> ")[0].rstrip("/").encode())


async def test_names_are_shown_without_what_steers_a_terminal(look: Call, searching: ToolContext) -> None:
    (searching.cwd / os.fsdecode(b"n\xff\x1b\n.odd")).write_bytes(b"needle \xff\n")
    shown = "n\\xff\\x1b\\n.odd"
    assert shown in text(await look("ls")).splitlines()
    assert text(await look("find", pattern="*.odd")) == shown + "\n"
    assert text(await look("grep", pattern="needle", glob="*.odd")) == f"{shown}:1: needle \ufffd\n"


async def test_a_long_line_is_shown_by_its_beginning(look: Call, searching: ToolContext, said: Said) -> None:
    (searching.cwd / "min.js").write_bytes(b"needle" + b"z" * 3_000_000 + b"\nneedle\n")
    content = await look("grep", pattern="needle", glob="*.js")
    first, second = text(content).splitlines()
    assert first == "min.js:1: needle" + "z" * (search.WIDTH - 6)
    assert second == "min.js:2: needle"
    assert said(content) == {"matches": 2, "cutLines": 1}


async def test_many_long_matches_are_spilled_like_any_long_text(look: Call, searching: ToolContext) -> None:
    (searching.cwd / "log").write_bytes((b"needle" + b"z" * 400 + b"\n") * 500)
    content = await look("grep", pattern="needle", path="log", limit=500)
    assert isinstance(content[0], Spill)
    assert Path(content[0].path).read_text(encoding="utf-8").count("\n") == 500


@pytest.mark.parametrize("searching", ["stand-in"], indirect=True)
async def test_a_pattern_that_never_ends_is_ended(
    look: Call, searching: ToolContext, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "DEADLINE", 0.5)
    (searching.cwd / "evil").write_text("needle\n" + "a" * 60 + "!\n", encoding="utf-8")
    with pytest.raises(ToolFailed) as failure, anyio.fail_after(20):
        await look("grep", pattern="(a+)+$", path="evil")
    assert "Stopped after 0.5 s" in str(said(failure.value.content)["stopped"])


@pytest.mark.parametrize("searching", ["ripgrep"], indirect=True)
async def test_ripgrep_respects_gitignore(look: Call, searching: ToolContext) -> None:
    (searching.cwd / ".gitignore").write_text("sub/\n", encoding="utf-8")
    assert text(await look("find", pattern="*.py")) == "src/a.py\n"
    assert "b.py" not in text(await look("grep", pattern="needle"))
