"""The commands of a person at a shell, against a running bridge."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.story.bridge import PATIENCE, Home, until


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("shell"))
    (home.work / "a.txt").write_text("one\ntwo\n", encoding="utf-8")
    with home.up():
        yield home


@pytest.fixture(scope="module")
def session(home: Home) -> str:
    (row,) = home.json("sessions")["sessions"]
    found: str = row["id"]
    return found


def test_sessions_are_listed_for_people_and_for_programs(home: Home, session: str) -> None:
    assert session in home.run("sessions").stdout
    assert home.json("sessions", "--name", "nothing of this name")["sessions"] == []


def test_a_tool_is_run_by_name(home: Home, session: str) -> None:
    done = home.run("call", session, "read", "path=a.txt", "limit:=1")
    assert done.returncode == 0, done.stderr
    assert "one" in done.stdout
    assert "two" not in done.stdout.split("\n", 1)[0]


def test_a_batch_comes_from_stdin(home: Home, session: str) -> None:
    calls = [{"name": "bash", "arguments": {"command": f"echo {word}"}} for word in ("first", "second")]
    done = home.run("call", session, "--json-calls", "-", "--json", stdin=json.dumps(calls))
    assert done.returncode == 0, done.stderr
    view = json.loads(done.stdout)
    assert [result["name"] for result in view["results"]] == ["bash", "bash"]
    assert view["status"] == "done"


def test_an_operation_is_joined_and_cancelled(home: Home, session: str) -> None:
    begun = home.json("call", session, "bash", "command=sleep 600", "--wait", "0")
    assert begun["status"] == "running"
    done = home.run("call", "--operation", begun["operation"], "--cancel", "--json")
    assert json.loads(done.stdout)["status"] == "cancelled"
    assert done.returncode == 1


def test_ctrl_c_stops_the_calls_at_their_device_and_shows_what_had_ended(home: Home, session: str) -> None:
    """B49: the command is dead, not only the one who waited for it."""
    mark, calls = home.root / "began", ("echo finished", f"echo $$ > {home.root / 'began'}; sleep 600")
    batch = json.dumps([{"name": "bash", "arguments": {"command": command}} for command in calls])
    (home.root / "calls.json").write_text(batch, encoding="utf-8")
    waiting = subprocess.Popen(
        home.argv("call", session, "--json-calls", str(home.root / "calls.json"), "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=home.environment,
        cwd=home.work,
    )
    until(lambda: mark.exists() and mark.stat().st_size > 0, "the second command runs")
    waiting.send_signal(signal.SIGINT)
    said, _ = waiting.communicate(timeout=PATIENCE)
    shell = int(mark.read_text(encoding="utf-8"))
    until(lambda: not Path(f"/proc/{shell}").exists(), "the command is gone")
    view = json.loads(said)
    assert (waiting.returncode, view["status"]) == (1, "cancelled")
    assert view["results"][0]["content"][0]["text"] == "finished\n"


def test_what_is_said_stands_in_the_history(home: Home, session: str) -> None:
    assert home.run("say", session, "good", "morning").returncode == 0
    assert home.run("say", session, stdin="from a pipe\n").returncode == 0
    assert "good morning" in home.run("history", session).stdout
    entries = home.json("history", session, "--limit", "1")["page"]["entries"]
    assert [block["text"] for entry in entries for block in entry["content"]] == ["from a pipe\n"]


def test_history_is_followed(home: Home, session: str) -> None:
    following = subprocess.Popen(
        home.argv("history", session, "--follow", "--json"),
        stdout=subprocess.PIPE,
        env=home.environment,
        cwd=home.work,
    )
    assert following.stdout is not None
    with following.stdout:
        first = json.loads(following.stdout.readline())
        home.run("say", session, "news")
        second = json.loads(following.stdout.readline())
        following.terminate()
        following.wait()
    assert first["page"]["entries"]
    assert second["page"]["entries"][-1]["content"] == [{"type": "text", "text": "news"}]


def test_unbind_tells_how_many(home: Home, session: str) -> None:
    assert home.json("unbind", session)["count"] == 0


def test_a_backup_is_a_registry(home: Home, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert home.json("backup", str(copy)) == {"backup": str(copy)}
    assert copy.read_bytes().startswith(b"SQLite format 3\0")
    assert home.run("backup", str(copy)).returncode == 1, "an existing file is left alone"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("call", "s_unknown", "ls"), 1, "unknown_session"),
        (("history", "s_unknown"), 1, "unknown_session"),
        (("call", "SESSION", "nothing"), 1, "bad_arguments"),
        (("call", "SESSION", "bash", "command=exit 3"), 1, ""),
        (("call", "SESSION"), 2, "--json-calls"),
        (("call", "SESSION", "ls", "path"), 2, "neither KEY=TEXT nor KEY:=JSON"),
        (("call", "--cancel"), 2, "--operation"),
        (("history", "SESSION", "--follow", "--before", "e_1"), 2, "--before"),
        (("say", "SESSION"), 2, "nothing to say"),
        (("nonsense",), 2, "No such command"),
    ],
)
def test_exit_codes_and_words(
    home: Home, session: str, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = home.run(*(session if argument == "SESSION" else argument for argument in arguments))
    assert done.returncode == code
    assert said in done.stderr


def test_without_a_broker_the_exit_code_is_three(tmp_path: Path) -> None:
    done = Home(tmp_path).run("sessions", "--json")
    assert done.returncode == 3
    assert "chappie-bridge up" in json.loads(done.stdout)["error"]["message"]
