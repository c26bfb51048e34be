"""The account of a client's journal sees each kind of broken promise."""

from pathlib import Path
from typing import Any

import pytest

from .journal import Account, Journal

TOLD = {"conversation": "c0", "executed": "", "notes": []}
DONE = {**TOLD, "token": "c0-1", "operation": "op", "status": "done", "texts": ["c0-1\n"]}
CASES: dict[str, tuple[list[dict[str, Any]], list[str], str]] = {
    "all is well": ([DONE], ["c0-1"], ""),
    "twice": ([DONE], ["c0-1", "c0-1"], "c0-1 ran 2 times"),
    "lost": ([], ["c0-1"], "c0-1 ran, and nobody was told how it ended"),
    "in doubt": ([{**DONE, "token": "", "texts": [], "notes": [["op2", "interrupted"]]}], ["c0-1"], ""),
    "in doubt elsewhere": (
        [{**DONE, "conversation": "c1", "token": "", "texts": [], "notes": [["op2", "interrupted"]]}],
        ["c0-1"],
        "c0-1 ran, and nobody was told how it ended",
    ),
    "crossed": ([DONE, {**DONE, "conversation": "c1", "token": "c1-1"}], ["c0-1"], "c1 was shown c0-1"),
    "never told": ([{**DONE, "status": "running", "texts": []}], [], "the end of op was never told"),
    "lost and ran": (
        [{**DONE, "status": "lost", "texts": []}],
        ["c0-1"],
        "c0-1 is said to be {'lost'} and ran",
    ),
    "done and did not run": ([{**DONE, "texts": []}], [], "c0-1 is said to be done; it ran 0 times"),
    "another end": ([DONE, {**DONE, "status": "lost"}], ["c0-1"], "op was done and is now lost"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_account_says_what_is_wrong(tmp_path: Path, case: str) -> None:
    told, effects, expected = CASES[case]
    journal = Journal(tmp_path / "journal")
    journal.write("asks", token="c0-1", keyed=True)
    for answer in told:
        journal.write("answered", **answer)
    found = Account(tmp_path / "journal").faults(effects)
    assert [fault for fault in found if fault == expected] == [expected] * bool(expected)
    assert expected or not found
