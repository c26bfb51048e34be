"""Content fitted to a message: bounded in JSON bytes, and nothing of it lost."""

import base64
import tempfile
from pathlib import Path

import pytest
from chappie_agents import bounded
from chappie_agents.spool import Spool
from hypothesis import given, settings
from hypothesis import strategies as st

from chappie_bridge.wire.blocks import SPILL_ABOVE, Block, Content, Image, ResourceLink, Spill, Text

lengths = st.sampled_from([0, 10, 500, 3_000, 20_000, 60_000, 120_000])
blocks = st.one_of(
    st.builds(
        lambda unit, count: Text(text=unit * count),
        st.sampled_from(["a", "\x00", "é", "😀", '"\n']),
        lengths,
    ),
    st.builds(
        lambda count: Image(data=base64.b64encode(b"\xff" * count).decode(), mime_type="image/png"),
        lengths,
    ),
    st.builds(lambda count: ResourceLink(uri="x:" + "y" * count, name="n"), lengths),
)


def size(content: Content) -> int:
    return sum(len(block.model_dump_json(exclude_none=True).encode()) + 1 for block in content)


@settings(max_examples=60, deadline=None)
@given(
    content=st.lists(blocks, max_size=30).map(tuple), limit=st.sampled_from([252 * 1024, bounded.RESULT_MAX])
)
def test_fitted_content_is_within_the_limit_and_its_files_hold_the_rest(content: Content, limit: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        spool = Spool(Path(directory))
        fitted = bounded.fit(content, spool, limit)
        assert size(fitted) <= limit
        assert len(fitted) == len(content)
        for before, after in zip(content, fitted, strict=True):
            if before != after:
                assert isinstance(after, Spill)
                assert Path(after.path).read_bytes() == data_of(before)
        if bounded.fits(content) and limit == bounded.RESULT_MAX:
            assert fitted == content


def data_of(block: Block) -> bytes:
    if isinstance(block, Text):
        return block.text.encode()
    if isinstance(block, Image):
        return base64.b64decode(block.data)
    return block.model_dump_json(exclude_none=True).encode()


def test_more_blocks_than_a_message_takes_are_kept_in_one_file(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    content: Content = tuple(Text(text=f"block {number}") for number in range(1000))
    fitted = bounded.fit(content, spool)
    assert len(fitted) == bounded.MAX_BLOCKS
    assert fitted[:-1] == content[: bounded.MAX_BLOCKS - 1]
    last = fitted[-1]
    assert isinstance(last, Spill)
    assert '"block 999"' in Path(last.path).read_text("utf-8")


@pytest.mark.parametrize("text", ["a" * SPILL_ABOVE, "é" * (SPILL_ABOVE // 4)])
def test_what_is_plainly_short_is_not_touched(text: str, tmp_path: Path) -> None:
    content: Content = (Text(text=text),)
    assert bounded.fits(content)
    assert bounded.fit(content, Spool(tmp_path)) == content


def test_without_a_disk_the_ends_are_kept_and_the_loss_is_said(tmp_path: Path) -> None:
    content: Content = (Text(text="a" * 400_000 + "z"), Image(data="QUJD" * 50_000, mime_type="image/png"))
    kept = bounded.cut(content)
    assert size(kept) <= bounded.RESULT_MAX
    first, second = kept
    assert isinstance(first, Text)
    assert isinstance(second, Text)
    assert first.text.startswith("aaa")
    assert first.text.endswith("z")
    assert "disk is full" in first.text
