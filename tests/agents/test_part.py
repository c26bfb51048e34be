"""A part while it grows."""

import os
from pathlib import Path

import pytest
from chappie_agents import part as parts
from chappie_agents.part import WRITE_BACK, Part


def test_the_disk_begins_with_what_is_there_while_a_part_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each range once, in order, all but a last few bytes; and all of it is in the file."""
    told: list[tuple[int, int]] = []
    really = parts._begin_writing

    def spy(descriptor: int, at: int, length: int) -> None:
        told.append((at, length))
        really(descriptor, at, length)

    monkeypatch.setattr(parts, "_begin_writing", spy)
    part = Part.create(tmp_path / "file", parents=False)
    piece = os.urandom(1_000_000)
    for _ in range(30):
        part.write([piece])
    ends = [at + length for at, length in told]
    assert [at for at, _ in told] == [0, *ends[:-1]]
    assert 0 <= part.position - ends[-1] < WRITE_BACK
    part.settle()
    part.publish(overwrite=False)
    part.close()
    assert (tmp_path / "file").read_bytes() == piece * 30
    told.clear()
    again = Part.create(tmp_path / "other", parents=False)
    again.write([piece])
    again.close()
    back = Part.reopen(tmp_path / "other", again.name)
    back.write([piece] * 9)
    assert told == [(1_000_000, 9_000_000)]
    back.remove()
