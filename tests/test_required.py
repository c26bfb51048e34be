"""No test is left out in silence where everything is required."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.required import required

HERE = Path(__file__).parent

STATED = {
    ("agents/tools/test_write.py", "root may write anything"),
    ("agents/tools/test_write.py", "only root can give files away"),
    ("agents/test_resolved.py", "wrong platform: only Linux has /proc"),
    ("agents/tools/test_read.py", "wrong platform: only Linux has /proc"),
    ("broker/store/test_faults.py", "wrong platform: rights there are access lists"),
    ("broker/test_state.py", "wrong platform: no modes and no unix sockets there"),
    ("browser/stage.py", "not among CHAPPIE_SCENARIOS"),
    ("faults/test_kills.py", "takes a minute for each: `make test-faults` runs it"),
    ("hosts/test_hosts.py", "as we drive it, nothing makes it {what}"),
    ("hosts/test_local.py", "as we drive it, it starts without our MCP configuration"),
    ("hosts/test_subagents.py", "as we configure it, it has no tool that starts one"),
    ("test_websocket.py", "wrong platform: it has no such bound"),
}
"""Skips that no package and no setting of the machine would take away: by root or not, by platform, by what a
foreign program can do, by what was asked for on the command line."""


def test_what_is_there_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAPPIE_REQUIRE", "all")
    assert required("/usr/bin/rg", "ripgrep") == "/usr/bin/rg"


def test_what_is_missing_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHAPPIE_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="ripgrep"):
        required(None, "ripgrep")


def test_what_is_missing_fails_where_everything_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAPPIE_REQUIRE", "all")
    with pytest.raises(pytest.fail.Exception, match="ripgrep"):
        required(None, "ripgrep")


def test_every_other_skip_is_stated() -> None:
    found = {
        (file.relative_to(HERE).as_posix(), reason)
        for file in HERE.rglob("*.py")
        if file.name != "required.py"
        for reason in _skips(file)
    }
    assert found == STATED


def _skips(file: Path) -> Iterator[str]:
    """The reason of each call or mark that leaves a test out."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(attr="importorskip"), args=[name, *_]):
                yield f"importorskip {ast.unparse(name)}"
            case ast.Call(func=ast.Attribute(attr="skip"), args=[reason, *_]):
                yield _words(reason)
            case ast.Call(func=ast.Attribute(attr="skip" | "skipif"), keywords=keywords):
                yield "; ".join(_words(each.value) for each in keywords if each.arg == "reason")


def _words(reason: ast.expr) -> str:
    if isinstance(reason, ast.Constant):
        return str(reason.value)
    return ast.unparse(reason).removeprefix("f").strip("\"'")
