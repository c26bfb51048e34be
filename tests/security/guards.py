"""Each guard taken away once: the test that names its case must fail, or it holds nothing.

`python -m tests.security.guards` (`make guards`, at most ten minutes) works on a copy of the tree, and
writes docs/security-guards.md.  With cases as arguments it tries these alone and writes nothing.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.manifest import CASES
from tests.security.guard import Guard
from tests.security.link_guards import LINK_GUARDS
from tests.security.oauth_guards import OAUTH_GUARDS

ROOT = Path(__file__).parent.parent.parent

LISTED = ROOT / "docs" / "security-guards.md"

_COPIED = ("chappie_bridge", "broker", "agents", "tests", "docs", "deploy")

_SECONDS = 120
"""A test that a missing guard lets run for ever has failed too."""


_HTTP = "tests/faces/chatgpt/test_http.py"
_ADMISSION = "chappie_bridge/faces/chatgpt/admission.py"
_GATE = "chappie_bridge/faces/chatgpt/gate.py"
_SITE = "chappie_bridge/faces/dashboard/site.py"
_DASHBOARD = "tests/faces/dashboard/test_site.py"
_POLICY = "agents/chappie_agents/policy.py"

GUARDS = (
    *OAUTH_GUARDS,
    *LINK_GUARDS,
    Guard(
        "S02",
        "the list of hosts",
        _ADMISSION,
        "if not self._knows(_authority(host)):",
        "if False:",
        f"{_HTTP}::test_foreign_hosts_and_pages_are_refused_on_every_route",
    ),
    Guard(
        "S03",
        "host and origin are looked at by default",
        _GATE,
        "refusal = self._admission.place(headers)",
        "refusal = None",
        f"{_HTTP}::test_foreign_hosts_and_pages_are_refused_on_every_route",
    ),
    Guard(
        "S04",
        "paths are compared by components",
        _POLICY,
        "return outer is not None and inner is not None and inner[: len(outer)] == outer",
        "return str(path).startswith(str(root))",
        "tests/agents/test_files.py::test_nothing_outside_a_root_is_read_or_written",
    ),
    Guard(
        "S04",
        "a component that decodes to `..` is refused",
        _POLICY,
        'if any(_climbs(component) for component in path.split("/")):',
        "if False:",
        "tests/agents/test_policy.py::test_encoded_dots_are_refused_and_never_decoded",
    ),
    Guard(
        "S05",
        "no link is followed between check and open",
        "agents/chappie_agents/resolved.py",
        "_WALK = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC",
        "_WALK = os.O_DIRECTORY | os.O_CLOEXEC",
        "tests/agents/test_resolved.py::test_a_swap_between_check_and_open_is_refused",
    ),
    Guard(
        "S06",
        "a command is judged by its tool alone",
        _POLICY,
        "        found, decision = self.resolve(path, cwd, tool, writing)\n",
        "        found, decision = self.resolve(path, cwd, tool, writing)\n"
        "        if decision is Decision.DENY and '$' in what:\n"
        "            return found\n",
        "tests/agents/test_policy.py::test_a_command_is_judged_by_its_tool_never_by_its_words",
    ),
    Guard(
        "S07",
        "an answer goes to the request it belongs to",
        "chappie_bridge/faces/chatgpt/server.py",
        '        exchange = cast("Exchange", ctx.request)\n        try:\n',
        '        exchange = cast("Exchange", ctx.request)\n'
        "        exchange = self.__dict__.setdefault(str(ctx.request_id), exchange)\n        try:\n",
        f"{_HTTP}::test_equal_ids_in_flight_never_cross",
    ),
    Guard(
        "S08",
        "a handle belongs to its principal",
        "broker/chappie_broker/broker.py",
        "        if operation.origin.principal != origin.principal:\n            raise UnknownOperation\n",
        "",
        "tests/broker/test_broker.py::test_no_outcome_reaches_another_conversation",
    ),
    Guard(
        "S08",
        "the same for what only the registry remembers",
        "broker/chappie_broker/earlier.py",
        "        if stored is not None and stored.principal != origin.principal:\n"
        "            raise UnknownOperation\n",
        "",
        "tests/security/test_principals.py",
    ),
    Guard(
        "S09",
        "web pages may not use the link",
        "broker/chappie_broker/guard.py",
        'if request.headers.get_all("Origin"):',
        "if False:",
        "tests/broker/test_hub.py::test_a_web_page_is_refused_before_its_token_is_looked_at",
    ),
    Guard(
        "S09",
        "only JSON is taken, which no form can send",
        _GATE,
        'if kind != "application/json":',
        "if False:",
        _HTTP,
    ),
    Guard(
        "S09",
        "a form of the dashboard carries its login's token",
        _SITE,
        "if not form.carries(login.token):",
        "if False:",
        _DASHBOARD,
    ),
    Guard(
        "S09",
        "a form of the dashboard comes from a page of this very server",
        _SITE,
        'if scope["method"] == "POST" and not _own_page(connection.headers):',
        "if False:",
        _DASHBOARD,
    ),
    Guard(
        "S10",
        "a configuration that others may write is refused",
        "chappie_bridge/config.py",
        "if mode.st_mode & stat.S_IWOTH or mode.st_uid not in (0, os.geteuid()):",
        "if False:",
        "tests/test_config.py::test_a_file_that_others_may_write_is_refused",
    ),
    Guard(
        "S11",
        "what only the owner may ask is refused to other devices",
        "broker/chappie_broker/desk.py",
        "        if isinstance(request, OWNERS):\n",
        "        if False:\n",
        "tests/broker/test_desk.py::test_another_device_cannot_type_unbind_or_look_around",
    ),
    Guard(
        "S11",
        "a device speaks for its own sessions, whatever it says",
        "broker/chappie_broker/peers.py",
        'if session is None or (device and caller.principal != f"device:{session.owner}"):',
        "if session is None:",
        "tests/broker/test_peers.py::test_nobody_asks_as_a_session_that_is_not_its_own",
    ),
    Guard(
        "S12",
        "web pages may not use the owner's socket",
        "broker/chappie_broker/guard.py",
        "    def __call__(self, transport: asyncio.Transport, request: Request) -> DeviceId:\n"
        "        _no_origin(request)\n",
        "    def __call__(self, transport: asyncio.Transport, request: Request) -> DeviceId:\n",
        "tests/broker/test_hub.py::test_a_web_page_is_refused_before_its_token_is_looked_at",
    ),
    Guard(
        "S13",
        "that no root is set is said",
        _POLICY,
        'lines = ["no root set: tools reach every file that this user can reach"]',
        "lines = []",
        "tests/agents/test_policy.py::test_without_a_root_everything_is_allowed_and_that_is_said",
    ),
    Guard(
        "S14",
        "an address has a size",
        "chappie_bridge/wire/reference.py",
        "if not address.startswith(SCHEME) or len(address) > MAX_ADDRESS:",
        "if not address.startswith(SCHEME):",
        "tests/security/test_parsers.py::test_what_is_too_long_is_refused_before_it_is_read",
    ),
    Guard(
        "S15",
        "no line goes through a shell",
        "broker/chappie_broker/clock.py",
        "from datetime import UTC, datetime\n",
        'import os\nfrom datetime import UTC, datetime\n\nRUN = os.system("true")\n',
        "tests/security/test_parsers.py::test_no_line_of_the_program_goes_through_a_shell",
    ),
    Guard(
        "S16",
        "only the open internet is downloaded from",
        "broker/chappie_broker/download.py",
        "if not allowed.anywhere(to) and not all(is_open(address) for address in addresses):",
        "if False:",
        "tests/broker/test_download.py::test_what_was_checked_is_what_is_reached",
    ),
    Guard(
        "S16",
        "an address inside another one counts",
        "broker/chappie_broker/addresses.py",
        "        if address.ipv4_mapped is not None:\n            return is_open(str(address.ipv4_mapped))\n",
        "        if address.ipv4_mapped is not None:\n            return True\n",
        "tests/broker/test_download.py::test_no_address_of_a_closed_network_is_reached",
    ),
    Guard(
        "S17",
        "what steers a terminal is written as an escape",
        "chappie_bridge/codec/unicode.py",
        "shown = _UNSAFE.sub(_escape, clean_text(text[: limit + 1])[0])",
        "shown = clean_text(text[: limit + 1])[0]",
        "tests/codec/test_unicode.py",
    ),
    Guard(
        "S17",
        "a file is written below its root only",
        _POLICY,
        "        if not self._within(found, writing):\n            return found, Decision.DENY\n",
        "",
        "tests/agents/test_files.py::test_nothing_outside_a_root_is_read_or_written",
    ),
    Guard(
        "S18",
        "off loopback there is TLS, or nobody listens",
        "broker/chappie_broker/hub.py",
        "if ssl is None and not is_loopback(host):",
        "if False:",
        "tests/broker/test_hub.py::test_off_loopback_without_tls_nobody_listens",
    ),
    Guard(
        "S18",
        "bad tokens have to wait",
        "broker/chappie_broker/guard.py",
        "        if count < FREE_GUESSES:\n            return\n",
        "        if count >= 0:\n            return\n",
        "tests/broker/test_hub.py::test_bad_tokens_have_to_wait_longer_and_longer",
    ),
    Guard(
        "S19",
        "another session's name is quoted",
        "broker/chappie_broker/peers.py",
        'name = f" {json.dumps(display(info.name, NAME), ensure_ascii=False)}" if info.name else ""',
        'name = f" {info.name}" if info.name else ""',
        "tests/broker/test_peers.py::test_no_name_passes_for_the_rest_of_a_label",
    ),
    Guard(
        "S19",
        "what stands on a page of the dashboard is text",
        "chappie_bridge/faces/dashboard/shown.py",
        "autoescape=True",
        "autoescape=False",
        _DASHBOARD,
    ),
    Guard(
        "S20",
        "changed definitions are on record",
        "broker/chappie_broker/peers.py",
        "        if session.definitions != digest:\n",
        "        if session.definitions is None:\n",
        "tests/broker/test_peers.py::test_definitions_that_change_are_on_record",
    ),
    Guard(
        "S20",
        "definitions of a session have a size",
        "chappie_bridge/faces/chatgpt/present.py",
        "shown = await self._fitting([[compact(each)] for each in definitions])",
        "shown = len(definitions)",
        "tests/faces/chatgpt/test_present.py::test_tools_are_whole_or_named",
    ),
    Guard(
        "S21",
        "the logs pass a filter",
        "chappie_bridge/cli/options.py",
        "    handler.addFilter(Redacting())\n",
        "    Redacting()\n",
        "tests/security/test_secrets.py::test_a_library_that_tells_all_tells_no_secret",
    ),
    Guard(
        "S21",
        "what a model sends is redacted in the audit log",
        "broker/chappie_broker/audit.py",
        'names = redact(",".join(display(call.name, 100) for call in message.calls[:8]))',
        'names = ",".join(display(call.name, 100) for call in message.calls[:8])',
        "tests/broker/test_audit.py::"
        "test_each_operation_has_a_line_before_and_one_after_without_its_arguments",
    ),
    Guard(
        "S22",
        "a frame of the link has a size",
        "broker/chappie_broker/hub.py",
        "subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=MAX_FRAME, logger=QUIET",
        "subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=None, logger=QUIET",
        "tests/broker/test_hub.py::test_a_frame_over_the_cap_is_refused_at_its_first_bytes",
    ),
    Guard(
        "S22",
        "a head over HTTP has a size",
        "chappie_bridge/cli/doorstep.py",
        "            if self._bytes > limit + len(data):\n",
        "            if limit < 0:\n",
        "tests/cli/test_doorstep.py::test_an_endless_line_is_cut",
    ),
    Guard(
        "S22",
        "a head over HTTP has its time",
        "chappie_bridge/cli/doorstep.py",
        "        self.expect(connection)\n\n    def went",
        "\n    def went",
        "tests/cli/test_doorstep.py::test_what_is_never_finished_is_cut",
    ),
    Guard(
        "S22",
        "a crowd is read a few connections a turn",
        "chappie_bridge/cli/doorstep.py",
        "not self._line and self._taken < A_TURN",
        "True",
        "tests/cli/test_doorstep.py::test_of_a_crowd_a_few_are_read_in_one_turn_of_the_loop",
    ),
    Guard(
        "S22",
        "a body over HTTP has a size",
        _GATE,
        "if size > 2 * limit:",
        "if False:",
        "tests/security/test_siege.py::test_a_body_without_an_end_is_cut_off",
    ),
    Guard(
        "S25",
        "a credential is needed on loopback, too",
        _ADMISSION,
        "        if given is None:\n            return self._unauthorized",
        '        if given is None:\n            return "owner"\n            return self._unauthorized',
        "tests/faces/chatgpt/test_admission.py",
    ),
    Guard(
        "S25",
        "a wrong credential is none",
        _ADMISSION,
        "        return found or self._unauthorized(",
        '        return found or "owner" or self._unauthorized(',
        f"{_HTTP}::test_nothing_is_served_without_a_credential",
    ),
    Guard(
        "S25",
        "`doctor` calls a public server without a credential a fault",
        "chappie_bridge/doctor.py",
        '"fault" if beyond else "warning"',
        '"warning"',
        "tests/test_doctor.py::test_no_authentication_is_told_and_in_public_a_fault",
    ),
    Guard(
        "S25",
        "`doctor` looks at every way that leads in from beyond this machine",
        "chappie_bridge/doctor.py",
        "if not is_loopback(Address.parse(settings.http).host):",
        "if False:",
        "tests/test_doctor.py::test_open_beyond_this_machine_is_a_fault_however_it_is_reached",
    ),
    Guard(
        "S25",
        "`doctor` tries the door without a credential",
        "chappie_bridge/doctor.py",
        'if auth == "secret" and _is_open(url):',
        "if False:",
        "tests/story/test_up.py::test_the_doctor_finds_a_door_that_is_open_against_the_configuration",
    ),
    Guard(
        "S25",
        "the start tells who is let in",
        "chappie_bridge/cli/words.py",
        "    lines.append(f\"  header   {header or 'none: whoever reaches the port is let in'}\")\n",
        "",
        "tests/cli/test_words.py::test_the_start_says_who_is_let_in",
    ),
)


def main() -> int:
    """0 when each test passes with its guard and fails without."""
    parser = argparse.ArgumentParser(prog="python -m tests.security.guards", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help="S01, S02, …; none: all")
    cases: list[str] = parser.parse_args().cases
    if unknown := set(cases) - {guard.case for guard in GUARDS}:
        parser.error(f"no guard is listed for {', '.join(sorted(unknown))}")
    chosen = [guard for guard in GUARDS if not cases or guard.case in cases]
    with tempfile.TemporaryDirectory(prefix="chappie-guards-") as directory:
        tree = Path(directory)
        _copy(tree)
        tests = sorted({guard.test for guard in chosen})
        if _run(tree, *tests, show=True) != 0:
            print("these tests do not pass as it is", file=sys.stderr)
            return 1
        held = {guard: _without(tree, guard) for guard in chosen}
    for guard, fails in held.items():
        print(f"{guard.case}  {'held' if fails else 'NOT HELD'}  {guard.what}: {guard.test}")
    if not cases:
        LISTED.write_text("".join(f"{line}\n" for line in _document(held)), encoding="utf-8")
    return 0 if all(held.values()) else 1


def _copy(tree: Path) -> None:
    for name in _COPIED:
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy(file, tree / file.name)


def _without(tree: Path, guard: Guard) -> bool:
    """Does its test fail without the guard?"""
    file = tree / guard.file
    text = file.read_text(encoding="utf-8")
    if text.count(guard.old) != 1:
        print(f"{guard.case}: {guard.file} has {guard.old!r} {text.count(guard.old)} times", file=sys.stderr)
        return False
    file.write_text(text.replace(guard.old, guard.new), encoding="utf-8")
    try:
        return _run(tree, guard.test) == 1
    finally:
        file.write_text(text, encoding="utf-8")


def _run(tree: Path, *tests: str, show: bool = False) -> int:
    paths = os.pathsep.join(str(tree / name) for name in (".", "broker", "agents"))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            timeout=_SECONDS * len(tests),
            stdout=None if show else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1
    return done.returncode


def _document(held: dict[Guard, bool]) -> Iterator[str]:
    yield "# The guards, each taken away once"
    yield ""
    yield "Written by `make guards`: in a copy of the tree one guard at a time is taken away, and the test"
    yield "beside it fails. A case is a published vulnerability or its kind; `python -m tests.manifest` lists"
    yield "all tests of each."
    yield ""
    yield "| case | known from | what is taken away | test | fails then |"
    yield "|---|---|---|---|---|"
    for case in (name for name in CASES if name.startswith("S")):
        found = [guard for guard in held if guard.case == case]
        for guard in found:
            test = guard.test.removeprefix("tests/").replace("::", "` `")
            fails = "yes" if held[guard] else "**no**"
            yield f"| {case} | {CASES[case]} | {guard.what} | `{test}` | {fails} |"
        if not found:
            yield f"| {case} | {CASES[case]} | no guard is listed yet | | |"


if __name__ == "__main__":
    sys.exit(main())
