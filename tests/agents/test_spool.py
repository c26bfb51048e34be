"""What is too long for a message: exact on the disk, bounded in memory, cut between characters."""

import base64
import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

import pytest
from chappie_agents.spool import STEP, Spool, first_part, last_part
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chappie_bridge.wire.blocks import SPILL_ABOVE, SPILL_PART, Image, ResourceLink, Spill, Text

DAY = 24 * 3600.0


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "state/spool")


def test_only_the_owner_can_look_into_it(spool: Spool, tmp_path: Path) -> None:
    block = spool.spill_text("x" * 100)
    assert stat.S_IMODE(spool.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(block.path).stat().st_mode) == 0o600
    assert Path(block.path).parent == spool.directory
    (tmp_path / "open").mkdir(mode=0o755)
    assert stat.S_IMODE(Spool(tmp_path / "open").directory.stat().st_mode) == 0o700


def test_a_text_is_kept_exactly_with_both_ends_shown(spool: Spool) -> None:
    text = "начало\r\n" + "x" * 200_000 + "\0\x1b конец"
    block = spool.spill_text(text)
    data = text.encode()
    assert Path(block.path).read_bytes() == data
    assert (block.size, block.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert text.startswith(block.head)
    assert text.endswith(block.tail)
    assert SPILL_PART - 4 < len(block.head.encode()) <= SPILL_PART
    assert SPILL_PART - 4 < len(block.tail.encode()) <= SPILL_PART


def test_a_lone_surrogate_becomes_the_replacement_character(spool: Spool) -> None:
    block = spool.spill_text("\ud83d" + "x" * 70_000 + "\ud83d\ude00")
    assert Path(block.path).read_text(encoding="utf-8") == "\ufffd" + "x" * 70_000 + "😀"


def test_only_blocks_above_the_bound_are_spilled(spool: Spool) -> None:
    image = Image(data=base64.b64encode(b"i" * SPILL_ABOVE).decode(), mime_type="image/png")
    link = ResourceLink(uri="chappie://x", name="x")
    small = (Text(text="x" * SPILL_ABOVE), Text(text="ж" * (SPILL_ABOVE // 2)), image, link)
    assert spool.fit(small) == small
    assert not list(spool.directory.iterdir())
    big = Image(data=base64.b64encode(b"i" * (SPILL_ABOVE + 1)).decode(), mime_type="image/webp")
    fitted = spool.fit((Text(text="ж" * (SPILL_ABOVE // 2) + "x"), link, big))
    assert [block.type for block in fitted] == ["spill", "resource_link", "spill"]
    assert isinstance(fitted[2], Spill)
    assert Path(fitted[2].path).read_bytes() == b"i" * (SPILL_ABOVE + 1)
    assert fitted[2].path.endswith(".webp")
    assert spool.fit(fitted) == fitted


def test_a_full_disk_costs_the_middle_not_the_result(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Spool, suffix: str) -> tuple[BinaryIO, Path]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Spool, "create", full)
    head, tail, note = spool.fit((Text(text="a" + "x" * 100_000 + "z"),))
    assert isinstance(head, Text)
    assert isinstance(tail, Text)
    assert isinstance(note, Text)
    assert (head.text[0], tail.text[-1]) == ("a", "z")
    assert "No space left" in note.text


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(1, 40_000), min_size=1, max_size=8),
    st.sampled_from(["x", "ж", "😀", "e\u0301", "\r\n"]),
)
def test_a_sink_gives_the_same_however_the_bytes_come(spool: Spool, sizes: list[int], unit: str) -> None:
    """B62: pieces may end anywhere."""
    data = (unit * sum(sizes)).encode()[: sum(sizes)]
    data = data.decode(errors="ignore").encode()
    with spool.sink() as sink:
        at = 0
        for size in sizes:
            sink.write(data[at : at + size])
            at += size
        kept = sink.close()
    assert (kept.size, kept.lossy, kept.cut) == (len(data), False, len(data) > SPILL_ABOVE)
    if kept.cut:
        expected = spool.spill_text(data.decode())
        (block,) = kept.content
        assert isinstance(block, Spill)
        assert block.model_copy(update={"path": ""}) == expected.model_copy(update={"path": ""})
        assert Path(block.path).read_bytes() == data
    else:
        assert kept.content == ((Text(text=data.decode()),) if data else ())


def test_a_sink_that_was_left_leaves_no_file(spool: Spool) -> None:
    with spool.sink() as sink:
        sink.write(b"x" * 100_000)
        assert list(spool.directory.iterdir())
    assert not list(spool.directory.iterdir())


def test_a_disk_that_fills_up_later_keeps_the_ends_and_the_hash(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"first" + b"x" * 300_000 + b"last"
    with spool.sink() as sink:
        sink.write(data[:100_000])

        def full(file: BinaryIO, chunk: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("chappie_agents.spool.write_all", full)
        sink.write(data[100_000:])
        kept = sink.close()
    assert (kept.path, kept.trouble, kept.cut) == (None, "No space left on device", True)
    assert kept.sha256 == hashlib.sha256(data).hexdigest()
    assert kept.content[0] == Text(text="first" + "x" * (SPILL_PART - 5))
    assert not list(spool.directory.iterdir())


@given(st.text(alphabet=st.sampled_from("aж😀\u0301\u200d\U0001f3fd🇩🇪\r\n"), max_size=60), st.integers(0, 60))
def test_a_part_is_as_long_as_whole_characters_allow(text: str, shift: int) -> None:
    filler = "x" * (SPILL_PART - shift)
    whole, mirror = filler + text, text + filler
    head, tail = first_part(whole), last_part(mirror)
    assert whole.startswith(head)
    assert mirror.endswith(tail)
    for part, of in ((head, whole), (tail, mirror)):
        assert len(part.encode()) <= SPILL_PART
        # At most the rest of a character and the sixteen that a cut may move.
        assert part == of or len(part.encode()) > SPILL_PART - 4 - 16 * 4


@pytest.mark.parametrize("cluster", ["e\u0301", "👍\U0001f3fd", "👩\u200d💻", "\r\n", "🇩🇪"])
def test_a_cut_falls_beside_a_cluster_not_into_it(cluster: str) -> None:
    for shift in range(1, len(cluster.encode())):
        text = "x" * (SPILL_PART - shift) + cluster + "y" * 100
        assert first_part(text) == "x" * (SPILL_PART - shift)
        text = "y" * 100 + cluster + "x" * (SPILL_PART - shift)
        assert last_part(text) == "x" * (SPILL_PART - shift)


def aged(spool: Spool, age: float, size: int, now: float) -> Path:
    path = Path(spool.spill_text("x" * size).path)
    os.utime(path, (now - age, now - age))
    return path


def test_a_sweep_removes_the_old_then_the_oldest_beyond_the_bytes(spool: Spool) -> None:
    now = 2_000_000_000.0
    old = aged(spool, DAY + 1, 10, now)
    oldest, middle, newest = (aged(spool, age, 100, now) for age in (300, 200, 100))
    (spool.directory / "notes").write_text("not ours", encoding="utf-8")
    assert sum(spool.sweep(older_than_seconds=DAY, max_bytes=1000, now=now)) == 1
    assert not old.exists()
    assert sum(spool.sweep(older_than_seconds=DAY, max_bytes=200, now=now)) == 1
    assert not oldest.exists()
    assert sum(spool.sweep(older_than_seconds=DAY, max_bytes=0, now=now)) == 2
    assert not middle.exists()
    assert not newest.exists()
    assert [path.name for path in spool.directory.iterdir()] == ["notes"]


def test_a_sweep_leaves_what_is_being_written(spool: Spool) -> None:
    with spool.sink() as sink:
        sink.write(b"x" * 100_000)
        assert sum(spool.sweep(older_than_seconds=-1, max_bytes=0, now=3e9)) == 0
        kept = sink.close()
    assert kept.path is not None
    assert kept.path.exists()
    assert sum(spool.sweep(older_than_seconds=DAY, max_bytes=0, now=3e9)) == 1


def test_a_sweep_does_a_bounded_amount_in_a_step(spool: Spool) -> None:
    now = 2_000_000_000.0
    for _ in range(STEP + 10):
        aged(spool, DAY * 2, 1, now)
    steps = list(spool.sweep(older_than_seconds=DAY, max_bytes=0, now=now))
    assert (max(steps), sum(steps)) == (STEP, STEP + 10)
