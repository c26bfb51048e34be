"""The named queries: all used, all fast by their plan."""

import re
from pathlib import Path

import chappie_broker.store.sqlite as package
import pytest
from chappie_broker.store.queries import QUERIES, parse
from chappie_broker.store.sqlite.database import DEFAULTS, open_connection

WALKS = {
    "devices": "SCAN device",
    "bindings": "SCAN binding",
    # And each one's conversation by its id.
    "bound_conversations": "SCAN binding USING COVERING INDEX binding_session",
    "sessions": "SCAN session USING INDEX session_first_seen",
    "unsettled_deliveries": "SCAN delivery USING INDEX delivery_unsettled",  # holds no other ones
    "recent_questions": "SCAN question USING INDEX question_changed",  # stops after as many as are asked
    "last_audit": "SCAN audit",  # from its end, and stops at the first
    "apps": "SCAN app",
    "app_grants": "SCAN app_grant",
    "subjects": "SCAN subject",
    "prune_devices": "SCAN device",  # a handful of rows, once in a while
}
"""What is read from one end to the other: all of it is wanted, at the start, or nearly nothing is there."""


def plan(name: str) -> list[str]:
    connection = open_connection(Path(":memory:"), DEFAULTS)
    sql = QUERIES[name].sql
    parameters = dict.fromkeys(re.findall(r":(\w+)", sql))
    steps = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]
    connection.close()
    return steps


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_the_plan_of_each_query_uses_an_index(name: str) -> None:
    steps = plan(name)
    assert [step for step in steps if step.startswith("SCAN")] == ([WALKS[name]] if name in WALKS else [])
    sorts = [step for step in steps if "TEMP B-TREE" in step]
    assert not sorts or name == "prune_devices"


def test_each_query_is_named_once_in_the_adapter() -> None:
    directory = Path(package.__file__).parent
    code = directory.joinpath("adapter.py").read_text(encoding="utf-8")
    named = set(re.findall(r'"([a-z_]+)"', code))
    assert set(QUERIES) - named == set()


def test_a_query_carries_its_sentence_and_one_statement() -> None:
    first = "-- A file.\n-- name: one\n-- Says what\n-- it does.\nSELECT 1\nFROM t;\n\n"
    queries = parse(first + "-- name: two\n-- And this.\nSELECT 2;\n")
    assert queries["one"] == ("Says what it does.", "SELECT 1\nFROM t")
    assert queries["two"].sql == "SELECT 2"


@pytest.mark.parametrize(
    "text",
    [
        "-- name: a\n-- One.\nSELECT 1;\n-- name: a\n-- Again.\nSELECT 2;",
        "-- name: a\nSELECT 1;",
        "-- name: a\n-- Nothing.\n",
    ],
)
def test_a_careless_file_of_queries_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="'a'"):
        parse(text)


def test_queries_stay_within_what_both_databases_read() -> None:
    for query in QUERIES.values():
        assert not re.search(r"\b(OR REPLACE|OR IGNORE|rowid|IFNULL|strftime|unixepoch|PRAGMA)\b", query.sql)
