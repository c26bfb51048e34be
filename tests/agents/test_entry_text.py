"""The whole text of an entry, byte for byte, and lines found in it."""

import hashlib
import tempfile
from pathlib import Path

import pytest
from chappie_agents import entry_text
from chappie_agents.spool import Spool
from hypothesis import given, settings
from hypothesis import strategies as st

from chappie_bridge.wire.blocks import Content, Image, Spill, Text
from chappie_bridge.wire.errors import BadArguments, PathMissing
from chappie_bridge.wire.values import Entry
from tests.agents.stage import entry


def of(content: Content) -> Entry:
    return entry("e").model_copy(update={"content": content})


def spilled(spool: Spool, data: bytes) -> Spill:
    """As a command's output arrives: bytes, whatever they mean."""
    with spool.sink() as sink:
        sink.write(data)
        (block,) = sink.close().content
    assert isinstance(block, Spill)
    return block


def pieces(shown: Entry, spool: Spool, start: int = 0) -> list[tuple[int, str]]:
    whole = entry_text.survey(shown, spool)
    found: list[tuple[int, str]] = []
    offset: int | None = start
    while offset is not None:
        piece = entry_text.read(shown, whole, offset, spool)
        assert len(piece.text.encode()) <= 3 * entry_text.READ
        found.append((piece.offset, piece.text))
        assert piece.next_offset is None or piece.next_offset > offset
        offset = piece.next_offset
    return found


@settings(max_examples=40, deadline=None)
@given(
    unit=st.text(st.sampled_from("aé€😀\n"), min_size=1, max_size=7),
    repeat=st.integers(1, 9000),
    more=st.text(max_size=30),
)
def test_the_pieces_of_a_text_are_the_text_whatever_its_characters(unit: str, repeat: int, more: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        spool = Spool(Path(directory))
        shown = of((spool.spill_text(unit * repeat), Image(data="", mime_type="image/png"), Text(text=more)))
        text = unit * repeat + more
        assert "".join(piece for _, piece in pieces(shown, spool)) == text
        whole = entry_text.survey(shown, spool)
        assert (whole.total, whole.sha256) == (
            len(text.encode()),
            hashlib.sha256(text.encode()).hexdigest(),
        )


def test_an_offset_inside_a_character_begins_with_that_character(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    shown = of((Text(text="aé€😀z"),))
    whole = entry_text.survey(shown, spool)
    starts = [entry_text.read(shown, whole, offset, spool).offset for offset in range(whole.total + 1)]
    assert starts == [0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11]


def test_bytes_that_are_no_text_are_read_through_to_the_end_and_said_to_be_lossy(tmp_path: Path) -> None:
    """B28: control characters and invalid bytes neither stop nor shift the reading."""
    spool = Spool(tmp_path)
    data = bytes(range(256)) * 1000
    shown = of((spilled(spool, data),))
    whole = entry_text.survey(shown, spool)
    assert (whole.total, whole.sha256, whole.lossy) == (
        len(data),
        hashlib.sha256(data).hexdigest(),
        True,
    )
    found = pieces(shown, spool)
    for (start, text), (end, _) in zip(found, [*found[1:], (len(data), "")], strict=True):
        assert text == data[start:end].decode(errors="replace")


def test_a_piece_beyond_the_end_is_refused(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    shown = of((Text(text="short"),))
    whole = entry_text.survey(shown, spool)
    assert entry_text.read(shown, whole, 5, spool).text == ""
    with pytest.raises(BadArguments, match="5 bytes"):
        entry_text.read(shown, whole, 6, spool)


def test_a_spilled_block_whose_file_is_gone_shows_its_ends(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    block = spool.spill_text("a" * 50_000 + "b" * 50_000)
    Path(block.path).unlink()
    shown = of((block,))
    whole = entry_text.survey(shown, spool)
    assert whole.lossy
    text = "".join(piece for _, piece in pieces(shown, spool))
    assert text.startswith("a" * 32 * 1024 + "\n[… of 100000 bytes")
    assert text.endswith("b" * 32 * 1024)


def test_only_files_of_this_spool_are_opened(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    secret = tmp_path / "secret"
    secret.write_text("secret", encoding="utf-8")
    (spool.directory / "link").symlink_to(secret)
    inside = spool.directory / "sub"
    inside.mkdir()
    for path in (secret, spool.directory / "link", spool.directory / ".." / "secret", inside, Path("x")):
        with pytest.raises(PathMissing), entry_text.opened(str(path), spool):
            pytest.fail(f"opened {path}")


def test_found_lines_come_with_the_offset_at_which_they_begin(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    lines = [f"line {number} é" for number in range(5000)]
    lines[17] = "an ERROR here and an error there"
    lines[4000] = "x" * 1000 + "Error" + "y" * 1000
    text = "\n".join(lines)
    shown = of((Text(text="no"), spool.spill_text(text)))
    whole = entry_text.survey(shown, spool)
    matches, more = entry_text.find(whole, "error", 0, spool)
    assert (len(matches), more) == (2, False)
    assert matches[0].line == lines[17]
    data = ("no" + text).encode()
    assert data[matches[0].offset :].startswith(lines[17].encode())
    assert data[matches[1].offset :].startswith(b"xxx")
    assert "Error" in matches[1].line
    assert len(matches[1].line) < 310
    assert entry_text.find(whole, "error", matches[0].offset + 40, spool)[0] == matches[1:]


def test_matches_are_bounded_and_go_on_from_an_offset(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    shown = of((Text(text="hit\n" * 450),))
    whole = entry_text.survey(shown, spool)
    offset, seen, more = 0, 0, True
    while more:
        matches, more = entry_text.find(whole, "hit", offset, spool)
        assert len(matches) <= entry_text.MATCHES
        seen += len(matches)
        offset = matches[-1].offset + 4
    assert seen == 450
    with pytest.raises(BadArguments):
        entry_text.find(whole, "", 0, spool)
