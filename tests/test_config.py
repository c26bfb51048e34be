"""Settings: precedence, provenance, refusal of what is unknown, and the commented default file."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge import config
from chappie_bridge.config import Address, Settings, SettingsError, load

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in list(config.os.environ):
        if name.startswith("CHAPPIE_"):
            monkeypatch.delenv(name)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def test_the_committed_config_file_is_the_defaults() -> None:
    text = (REPOSITORY / "config.toml").read_text(encoding="utf-8")
    assert Settings(**tomllib.loads(text)) == Settings()
    assert list(tomllib.loads(text)) == list(Settings.model_fields), "each key once, in the code's order"


def test_each_setting_is_read_by_something() -> None:
    sources = [
        path.read_text(encoding="utf-8")
        for path in (REPOSITORY / "chappie_bridge").rglob("*.py")
        if "wire" not in path.parts and "codec" not in path.parts
    ]
    unread = [key for key in Settings.model_fields if not any(f"settings.{key}" in text for text in sources)]
    assert not [key for key in unread if key != "state"], "state is read through state_directory"


def test_flags_win_over_environment_over_file_over_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write(tmp_path / "config/chappie-bridge/config.toml", "wait = 1\ncooldown = 1\nsession_wait = 1\n")
    monkeypatch.setenv("CHAPPIE_COOLDOWN", "2")
    monkeypatch.setenv("CHAPPIE_SESSION_WAIT", "2")
    loaded = load({"session_wait": 3, "http": None, "listen": "[::1]:0"})
    assert (loaded.settings.wait, loaded.settings.cooldown, loaded.settings.session_wait) == (1, 2, 3)
    assert loaded.source["wait"] == str(own)
    assert loaded.source["cooldown"] == "CHAPPIE_COOLDOWN"
    assert loaded.source["session_wait"] == "--session-wait"
    assert loaded.source["listen"] == "--link"
    assert loaded.source["http"] == "default"
    assert loaded.file == own


def test_a_named_file_replaces_the_users_own(tmp_path: Path) -> None:
    write(tmp_path / "config/chappie-bridge/config.toml", "wait = 1\n")
    other = write(tmp_path / "other.toml", "cooldown = 1\n")
    assert load(file=other).settings.wait == 40
    with pytest.raises(SettingsError, match="no such file"):
        load(file=tmp_path / "missing.toml")


def test_a_config_file_of_the_current_directory_is_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S10: an untrusted repository must not configure the bridge."""
    write(tmp_path / "config.toml", 'auth = "none"\n')
    monkeypatch.chdir(tmp_path)
    assert load().settings.auth == "secret"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wiat = 1", "unknown setting 'wiat' .*did you mean 'wait'"),
        ("wait = 99", "wait .*less than or equal to 50"),
        ('http = "localhost"', "http .*not HOST:PORT"),
        ('public_url = "javascript:1"', "public_url"),
        ('public_url = "https://me:secret@host"', "public_url"),
        ("wait = ", "not TOML"),
        ("policy = {}", "unknown setting 'policy'"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_and_source(tmp_path: Path, text: str, said: str) -> None:
    file = write(tmp_path / "c.toml", text)
    with pytest.raises(SettingsError, match=said) as caught:
        load(file=file)
    assert str(file) in str(caught.value)


def test_an_unknown_variable_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAPPIE_HTPP", "127.0.0.1:0")
    with pytest.raises(SettingsError, match="'htpp' in the environment; did you mean 'http'"):
        load()


def test_lists_in_the_environment_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAPPIE_ALLOWED_HOSTS", '["a.example","b.example"]')
    assert load().settings.allowed_hosts == ("a.example", "b.example")
    monkeypatch.setenv("CHAPPIE_ALLOWED_HOSTS", "a.example")
    with pytest.raises(SettingsError, match="allowed_hosts"):
        load()


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """S10: whoever writes the configuration decides what runs."""
    file = write(tmp_path / "c.toml", "wait = 1\n")
    file.chmod(0o666)
    with pytest.raises(SettingsError, match="somebody else may write it"):
        load(file=file)


@given(st.ip_addresses(), st.integers(0, 65535))
def test_an_address_is_written_as_it_is_read(host: object, port: int) -> None:
    address = Address(str(host), port)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "h:70000", "::1:80", "[::1]", "a b:1", "h:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not HOST:PORT"):
        Address.parse(text)


def test_the_name_that_other_configurations_have_is_understood(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("localTools = true\n", encoding="utf-8")
    assert load(file=file).settings.local_tools is True
    file.write_text("localTools = true\nlocal_tools = false\n", encoding="utf-8")
    with pytest.raises(SettingsError, match="same setting"):
        load(file=file)
