"""The journal: what survives a killed process, what is offered again, what is forgotten and when."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from chappie_agents import outbox as module
from chappie_agents.outbox import Outbox
from chappie_agents.scribe import Scribe
from chappie_agents.spool import Spool
from chappie_agents.transcript import Transcript

from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.errors import DiskFull, Executed
from chappie_bridge.wire.ids import InputId, Mint, OperationId
from chappie_bridge.wire.messages import Finished, RunBatch
from chappie_bridge.wire.values import ToolResult
from tests.agents.stage import ORIGIN, SESSION, Clock, batch, call

ROOT = Path(__file__).parents[2]
CHILD = "tests.agents.journal_child"


class Desk:
    """A journal on its transcript, without a session."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.transcript = Transcript(directory, Spool(directory / "spool"))
        self.scribe = Scribe(self.transcript, now=clock, mint=Mint())
        self.outbox = Outbox(directory / "journal", self.transcript, SESSION, now=clock)

    def begin(self, message: RunBatch) -> None:
        self.outbox.accept(
            message.operation, ORIGIN, kind="batch", cwd="/work", calls=[each.id for each in message.calls]
        )
        self.scribe.calls(message)

    def result(self, message: RunBatch, index: int, text: str) -> ToolResult:
        asked = message.calls[index]
        result = ToolResult(
            call=asked.id, name=asked.name, is_error=False, duration_ms=7, content=(Text(text=text),)
        )
        self.outbox.result(message.operation, index, self.scribe.result(message.operation, result))
        return result

    def finish(self, message: RunBatch, count: int) -> Finished:
        finished = Finished(
            operation=message.operation,
            session=SESSION,
            origin=ORIGIN,
            kind="batch",
            status="done",
            executed=Executed.YES,
            cwd="/work",
            count=count,
        )
        self.outbox.finish(finished)
        return finished

    def run(self, text: str = "done") -> tuple[RunBatch, ToolResult, Finished]:
        message = batch(call("say", text=text))
        self.begin(message)
        return message, self.result(message, 0, text), self.finish(message, 1)

    def type(self, name: str, text: str) -> None:
        self.outbox.offer(InputId(name), "then", self.scribe.typed((Text(text=text),), "then"))

    def close(self) -> None:
        self.transcript.close()
        self.outbox.close()


@contextmanager
def desk(directory: Path, clock: Clock | None = None) -> Iterator[Desk]:
    opened = Desk(directory, clock or Clock())
    try:
        yield opened
    finally:
        opened.close()


def test_an_outcome_is_read_back_as_it_was_also_after_a_restart(tmp_path: Path) -> None:
    with desk(tmp_path) as first:
        message = batch(call("say", text="a"), call("say", text="b"))
        first.begin(message)
        assert first.outbox.running(message.operation)
        assert first.outbox.outcome(message.operation) is None
        results = [first.result(message, 1, "b"), first.result(message, 0, "a")]
        finished = first.finish(message, 2)
        outcome = first.outbox.outcome(message.operation)
        assert outcome is not None
        assert [told.result for told in outcome.results] == results[::-1]
        assert [told.index for told in outcome.results] == [0, 1]
        assert outcome.finished == finished
    with desk(tmp_path) as second:
        assert second.outbox.outcome(message.operation) == outcome
        assert second.outbox.unsettled() == second.outbox.known() == (message.operation,)
        assert second.outbox.interrupted == ()


