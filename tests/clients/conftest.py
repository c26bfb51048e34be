"""A whole bridge for foreign clients.  Collected only when asked for by name: `make test-clients`."""

import base64
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

from chappie_bridge.demo.bridge import Ready, bridge
from tests.clients.environments import NotToBeHad

T = TypeVar("T")
HERE = Path(__file__).parent

NOTE = "one from the file\n"
FILE, IMAGE = "data.bin", "picture.png"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """These tests install programs from registries and take minutes."""
    asked = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(each.is_relative_to(HERE) for each in asked) else True


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    room = tmp_path_factory.mktemp("bridge")
    work = room / "work"
    work.mkdir()
    (work / "note.txt").write_text(NOTE, encoding="utf-8")
    (work / FILE).write_bytes(os.urandom(700_000))
    (work / IMAGE).write_bytes(PIXEL + os.urandom(100_000))
    config = room / "config.toml"
    config.write_text("cooldown = 0\n", encoding="utf-8")  # every client joins to work
    with bridge(room / "state", work, "--config", str(config)) as told:
        yield told


def had(install: Callable[[], T]) -> T:
    """What `install` gives; the test is skipped when it cannot be had, and fails with CHAPPIE_REQUIRE=all."""
    try:
        return install()
    except NotToBeHad as error:
        _without(str(error))


def _without(what: str) -> NoReturn:
    if os.environ.get("CHAPPIE_REQUIRE") == "all":
        pytest.fail(f"cannot be had: {what}")
    pytest.skip(f"cannot be had: {what}")
