"""`edit`: exact replacements, all of them or none."""

from collections.abc import Awaitable, Callable, Sequence

import pytest
from chappie_agents.tools import ToolContext
from chappie_agents.tools.difference import Replacement, apply
from chappie_agents.tools.edit import EDIT
from pydantic import JsonValue

from chappie_bridge.wire.blocks import Content, Text
from chappie_bridge.wire.errors import BadArguments

pytestmark = pytest.mark.anyio

Call = Callable[..., Awaitable[Content]]
Said = Callable[[Content], dict[str, JsonValue]]


def change(old: str, new: str, **more: JsonValue) -> JsonValue:
    return {"oldText": old, "newText": new, **more}


@pytest.mark.parametrize(
    ("before", "edits", "after"),
    [
        pytest.param("a\nb\nc\n", [change("b", "B")], "a\nB\nc\n", id="one word"),
        pytest.param(
            "a\nb\nc\n", [change("a\n", ""), change("c\n", "C\nD\n")], "b\nC\nD\n", id="two at once"
        ),
        pytest.param(
            "x1 x2", [change("x2", "x1"), change("x1", "x2")], "x2 x1", id="all against the original"
        ),
        pytest.param("a a a", [change("a", "b", replaceAll=True)], "b b b", id="every one"),
        pytest.param("aaaa", [change("aa", "b", replaceAll=True)], "bb", id="every one without overlap"),
        pytest.param("a.*b axxb", [change("a.*b", "c")], "c axxb", id="no pattern"),
        pytest.param("\ufeffone\ntwo\n", [change("one\ntwo", "1\n2")], "\ufeff1\n2\n", id="BOM kept"),
        pytest.param(
            "one\r\ntwo\r\nend", [change("one\ntwo", "1\n2\n3")], "1\r\n2\r\n3\r\nend", id="B78 LF on CRLF"
        ),
        pytest.param(
            "one\r\ntwo\r\n", [change("one", "1\n1")], "1\r\n1\r\ntwo\r\n", id="B78 new lines are CRLF too"
        ),
        pytest.param("one\r\ntwo\r\n", [change("one\r\n", "1\n")], "1\ntwo\r\n", id="CR given: exactly so"),
        pytest.param("a\r\n\r\nb\r\n", [change("\n\n", "\n")], "a\r\nb\r\n", id="B78 empty lines"),
        pytest.param("a\nb\r\nc\n", [change("a\nb\nc", "x\ny\nz")], "x\ny\nz\n", id="mixed: as the first"),
        pytest.param("a\rb", [change("a\rb", "c")], "c", id="lone CR"),
        pytest.param("ж😀", [change("😀", "é")], "жé", id="beyond ASCII"),
    ],
)
async def test_an_edit_makes_exactly_this_of_it(
    call: Call, context: ToolContext, before: str, edits: list[JsonValue], after: str
) -> None:
    """B78: an LF pattern matches a CRLF file, and CRLF stays."""
    (context.cwd / "file").write_bytes(before.encode())
    (context.cwd / "file").chmod(0o640)
    await call("edit", path="file", edits=edits)
    assert (context.cwd / "file").read_bytes().decode() == after
    assert (context.cwd / "file").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("before", "edits", "message"),
    [
        pytest.param("a a", [change("a", "b")], "Edit 1: oldText is there more than once", id="two"),
        pytest.param("aaa", [change("aa", "b")], "more than once", id="two that overlap"),
        pytest.param("a\r\nb\r\na\r\nb", [change("a\nb", "c")], "lines 1, 3", id="two over CRLF"),
        pytest.param(
            "abc", [change("ab", "x"), change("bc", "y")], "Edits 1 and 2 overlap at line 1", id="overlap"
        ),
        pytest.param(
            "abc", [change("a", "x"), change("z", "y")], "Edit 2: oldText is not in the file", id="one of two"
        ),
        pytest.param(
            "\tdef f():\n", [change("    def f():\n", "x")], "line 1: '\\tdef f():'", id="nearest: blanks"
        ),
        pytest.param(
            "x\nreturn total\n", [change("return totals", "x")], "line 2: 'return total'", id="nearest"
        ),
        pytest.param("abc", [change("b", "b")], "change nothing", id="nothing to do"),
        pytest.param("a\r\nb", [change("a\rb", "c")], "not in the file", id="CR is exact"),
        pytest.param("a\r\n\r\nb\n", [change("a\nb", "c")], "not in the file", id="no line is skipped"),
    ],
)
async def test_nothing_is_written_unless_every_edit_fits(
    failing: Call, context: ToolContext, before: str, edits: list[JsonValue], message: str
) -> None:
    (context.cwd / "file").write_bytes(before.encode())
    (block,) = await failing("edit", path="file", edits=edits)
    assert isinstance(block, Text)
    assert message in block.text
    assert (context.cwd / "file").read_bytes().decode() == before


async def test_the_result_is_a_unified_diff(call: Call, context: ToolContext, said: Said) -> None:
    (context.cwd / "file").write_text("1\n2\n3\n4\n5\n6", encoding="utf-8")
    content = await call("edit", path="file", edits=[change("5\n6", "five\n6!")])
    name = context.cwd / "file"
    assert content[0] == Text(
        text=f"--- {name}\n+++ {name}\n@@ -2,5 +2,5 @@\n 2\n 3\n 4\n-5\n-6\n\\ No newline at end of file\n"
        "+five\n+6!\n\\ No newline at end of file\n"
    )
    assert said(content) == {"path": str(name), "replacements": 1, "bytes": 15}


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"caf\xe9", "not UTF-8 at byte 3"), (None, "no such file")],
)
async def test_a_file_that_cannot_be_edited_says_why(
    failing: Call, context: ToolContext, data: bytes | None, message: str
) -> None:
    if data is not None:
        (context.cwd / "file").write_bytes(data)
    (block,) = await failing("edit", path="file", edits=[change("a", "b")])
    assert isinstance(block, Text)
    assert message in block.text


async def test_a_file_that_changed_under_the_edit_is_left_alone(
    failing: Call, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = context.cwd / "file"
    file.write_text("mine", encoding="utf-8")

    def meanwhile(text: str, places: Sequence[Replacement]) -> str:
        file.write_text("somebody else's", encoding="utf-8")
        return apply(text, places)

    monkeypatch.setattr("chappie_agents.tools.edit.apply", meanwhile)
    (block,) = await failing("edit", path="file", edits=[change("mine", "ours")])
    assert isinstance(block, Text)
    assert "changed by somebody else" in block.text
    assert file.read_text(encoding="utf-8") == "somebody else's"
    assert [path.name for path in context.cwd.iterdir()] == ["file"]


async def test_a_huge_diff_is_bounded_and_says_so(call: Call, context: ToolContext, said: Said) -> None:
    (context.cwd / "file").write_text("old line\n" * 50_000, encoding="utf-8")
    content = await call("edit", path="file", edits=[change("old", "new", replaceAll=True)])
    assert isinstance(content[0], Text)
    assert len(content[0].text) <= 32 * 1024
    assert (said(content)["replacements"], said(content)["diffCut"]) == (50_000, True)


def test_an_empty_old_text_or_an_unknown_key_is_refused() -> None:
    with pytest.raises(BadArguments, match=r"`edits\[0\].oldText`"):
        EDIT.parse({"path": "x", "edits": [change("", "b")]})
    with pytest.raises(BadArguments, match="did you mean `oldText`"):
        EDIT.parse({"path": "x", "edits": [{"old_text": "a", "newText": "b"}]})
    with pytest.raises(BadArguments, match="edits"):
        EDIT.parse({"path": "x", "edits": []})
