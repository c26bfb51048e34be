"""Configurations of the programs: ours goes in, theirs stays."""

import json
import tomllib
from pathlib import Path

import pytest
from chappie_agents.hosts.model.install import PROGRAMS, plan, write

from chappie_bridge.wire.errors import BadArguments

URL, KEY = "http://127.0.0.1:24275", "k" * 43
LOCAL = ("/opt/python", "-m", "chappie_bridge.cli", "local", "--state", '/st ate"x')


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_written_is_private_and_writing_it_again_changes_nothing(
    program: str, tmp_path: Path
) -> None:
    first = plan(program, URL, KEY, tmp_path, LOCAL)
    assert write(first.changes) == []
    assert any(KEY in change.path.read_text(encoding="utf-8") for change in first.changes)
    for change in first.changes:
        assert change.path.stat().st_mode & 0o077 == 0
        assert change.path.is_relative_to(tmp_path)
    again = plan(program, URL, KEY, tmp_path, LOCAL)
    assert not any(change.needed for change in again.changes)
    assert write(again.changes) == []


def test_a_persons_own_settings_stay_and_are_kept_beside(tmp_path: Path) -> None:
    file = tmp_path / ".pi" / "agent" / "models.json"
    file.parent.mkdir(parents=True)
    own = {"providers": {"mine": {"baseUrl": "http://x"}, "chappie": {"extra": 1}}, "other": [1]}
    file.write_text(json.dumps(own), encoding="utf-8")
    file.chmod(0o644)
    backups = write(plan("pi", URL, KEY, tmp_path, LOCAL).changes)
    merged = json.loads(file.read_text(encoding="utf-8"))
    assert merged["providers"]["mine"] == {"baseUrl": "http://x"}
    assert merged["providers"]["chappie"]["extra"] == 1
    assert merged["providers"]["chappie"]["apiKey"] == KEY
    assert merged["other"] == [1]
    assert [json.loads(backup.read_text(encoding="utf-8")) for backup in backups] == [own]


def test_a_file_with_comments_is_left_alone_and_the_error_says_what_to_add(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "opencode" / "opencode.json"
    file.parent.mkdir(parents=True)
    file.write_text('{\n  // mine\n  "theme": "dark"\n}', encoding="utf-8")
    with pytest.raises(BadArguments, match="cannot be merged") as refused:
        plan("opencode", URL, KEY, tmp_path, LOCAL)
    assert refused.value.data is not None
    assert "provider" in json.dumps(refused.value.data["add"])
    assert "mine" in file.read_text(encoding="utf-8")


def test_a_linked_configuration_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "settings.json"
    real.parent.mkdir()
    real.write_text("{}", encoding="utf-8")
    link = tmp_path / ".pi" / "agent" / "settings.json"
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    write(plan("pi", URL, KEY, tmp_path, LOCAL).changes)
    assert link.is_symlink()
    assert json.loads(real.read_text(encoding="utf-8"))["retry"] == {"maxRetries": 20}


def test_codex_gets_a_profile_of_its_own_and_no_file_of_the_persons_is_touched(tmp_path: Path) -> None:
    home = tmp_path / 'a "quoted" home'
    (home / ".codex").mkdir(parents=True)
    own = home / ".codex" / "config.toml"
    own.write_text('model = "mine"\n', encoding="utf-8")
    write(plan("codex", URL, KEY, home, LOCAL).changes)
    assert own.read_text(encoding="utf-8") == 'model = "mine"\n'
    profile = tomllib.loads((home / ".codex" / "chappie.config.toml").read_text(encoding="utf-8"))
    assert profile["model_providers"]["chappie"]["base_url"] == f"{URL}/v1"
    assert Path(profile["model_catalog_json"]).is_file()


def test_another_program_has_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(BadArguments, match="codex"):
        plan("emacs", URL, KEY, tmp_path, LOCAL)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_starts_the_server_of_the_local_tools(program: str, tmp_path: Path) -> None:
    changes = plan(program, URL, KEY, tmp_path, LOCAL).changes
    found = []
    for change in changes:
        if change.path.suffix == ".toml":
            server = tomllib.loads(change.text).get("mcp_servers", {}).get("chappie")
        elif change.path.suffix == ".json":
            told = json.loads(change.text)
            server = {**told.get("mcpServers", {}), **told.get("mcp", {})}.get("chappie")
        else:
            continue
        if server is not None:
            command = server["command"]
            found.append(tuple(command) if isinstance(command, list) else (command, *server["args"]))
    assert found == [LOCAL]
