"""Real agent programs against a whole bridge.  Collected only when asked for by name: `make test-hosts`."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """These tests install programs from a registry and take minutes."""
    asked = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(each.is_relative_to(HERE) for each in asked) else True
