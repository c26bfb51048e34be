"""The state directory: private, locked, with its secrets and its socket."""

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from chappie_broker import state as module
from chappie_broker.state import (
    MAX_SOCKET_PATH,
    StateDirectory,
    StateLocked,
    StateUnsafe,
    StateUnwritable,
)

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="wrong platform: no modes and no unix sockets there"
)

HOLDER = Path(__file__).with_name("holder.py")


def spawn(stack: ExitStack, what: str, directory: Path) -> subprocess.Popen[str]:
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, str(HOLDER), what, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
    )
    stack.callback(process.kill)
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# The lock.


def test_of_two_brokers_that_start_at_once_exactly_one_wins(tmp_path: Path) -> None:
    """B30: the other one hears who has it, and gets it when that one is gone."""
    with ExitStack() as stack:
        pair = [spawn(stack, "lock", tmp_path / "state") for _ in range(2)]
        for process in pair:
            go(process)
        said = {read(process): process for process in pair}
        winner = said.pop("won")
        assert list(said) in (["lost None"], [f"lost {winner.pid}"])
        winner.send_signal(signal.SIGKILL)
        winner.wait()
        StateDirectory.open(tmp_path / "state").close()


def test_the_second_broker_hears_the_pid_of_the_first(tmp_path: Path) -> None:
    """B30: in words for the person, and as a number."""
    with (
        StateDirectory.open(tmp_path / "state"),
        pytest.raises(StateLocked, match=f"process id is {os.getpid()}") as caught,
    ):
        StateDirectory.open(tmp_path / "state")
    assert caught.value.pid == os.getpid()


def test_the_lock_goes_with_a_killed_owner_though_its_child_lives_on(tmp_path: Path) -> None:
    """B89 B30: whatever pid is written there; the dead broker's socket does not stop the next one."""
    with ExitStack() as stack:
        owner = spawn(stack, "child", tmp_path / "state")
        child = int(read(owner))
        stack.callback(os.kill, child, signal.SIGKILL)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        os.kill(child, 0)
        assert (tmp_path / "state" / "broker.sock").is_socket()
        with StateDirectory.open(tmp_path / "state") as state, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(state.socket))
            listener.listen()


