"""A whole bridge for foreign clients.  Collected only when asked for by name: `make test-clients`."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar, cast

import pytest

from chappie_bridge.demo.bridge import Ready, bridge, ended, environment
from tests.clients.environments import NotToBeHad
from tests.clients.shop import Shop, shop
from tests.required import required

T = TypeVar("T")
HERE = Path(__file__).parent

NOTE = "one from the file\n"
FILE, IMAGE = "data.bin", "picture.png"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@dataclass(frozen=True)
class Elsewhere:
    """Another session of the same bridge, on a link of its own; `directory` is where it works."""

    session: str
    directory: Path


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """These tests install programs from registries and take minutes."""
    asked = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(each.is_relative_to(HERE) for each in asked) else True


@pytest.fixture(scope="session")
def store() -> Iterator[Shop]:
    with shop() as open_:
        yield open_


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory, store: Shop) -> Iterator[Ready]:
    room = tmp_path_factory.mktemp("bridge")
    work = room / "work"
    work.mkdir()
    (work / "note.txt").write_text(NOTE, encoding="utf-8")
    (work / FILE).write_bytes(os.urandom(700_000))
    (work / IMAGE).write_bytes(PIXEL + os.urandom(100_000))
    config = room / "config.toml"
    settings = f'cooldown = 0\ndownload_hosts = ["{store.address}"]\n'  # every client joins to work
    config.write_text(settings, encoding="utf-8")
    with bridge(room / "state", work, "--config", str(config)) as told:
        yield told


@pytest.fixture(scope="session")
def elsewhere(ready: Ready) -> Iterator[Elsewhere]:
    directory = ready.state.parent / "elsewhere"
    directory.mkdir()
    (directory / FILE).write_bytes(os.urandom(900_001))
    argv = [sys.executable, "-m", "chappie_bridge.cli", "agent", "--json", "--state", str(ready.state)]
    argv += ["--directory", str(directory)]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment())
    with ended(process):
        line = cast("IO[bytes]", process.stdout).readline()
        yield Elsewhere(json.loads(line)["session"], directory)


def had(install: Callable[[], T]) -> T:
    """What `install` gives, or `required` decides."""
    try:
        return install()
    except NotToBeHad as error:
        return required(None, str(error))
