"""The manifest and the tests agree."""

from tests.manifest import CASES, CONTRACT, WAITING, all_tests, covered, named


def test_every_case_that_a_test_claims_is_a_known_one() -> None:
    assert sorted(covered()) == sorted(CASES)


def test_every_case_has_a_test() -> None:
    assert {case for case, held in covered().items() if not held} <= WAITING


def test_every_promise_names_tests_that_exist() -> None:
    existing = {name for name, _ in all_tests()}
    missing = {promise: sorted(set(held) - existing) for promise, held in CONTRACT.items()}
    assert not {promise: names for promise, names in missing.items() if names}


def test_several_cases_may_share_a_docstring() -> None:
    assert named("B70 B71: both.") == ["B70", "B71"]
    assert named("B62: one.") == ["B62"]
    assert named("B62") == ["B62"]
    assert named("About B62: nothing.") == []
