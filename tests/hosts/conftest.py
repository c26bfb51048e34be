"""Real agent programs against a whole bridge.  Collected only when asked for by name: `make test-hosts`.

`CHAPPIE_HOSTS` names the programs to drive, all of them by default; those left out are printed."""

import os
from pathlib import Path

import pytest

from tests.hosts.programs import DRIVERS

HERE = Path(__file__).parent

CHOSEN = tuple(os.environ.get("CHAPPIE_HOSTS", " ".join(DRIVERS)).split())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """These tests install programs from a registry and take minutes."""
    asked = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(each.is_relative_to(HERE) for each in asked) else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", CHOSEN)


def pytest_report_header() -> list[str]:
    skipped = [name for name in DRIVERS if name not in CHOSEN]
    return [f"agent programs not driven in this run: {', '.join(skipped)}"] if skipped else []


@pytest.fixture
def chosen() -> tuple[str, ...]:
    return CHOSEN
