"""The line between two machines: read back as it was written, and nothing else is read."""

import sys
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.pairing import CA, OPEN, Pairing

PIN = "sha256:" + "ab" * 32
CODE = "ABCD-EFGH-JKMN-PQRS"


@pytest.mark.parametrize(
    ("url", "pin"), [("wss://h:1", PIN), ("wss://h/link", CA), ("ws://127.0.0.1:1", OPEN)]
)
def test_a_line_is_read_back_however_it_was_wrapped(url: str, pin: str) -> None:
    line = Pairing(url, CODE, pin)
    assert Pairing.parse(str(line)) == line
    assert Pairing.parse("  " + str(line).replace(" ", " \r\n\t") + "\n") == line


@pytest.mark.parametrize(
    "line",
    [
        "",
        f"wss://h {CODE}",
        f"wss://h {CODE} sha256:ab",
        f"wss://h {CODE} {OPEN}",
        f"ws://h {CODE} {PIN}",
        f"http://h {CODE} {CA}",
        f"wss://h c {CA}",
        f"wss://h {CODE} {PIN} more",
    ],
)
def test_another_line_is_refused_and_not_repeated(line: str) -> None:
    with pytest.raises(BadArguments) as refused:
        Pairing.parse(line)
    assert CODE not in str(refused.value)


@given(st.text() | st.lists(st.sampled_from(["wss://h", "ws:", CODE, PIN, CA, OPEN, " ", "\n"])).map("".join))
def test_whatever_is_pasted_is_read_or_refused(line: str) -> None:
    with suppress(BadArguments):
        assert Pairing.parse(line).pin


@pytest.mark.parametrize("piece", [" ", "a", "wss://", "sha256:", "é"])
def test_a_hostile_line_costs_no_steps(piece: str) -> None:
    """S22: counted in lines run, not in seconds: a megabyte costs what a kilobyte does."""

    def steps(text: str) -> int:
        count = 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal count
            count += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with suppress(BadArguments):
                Pairing.parse(text)
        finally:
            sys.settrace(before)
        return count

    assert steps(piece * 1_000_000) <= steps(piece * 2_000) + 5
