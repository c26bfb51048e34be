"""The window of a transfer: asking is credit, and what a sink has written gives room."""

from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge.wire.transfer import Flow

steps = st.lists(st.tuples(st.sampled_from(["ask", "chunk", "send", "write", "old"]), st.integers(1, 40)))


@given(steps, st.integers(0, 500), st.integers(0, 300), st.booleans())
def test_no_more_than_the_window_is_ever_under_way(
    moves: list[tuple[str, int]], size: int, start: int, known: bool
) -> None:
    start = min(start, size)
    flow = Flow(start, size if known else None, window=100, pull=50)
    for move, amount in moves:
        if move == "ask":
            flow.next()
        elif move == "chunk":
            flow.take(flow.arrived, min(amount, flow.asked - flow.arrived))
        elif move == "send":
            flow.forward(min(amount, flow.arrived - flow.sent))
        elif move == "write":
            flow.credit(min(flow.written + amount, flow.sent))
        else:
            assert not flow.credit(flow.written)
            assert not flow.credit(flow.sent + 1)
            assert not flow.take(flow.arrived + 1, 1)
            assert not flow.take(flow.arrived, flow.asked - flow.arrived + 1)
        assert start <= flow.written <= flow.sent <= flow.arrived <= flow.asked
        assert flow.under_way <= 100
        assert not known or flow.asked <= size


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_every_byte_is_asked_for_once(size: int, start: int) -> None:
    start = min(start, size)
    flow = Flow(start, size, window=100, pull=30)
    asked = 0
    while not flow.complete:
        span = flow.next()
        assert span is not None
        assert span.offset == start + asked
        asked += span.length
        assert flow.take(span.offset, span.length)
        flow.forward(span.length)
        assert flow.credit(span.offset + span.length)
    assert asked == size - start
    assert flow.next() is None


def test_a_slow_sink_stops_the_source() -> None:
    flow = Flow(0, None, window=100, pull=50)
    assert flow.next() == (0, 50)
    assert flow.next() == (50, 50)
    assert flow.next() is None
    assert flow.take(0, 50)
    flow.forward(50)
    assert flow.next() is None
    assert flow.credit(50)
    assert flow.next() == (100, 50)
