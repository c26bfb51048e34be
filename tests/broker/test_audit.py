"""What the audit log says of a broker's work, how it is read, and what is counted."""

from pathlib import Path

import pytest
from chappie_broker.audit import Audit
from chappie_broker.hub import HubStatistics
from chappie_broker.measures import of_links
from chappie_broker.store.port import Retention
from chappie_broker.store.sqlite import InlineSqliteStore

from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.owner import Measures, ReadAudit, TakeMeasures
from chappie_bridge.wire.requests import Submit
from chappie_bridge.wire.values import NewCall
from tests.broker.rig import ScriptedAgent, an_office, broker, chat, settle_down

pytestmark = pytest.mark.anyio

SECRET = "q-Vs_0" * 8


async def test_each_operation_has_a_line_before_and_one_after_without_its_arguments(tmp_path: Path) -> None:
    """S21: who, where, what, size, how long; a secret in a tool's name is left out."""
    async with broker(tmp_path) as board:
        two = ScriptedAgent(board.dispatch)
        two.register("a")
        await settle_down()
        calls = tuple(
            NewCall(name=name, arguments={"path": SECRET})
            for name in ("noop", f"Bearer {SECRET}", "x\x1b[2J")
        )
        view = await board.call(Submit(caller=chat("c"), session=SessionId("a"), calls=calls))
        await board._audit.flush()
        office = an_office(board)
        after, before, *_ = (await office.audit(ReadAudit())).lines
        older = (await office.audit(ReadAudit(before=before.number, limit=1))).lines
        measures = await office.measures(TakeMeasures())
    assert (before.outcome, before.duration_ms, before.size) == ("sent", None, 3)
    assert (after.outcome, after.duration_ms is not None, after.size > 0) == (view.status, True, True)
    assert before.where == after.where == f"a {view.operation}"
    assert before.what.startswith("batch noop,Bearer …,x")
    assert before.who.startswith("conversation:")
    assert [line.number for line in older] == [before.number - 1]
    assert SECRET not in f"{before}{after}"
    assert "\x1b" not in before.what
    assert value(measures, "chappie_operations_total", kind="batch", outcome="done") == 1
    assert value(measures, "chappie_sessions", state="online") == 1


async def test_what_does_not_fit_is_counted_and_said(tmp_path: Path) -> None:
    """S22: a broker that cannot write its log goes on, and the log says that lines are missing."""
    store = await InlineSqliteStore.open(tmp_path / "broker.db")
    audit = Audit(store, now=lambda: 1.0, limit=2)
    for number in range(5):
        audit.note(who="x", what=str(number), target="")
    assert (audit.waiting, audit.lost_lines) == (2, 3)
    await audit.flush()
    lines = await store.audit_page()
    assert (lines[0].what, lines[0].size, lines[0].outcome) == ("audit", 3, "lines dropped")
    await store.close()


async def test_the_owner_says_how_much_of_the_log_is_kept(tmp_path: Path) -> None:
    kept = {"keep_audit": 60.0, "keep_deliveries": 61.0, "keep_questions": 62.0, "keep_results": 63.0}
    async with broker(tmp_path, audit_lines=1_000, **kept) as board:
        assert board._janitor._retention == Retention(
            audit=60.0, audit_lines=1_000, unsettled=61.0, questions=62.0, operations=63.0, settled=63.0
        )


def test_links_are_counted() -> None:
    found = Measures(measures=of_links(HubStatistics(5, 2, 3, 7)))
    assert value(found, "chappie_links") == 3
    assert value(found, "chappie_link_refused_total") == 7


def value(found: Measures, name: str, **labels: str) -> float:
    (measure,) = (each for each in found.measures if each.name == name)
    (sample,) = (each for each in measure.samples if each.labels == labels)
    return sample.value
