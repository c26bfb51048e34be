"""What lies in deploy/ says what the program takes."""

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from chappie_bridge.cli import root
from tests.required import required

DEPLOY = Path(__file__).parent.parent / "deploy"

UNITS = sorted(DEPLOY.glob("systemd/*/*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: f"{unit.parent.name}/{unit.name}")
def test_a_unit_runs_a_command_that_there_is(unit: Path) -> None:
    (line,) = re.findall(
        r"^ExecStart=\S+/chappie-bridge (.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE
    )
    name, *arguments = line.split()
    command = root.get_command(click.Context(root), name)
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("-")} <= known


@pytest.mark.parametrize("kind", ["user", "system"])
def test_systemd_finds_nothing_wrong(kind: str, tmp_path: Path) -> None:
    program = required(shutil.which("systemd-analyze"), "the program systemd-analyze of systemd")
    for unit in UNITS:
        if unit.parent.name == kind:
            text = re.sub(
                r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(encoding="utf-8"), flags=re.MULTILINE
            )
            (tmp_path / unit.name).write_text(text, encoding="utf-8")
    given = [str(path) for path in sorted(tmp_path.glob("*.service"))]
    command = [program, "verify", f"--{kind}", "--man=no", *given]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    mine = [line for line in (done.stdout + done.stderr).splitlines() if "chappie" in line]
    assert mine == []


def test_the_container_is_nobody_and_looks_at_readiness() -> None:
    text = (DEPLOY / "container" / "Dockerfile").read_text(encoding="utf-8")
    user = text.index("\nUSER 10001\n")
    assert user < text.index("HEALTHCHECK") < text.index("ENTRYPOINT")
    assert "/readyz" in text
    compose = (DEPLOY / "container" / "compose.yaml").read_text(encoding="utf-8")
    assert compose.count("read_only: true") == compose.count("cap_drop: [ALL]") == 2
    assert "ports:" not in compose
