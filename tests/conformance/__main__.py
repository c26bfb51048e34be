"""The public MCP conformance suite against a whole bridge: `python -m tests.conformance`, `make conformance`.

Two releases of the suite, three runs.  Each has a baseline of expected failures beside this file; an entry
without its reason, an entry that no longer fails and a failure without an entry all fail the run.  The
scenarios for authorization servers are driven by `authorization.py`.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from chappie_bridge.demo.bridge import bridge
from tests.clients.environments import NotToBeHad, environment, node, node_environment
from tests.conformance import authorization
from tests.required import demanded

HERE = Path(__file__).parent

SECONDS = 120
"""For one run; it takes about ten."""

HOLLOW = frozenset(
    {
        "tools-call-simple-text",  # satisfied by the text of the error that names the unknown tool
        "tools-call-error",  # likewise
        "server-session-lifecycle",  # no check without a transport session, which this server never opens
        "input-required-result-unsupported-methods",  # its fixture tool is missing, so nothing is asked
        "input-required-result-ignore-extra-params",  # likewise
        "tasks-status-notifications",  # skips itself
    }
)
"""Scenarios that are green without saying anything about this server."""

BAD = ("FAILURE", "WARNING")

_ENTRY = re.compile(r"  - (\S+) +# \S.*")
_RESULT = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


class Run(NamedTuple):
    """`by_check`: the baseline names single checks, else whole scenarios, as the release understands it."""

    package: str
    options: tuple[str, ...]
    baseline: str
    by_check: bool


RUNS = (
    Run("conformance", ("--suite", "all"), "0.1.16.yml", by_check=False),
    Run("conformance_next", ("--requirements", "2025-11-25"), "0.2-2025-11-25.yml", by_check=True),
    Run("conformance_next", ("--requirements", "2026-07-28"), "0.2-2026-07-28.yml", by_check=True),
)


def main() -> int:
    try:
        node()
        places = {run.package: environment("npm", run.package) for run in RUNS}
    except NotToBeHad as error:
        print(f"conformance skipped, its suite cannot be had: {error}", file=sys.stderr)
        return int(demanded())
    with tempfile.TemporaryDirectory(prefix="chp") as room:
        work = Path(room, "work")
        work.mkdir()
        config = Path(room, "config.toml")
        config.write_text('auth = "none"\n', encoding="utf-8")  # the suite cannot send a credential
        config.chmod(0o600)
        with bridge(Path(room, "state"), work, "--config", str(config)) as ready:
            good = [_good(run, places[run.package], ready.mcp, Path(room, run.baseline)) for run in RUNS]
        with bridge(Path(room, "closed"), work) as ready:
            good.append(authorization.good(places["conformance_next"], ready, Path(room, "authorization")))
    return 0 if all(good) else 1


def _good(run: Run, place: Path, url: str, results: Path) -> bool:
    """Run one suite and say how it went.  What the suite itself prints is shown only when it fails: its
    totals would be read as ours."""
    expected, unexplained = _baseline(HERE / run.baseline)
    argv = [str(node() / "bin" / "node")]
    argv += [str(place / "node_modules/@modelcontextprotocol/conformance/dist/index.js"), "server"]
    argv += ["--url", url, *run.options, "--expected-failures", str(HERE / run.baseline), "-o", str(results)]
    done = subprocess.run(
        argv, env=node_environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    failed: set[str] = set()
    scenarios: Counter[str] = Counter()
    passed = 0
    for scenario, checks in _outcomes(results):
        bad = [check for check, status in checks if status in BAD]
        failed |= {f"{scenario}:{check}" if run.by_check else scenario for check in bad}
        scenarios["failed" if bad else "hollow" if scenario in HOLLOW else "passed"] += 1
        passed += sum(status == "SUCCESS" for _, status in checks)
    faults = {
        # The suite itself does not say so of a check that was not reached, or that a release does not count.
        "no longer fails": expected - failed,
        "fails unexpectedly": failed - expected,
        "has no reason": unexplained,
    }
    if done.returncode == 0 and scenarios["passed"] and not any(faults.values()):
        print(
            f"{run.baseline.removesuffix('.yml')} {' '.join(run.options)}: {passed} checks pass; of the"
            f" scenarios {scenarios['passed']} pass, {scenarios['hollow']} more say nothing,"
            f" {scenarios['failed']} fail where the baseline expects it"
        )
        return True
    print(done.stdout[done.stdout.find("=== SUMMARY ===") :], done.stderr, file=sys.stderr)
    for title, entries in faults.items():
        for entry in sorted(entries):
            print(f"{run.baseline}: {title}: {entry}", file=sys.stderr)
    return False


def _baseline(file: Path) -> tuple[set[str], set[str]]:
    """The expected failures, and the lines among them that give no reason."""
    expected: set[str] = set()
    unexplained: set[str] = set()
    for line in file.read_text(encoding="utf-8").splitlines():
        if entry := _ENTRY.fullmatch(line):
            expected.add(entry[1])
        elif line.lstrip().startswith("-"):
            unexplained.add(line.strip())
    return expected, unexplained


def _outcomes(results: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each scenario that ran, with its checks: id and status."""
    for file in sorted(results.glob("*/checks.json")):
        name = _RESULT.fullmatch(file.parent.name)
        assert name is not None, file
        checks = json.loads(file.read_text(encoding="utf-8"))
        yield name[1], [(check["id"], check["status"]) for check in checks]


if __name__ == "__main__":
    sys.exit(main())
