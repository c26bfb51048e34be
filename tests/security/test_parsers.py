"""What reads text of strangers: linear and bounded.  And what never runs any."""

import re
import resource
import subprocess
import sys
from pathlib import Path

import chappie_agents
import chappie_broker
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chappie_bridge
from chappie_bridge.codec.redact import redact
from chappie_bridge.faces.chatgpt.admission import Admission, Credential, Refusal
from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.reference import MAX_ADDRESS, Reference, parse

SEEDS = (
    "a",
    "/",
    "%",
    "%2e",
    "?",
    "&a=",
    "chatId=",
    ":",
    "[",
    "\ud800",
    "\0",
    "-",
    "'",
    "…",
    ";",
    ": ",
    "Bearer ",
)
"""A megabyte of each, alone and after our own scheme, is what makes a careless expression quadratic."""

HOSTILE = """
from chappie_broker.addresses import Allowed, target
from chappie_bridge.codec.redact import redact
from chappie_bridge.codec.unicode import display
from chappie_bridge.faces.chatgpt.admission import Admission, Credential
from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.reference import parse
admission = Admission([Credential("owner", "secret")])
for seed in {seeds!r}:
    for start in ("", "chappie://session/", "https://", "authorization: ", "access_token=", '"token": "'):
        text = start + seed * (1_000_000 // len(seed))
        for read in (parse, lambda text: target(text, Allowed())):
            try:
                read(text)
            except BridgeError:
                pass
        redact(text)
        display(text, 100)
        admission.place({{"host": text}})
        admission.place({{"host": "localhost", "origin": text}})
        admission.principal({{"authorization": text}})
"""


def test_a_megabyte_of_anything_is_read_in_linear_time() -> None:
    """S14: hundreds of hostile megabytes, within so much processor time that none may be quadratic."""

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

    program = HOSTILE.format(seeds=SEEDS)
    done = subprocess.run([sys.executable, "-c", program], preexec_fn=bounded, check=False)
    assert done.returncode == 0


def test_what_is_too_long_is_refused_before_it_is_read() -> None:
    """S14: an address of the right form, and one character too many."""
    reference = Reference("s", "file", "i", "n")
    fits = f"{reference}{'x' * (MAX_ADDRESS - len(str(reference)))}"
    assert parse(fits).name.endswith("x")
    with pytest.raises(BadArguments):
        parse(f"{fits}x")


@given(st.text())
def test_no_address_makes_the_parser_fail(text: str) -> None:
    """S14: it is ours, or it is refused."""
    for address in (text, f"chappie://session/{text}", f"chappie://session/s/file/i/n?{text}"):
        try:
            parse(address)
        except BadArguments:
            continue


@given(st.dictionaries(st.sampled_from(["host", "origin", "authorization", "x-chappie-key"]), st.text()))
def test_no_header_makes_the_door_fail(headers: dict[str, str]) -> None:
    """S02: and none but the credential opens it."""
    admission = Admission([Credential("owner", "secret")])
    admission.place(headers)
    if "secret" not in "".join(headers.values()):
        assert isinstance(admission.principal(headers), Refusal)


@given(st.text(st.characters(categories=["L", "N"], max_codepoint=127), min_size=8))
def test_whatever_a_credential_is_made_of_it_is_left_out(secret: str) -> None:
    """S21"""
    secret = f"zzz{secret}zzz"
    for text in (f"Authorization: Bearer {secret}", f"https://a.example/?sig={secret}&x=1"):
        assert secret not in redact(text)


def test_no_line_of_the_program_goes_through_a_shell() -> None:
    """S15: argv lists only, in each of the three packages."""
    guilty = re.compile(
        r"shell\s*=\s*True|os\.system\(|os\.popen\(|subprocess_shell|open_process\(\s*[f\"']|pty\.spawn"
    )
    sources = [
        path
        for package in (chappie_bridge, chappie_broker, chappie_agents)
        for path in _of(package.__path__[0])
    ]
    assert len(sources) > 150
    assert [path for path in sources if guilty.search(path.read_text(encoding="utf-8"))] == []


def _of(package: str) -> list[Path]:
    return sorted(Path(package).rglob("*.py"))