def test_a_killed_process_leaves_its_finished_results_and_one_honest_doubt(tmp_path: Path) -> None:
    """B48: what was begun and not finished is interrupted, with the results that were complete."""
    child = subprocess.Popen(
        [sys.executable, "-m", CHILD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8"
    )
    assert child.stdout is not None
    done, begun, typed = child.stdout.readline().split()
    child.send_signal(signal.SIGKILL)
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    with desk(tmp_path) as after:
        assert after.transcript.torn == 0
        whole = after.outbox.outcome(OperationId(done))
        assert whole is not None
        assert whole.finished.status == "done"
        half = after.outbox.outcome(OperationId(begun))
        assert half is not None
        assert [told.index for told in half.results] == [0, 2]
        assert (half.finished.status, half.finished.executed) == ("interrupted", Executed.UNKNOWN)
        assert half.finished.count == 2
        assert half.finished.error is not None
        assert half.finished.error.code == "interrupted"
        assert half.finished.origin == ORIGIN
        assert after.outbox.interrupted == (half.finished,)
        assert after.outbox.inputs() == (typed,)
    with desk(tmp_path) as again:
        assert again.outbox.interrupted == ()
        assert again.outbox.outcome(OperationId(begun)) == half


def test_input_waits_in_its_order_until_it_is_settled(tmp_path: Path) -> None:
    """B38 B40: three typed, the process gone, three there again, in order."""
    with desk(tmp_path) as first:
        for number in range(3):
            first.type(f"in_{number}", f"text {number}")
    with desk(tmp_path) as second:
        found = [second.outbox.input(each) for each in second.outbox.inputs()]
        assert [each and (each.id, each.content) for each in found] == [
            (f"in_{number}", (Text(text=f"text {number}"),)) for number in range(3)
        ]
        second.outbox.settle((), [InputId("in_0"), InputId("in_2"), InputId("nobody")])
    with desk(tmp_path) as third:
        assert third.outbox.inputs() == ("in_1",)
        assert third.outbox.input(InputId("in_0")) is None


def test_a_settled_outcome_stays_readable_for_a_day(tmp_path: Path) -> None:
    """B42: settling marks, only time deletes."""
    clock = Clock()
    with desk(tmp_path, clock) as first:
        message, _, finished = first.run()
        first.outbox.settle([message.operation])
        first.outbox.settle([message.operation])
        assert first.outbox.unsettled() == ()
        clock.time += module.KEEP - 1
        assert first.outbox.prune() == ()
        kept = first.outbox.outcome(message.operation)
        assert kept is not None
        assert kept.finished == finished
    clock.time += 2
    with desk(tmp_path, clock) as second:
        assert second.outbox.has(message.operation)
        second.outbox.prune()
        assert not second.outbox.has(message.operation)
        assert second.outbox.outcome(message.operation) is None


def test_an_unsettled_outcome_outlives_the_day_and_is_never_dropped_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNSETTLED", 3)
    clock = Clock()
    with desk(tmp_path, clock) as first:
        names = [first.run()[0].operation for _ in range(5)]
        clock.time += 10 * module.KEEP
        assert first.outbox.prune() == tuple(names[:2])
        assert first.outbox.unsettled() == tuple(names[2:])
    with desk(tmp_path, clock) as second:
        assert second.outbox.unsettled() == tuple(names[2:])
        assert second.outbox.outcome(names[4]) is not None


def test_the_number_of_settled_outcomes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SETTLED", 4)
    with desk(tmp_path) as first:
        names = [first.run()[0].operation for _ in range(10)]
        first.outbox.settle(names)
        first.outbox.prune()
        assert set(first.outbox.known()) == set(names[6:])


def test_a_registration_names_the_running_and_the_unsettled_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 4)
    with desk(tmp_path) as first:
        names = [first.run()[0].operation for _ in range(5)]
        first.outbox.settle(names[:4])
        running = batch(call("say", text="x"))
        first.begin(running)
        assert first.outbox.known() == (running.operation, names[4], names[3], names[2])


def test_old_files_go_once_nothing_in_them_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT", 2000)
    clock = Clock()
    with desk(tmp_path, clock) as first:
        first.type("in_0", "still waiting")
        names = [first.run()[0].operation for _ in range(40)]
        first.outbox.settle(names)
        files = len(list((tmp_path / "journal").iterdir()))
        assert files > 5
        clock.time += module.KEEP + 1
        first.outbox.prune()
        assert len(list((tmp_path / "journal").iterdir())) == files
        first.outbox.settle((), [InputId("in_0")])
        first.outbox.prune()
        assert len(list((tmp_path / "journal").iterdir())) == 1
        first.outbox.sync()
        after, _, _ = first.run()
    with desk(tmp_path, clock) as second:
        assert second.outbox.known() == (after.operation,)
        assert second.outbox.outcome(after.operation) is not None


def test_a_torn_record_at_the_end_costs_only_itself(tmp_path: Path) -> None:
    with desk(tmp_path) as first:
        message, _, _ = first.run()
    (segment,) = (tmp_path / "journal").iterdir()
    with segment.open("ab") as file:
        file.write(b'{"finish":{"oper')
    with desk(tmp_path) as second:
        assert second.outbox.unsettled() == (message.operation,)
        later, _, _ = second.run()
    with desk(tmp_path) as third:
        assert third.outbox.unsettled() == (message.operation, later.operation)


def test_results_that_the_disk_lost_make_the_outcome_doubtful(tmp_path: Path) -> None:
    with desk(tmp_path) as first:
        message, _, _ = first.run()
    lines = (tmp_path / "transcript.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "transcript.jsonl").write_bytes(b"".join(lines[:-1]))
    with desk(tmp_path) as second:
        outcome = second.outbox.outcome(message.operation)
        assert outcome is not None
        assert outcome.results == ()
        assert (outcome.finished.status, outcome.finished.count) == ("interrupted", 0)


def test_a_full_disk_begins_nothing_and_loses_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with desk(tmp_path) as first:
        message = batch(call("say", text="a"))
        first.begin(message)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(DiskFull):
                first.begin(batch(call("say", text="b")))
            with pytest.raises(DiskFull):
                first.result(message, 0, "a")
            asked = message.calls[0]
            result = ToolResult(
                call=asked.id, name="say", is_error=False, duration_ms=1, content=(Text(text="a"),)
            )
            first.outbox.result(message.operation, 0, result)
            finished = first.finish(message, 1)
        outcome = first.outbox.outcome(message.operation)
        assert outcome is not None
        assert [told.result for told in outcome.results] == [result]
        assert outcome.finished == finished


def test_a_record_written_in_part_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    with desk(tmp_path) as first:
        message, _, _ = first.run()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:10]))
            with pytest.raises(DiskFull):
                first.begin(batch(call("say", text="b")))
            with pytest.raises(DiskFull):
                first.type("in_0", "lost")
        later, _, _ = first.run()
    with desk(tmp_path) as second:
        assert second.transcript.torn == 0
        assert second.outbox.unsettled() == (message.operation, later.operation)
        assert second.outbox.outcome(later.operation) is not None
