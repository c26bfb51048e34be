"""`model install`, and what `doctor` says of agent programs."""

import json
from pathlib import Path

import pytest
from chappie_broker.state import StateDirectory
from click.testing import CliRunner

from chappie_bridge.cli import root
from chappie_bridge.cli.programs import findings
from chappie_bridge.config import Settings

PORT = Settings().model_port


def _install(room: Path, *arguments: str) -> str:
    argv = ["model", "install", *arguments, "--state", str(room / "state"), "--home", str(room / "home")]
    done = CliRunner().invoke(root, argv)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def room(tmp_path: Path) -> Path:
    with StateDirectory.open(tmp_path / "state"):
        (tmp_path / "home").mkdir()
    return tmp_path


def test_a_configuration_is_printed_and_nothing_is_written_without_being_asked(room: Path) -> None:
    printed = _install(room, "codex")
    assert "experimental_bearer_token" in printed
    assert not list((room / "home").iterdir())


def test_json_names_files_backups_and_how_to_start(room: Path) -> None:
    told = json.loads(_install(room, "pi", "--write", "--json"))
    assert told["start"] == "pi --model chappie/chappie"
    assert len(told["files"]) == 4
    assert all(Path(path).read_text(encoding="utf-8") == text for path, text in told["files"].items())
    assert told["backups"] == []


def test_doctor_speaks_of_the_programs_that_are_configured_and_of_no_other(room: Path) -> None:
    state = StateDirectory.visit(room / "state")
    assert list(findings(state, room / "home", PORT)) == []
    _install(room, "codex", "--write")
    said = {each.name: each for each in findings(state, room / "home", PORT)}
    assert set(said) == {"model endpoint", "codex"}
    assert said["codex"].verdict == "ok"
    _install(room, "codex", "--write", "--port", "9")
    (stale,) = (each for each in findings(state, room / "home", PORT) if each.name == "codex")
    assert stale.verdict == "warning"
    assert stale.todo == "chappie-bridge model install codex --write"


def test_programs_are_told_the_port_that_the_owner_chose(room: Path) -> None:
    own = room / "config.toml"
    own.touch(mode=0o600)
    own.write_text("model_port = 25001\n", encoding="utf-8")
    assert "http://127.0.0.1:25001/v1" in _install(room, "codex", "--config", str(own))
    assert "http://127.0.0.1:9/v1" in _install(room, "codex", "--config", str(own), "--port", "9")


def test_a_program_cannot_be_told_a_port_that_is_not_chosen_yet(room: Path) -> None:
    argv = ["model", "install", "pi", "--port", "0", "--state", str(room / "state"), "--home", str(room)]
    done = CliRunner().invoke(root, argv)
    assert done.exit_code == 2
    assert "--port" in done.output


def test_doctor_compares_with_the_endpoint_that_runs(room: Path) -> None:
    state = StateDirectory.visit(room / "state")
    _install(room, "codex", "--write")
    (state.path / "model-door.json").write_text('{"url": "http://127.0.0.1:9"}', encoding="utf-8")
    (codex,) = (each for each in findings(state, room / "home", PORT) if each.name == "codex")
    assert codex.todo == "chappie-bridge model install codex --write --port 9"


def test_doctor_finds_an_endpoint_that_does_not_answer(room: Path) -> None:
    state = StateDirectory.visit(room / "state")
    _install(room, "claude")
    (state.path / "model-door.json").write_text('{"url": "http://127.0.0.1:9"}', encoding="utf-8")
    (door,) = (each for each in findings(state, room / "home", PORT) if each.name == "model endpoint")
    assert door.verdict == "fault"