def test_a_pid_alone_keeps_nobody_out(tmp_path: Path) -> None:
    """B89: a lock file with the pid of a living process is not a lock."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "broker.lock").write_text(f"{os.getpid()}\n", encoding="utf-8")
    StateDirectory.open(tmp_path / "state").close()


def test_closing_gives_the_lock_back_and_may_be_repeated(tmp_path: Path) -> None:
    state = StateDirectory.open(tmp_path / "state")
    state.close()
    state.close()
    with StateDirectory.open(tmp_path / "state"):
        assert (tmp_path / "state" / "broker.lock").read_text(encoding="utf-8") == f"{os.getpid()}\n"


def test_a_visitor_needs_no_lock_and_takes_none(tmp_path: Path) -> None:
    visitor = StateDirectory.visit(tmp_path / "state")
    with StateDirectory.open(tmp_path / "state") as state:
        assert visitor.socket == state.socket
        assert StateDirectory.visit(tmp_path / "state").secret("link-token") == state.secret("link-token")
    visitor.close()


# Privacy.


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o377])
def test_everything_is_private_whatever_the_umask_says(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with StateDirectory.open(tmp_path / "state") as state:
            state.secret("install-secret")
            modes = {path.name: mode(path) for path in state.path.iterdir()}
    finally:
        os.umask(before)
    assert mode(tmp_path / "state") == 0o700
    assert modes == {"broker.lock": 0o600, "install-secret": 0o600, "logs": 0o700}


@pytest.mark.parametrize("rights", [0o770, 0o707, 0o720, 0o702])
def test_a_directory_that_others_may_write_to_is_refused_and_left_as_it_is(
    tmp_path: Path, rights: int
) -> None:
    path = tmp_path / "state"
    path.mkdir()
    path.chmod(rights)
    with pytest.raises(StateUnsafe):
        StateDirectory.open(path)
    assert mode(path) == rights
    assert list(path.iterdir()) == []


def test_the_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: (tmp_path.stat().st_uid) + 1)
    with pytest.raises(StateUnsafe, match="another user"):
        StateDirectory.open(tmp_path / "state")


def test_an_empty_directory_that_others_may_read_is_tightened(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o755)
    StateDirectory.open(tmp_path / "state").close()
    assert mode(tmp_path / "state") == 0o700
    (tmp_path / "state").chmod(0o755)
    StateDirectory.visit(tmp_path / "state")
    assert mode(tmp_path / "state") == 0o700


def test_a_directory_with_other_things_in_it_is_not_ours_to_tighten(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    (home / "letter.txt").write_text("Dear", encoding="utf-8")
    with pytest.raises(StateUnsafe, match="other files"):
        StateDirectory.open(home)
    assert mode(home) == 0o755


@pytest.mark.parametrize("make", ["file", "below_a_file"])
def test_a_place_where_no_directory_can_be_is_named(tmp_path: Path, make: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    path = tmp_path / "file" if make == "file" else tmp_path / "file" / "state"
    with pytest.raises(StateUnwritable, match="--state"):
        StateDirectory.open(path)


# Secrets.


def test_five_processes_make_one_secret(tmp_path: Path) -> None:
    with ExitStack() as stack:
        processes = [spawn(stack, "secret", tmp_path / "state") for _ in range(5)]
        for process in processes:
            go(process)
        said = {read(process) for process in processes}
    assert len(said) == 1
    assert len(said.pop()) == 43, "256 bits in Base64"
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["install-secret"]


def test_a_secret_stays_and_each_has_its_own(tmp_path: Path) -> None:
    first = StateDirectory.visit(tmp_path / "state")
    assert first.secret("install-secret") == StateDirectory.visit(tmp_path / "state").secret("install-secret")
    assert first.secret("install-secret") != first.secret("link-token")


def test_who_comes_second_takes_the_secret_of_the_first(tmp_path: Path) -> None:
    state = StateDirectory.visit(tmp_path / "state")
    kept = state.secret("install-secret")
    state._publish_once(state.path / "install-secret", "x" * 43)
    assert state.secret("install-secret") == kept


@pytest.mark.parametrize("rights", [0o640, 0o604, 0o620])
def test_a_secret_that_others_may_read_is_no_secret(tmp_path: Path, rights: int) -> None:
    state = StateDirectory.visit(tmp_path / "state")
    state.secret("install-secret")
    (state.path / "install-secret").chmod(rights)
    with pytest.raises(StateUnsafe, match="install-secret"):
        state.secret("install-secret")


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 43, b"two words " * 9])
def test_a_broken_secret_is_refused_and_never_replaced(tmp_path: Path, content: bytes) -> None:
    state = StateDirectory.visit(tmp_path / "state")
    state.secret("link-token")
    (state.path / "link-token").write_bytes(content)
    with pytest.raises(StateUnsafe, match="Remove it"):
        state.secret("link-token")
    assert (state.path / "link-token").read_bytes() == content


# The socket.


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short runtime directory; pytest's own may be too long."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="r") as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield Path(directory)


def long_state(tmp_path: Path) -> Path:
    return tmp_path / ("d" * 100) / ("é" * 20)


def test_the_socket_is_in_the_state_directory_where_it_fits(tmp_path: Path, runtime: Path) -> None:
    length = MAX_SOCKET_PATH - len("/broker.sock")
    base = runtime / "s"
    path = base / ("x" * (length - len(os.fsencode(base)) - 1))
    with StateDirectory.open(path) as state, socket.socket(socket.AF_UNIX) as listener:
        assert state.socket == path / "broker.sock"
        assert len(os.fsencode(state.socket)) == MAX_SOCKET_PATH
        listener.bind(str(state.socket))


def test_a_long_state_directory_has_its_socket_elsewhere_and_says_where(
    tmp_path: Path, runtime: Path
) -> None:
    visitor = StateDirectory.visit(long_state(tmp_path))
    with StateDirectory.open(long_state(tmp_path)) as state, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(state.socket))
        assert state.socket.parent.parent == runtime
        assert mode(state.socket.parent) == 0o700
        assert visitor.socket == state.socket
    assert list(runtime.iterdir()) == [], "a broker that ends takes it away"
    assert visitor.socket == long_state(tmp_path) / "broker.sock"


def test_after_a_crash_the_same_place_is_used_again(tmp_path: Path, runtime: Path) -> None:
    """B30: with the dead socket still in it."""
    first = StateDirectory.open(long_state(tmp_path))
    place = first.socket
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
    assert first._lock is not None
    os.close(first._lock)  # as a crash would: nothing is tidied
    with StateDirectory.open(long_state(tmp_path)) as second:
        assert second.socket == place
        assert not place.exists()


def test_a_place_that_is_not_private_any_more_is_not_used_again(tmp_path: Path, runtime: Path) -> None:
    first = StateDirectory.open(long_state(tmp_path))
    place = first.socket
    place.parent.chmod(0o755)
    assert first._lock is not None
    os.close(first._lock)
    with StateDirectory.open(long_state(tmp_path)) as second:
        assert second.socket != place
        assert mode(second.socket.parent) == 0o700


def test_a_machine_with_long_paths_only_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SOCKET_PATH", 20)
    with pytest.raises(StateUnwritable, match="short enough"):
        StateDirectory.open(tmp_path / "state")
    monkeypatch.undo()
    StateDirectory.open(tmp_path / "state").close()
