"""`bash`: process groups, timeouts, output that is long, broken, or held open by others."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import anyio
import pytest
from chappie_agents.spool import Spool
from chappie_agents.tools import ToolContext, ToolFailed
from chappie_agents.tools.bash import BASH
from pydantic import JsonValue

from chappie_bridge.wire.blocks import SPILL_ABOVE, SPILL_PART, Content, Spill, Text
from chappie_bridge.wire.errors import BadArguments

pytestmark = pytest.mark.anyio

Call = Callable[..., Awaitable[Content]]
Said = Callable[[Content], dict[str, JsonValue]]


def python(source: str) -> str:
    """A command that runs `source`, written next to nothing: no quoting to get wrong."""
    return f"{sys.executable} -I -S - <<'END'\n{source}\nEND\n"


@pytest.fixture
def alive(context: ToolContext) -> Iterator[int]:
    """A pipe that a command opens for writing (`exec 9>alive`): at its end when no process holds it."""
    os.mkfifo(context.cwd / "alive")
    descriptor = os.open(context.cwd / "alive", os.O_RDONLY | os.O_NONBLOCK)
    yield descriptor
    os.close(descriptor)


async def test_output_comes_in_the_order_it_was_written(call: Call, said: Said) -> None:
    content = await call("bash", command="echo one; echo two >&2; echo three")
    assert content[0] == Text(text="one\ntwo\nthree\n")
    assert said(content) == {"exitCode": 0, "bytes": 14}


async def test_no_output_is_only_the_status(call: Call) -> None:
    assert await call("bash", command="true") == (Text(text='{"exitCode":0,"bytes":0}'),)


async def test_a_failing_command_fails_with_its_output_and_exit_code(failing: Call, said: Said) -> None:
    content = await failing("bash", command="echo why; exit 3")
    assert content[0] == Text(text="why\n")
    assert said(content)["exitCode"] == 3


async def test_a_signal_is_named(failing: Call, said: Said) -> None:
    facts = said(await failing("bash", command="kill -SEGV $$"))
    assert (facts["exitCode"], facts["signal"]) == (139, "SIGSEGV")


async def test_a_command_that_reads_its_input_ends_at_once(call: Call, said: Said) -> None:
    with anyio.fail_after(20):
        assert said(await call("bash", command="cat"))["bytes"] == 0


async def test_the_answer_does_not_wait_for_a_child_that_keeps_the_output_open(
    call: Call, said: Said, stray: list[int]
) -> None:
    with anyio.fail_after(20):
        content = await call("bash", command="sleep 300 & echo $!")
    assert isinstance(content[0], Text)
    stray.append(int(content[0].text))
    assert said(content) == {"exitCode": 0, "bytes": len(content[0].text), "outputOpen": True}
    os.kill(stray[0], 0)  # what was started to go on goes on


async def test_a_child_that_floods_the_output_does_not_hold_the_answer_back(
    call: Call, said: Said, stray: list[int]
) -> None:
    with anyio.fail_after(20):
        content = await call("bash", command="yes & echo $! >pid")
        pid = await call("read", path="pid")
    assert isinstance(pid[0], Text)
    stray.append(int(pid[0].text))
    assert said(content)["exitCode"] == 0


async def test_a_child_in_a_session_of_its_own_survives_but_the_call_answers(
    failing: Call, said: Said, context: ToolContext, stray: list[int]
) -> None:
    source = (
        "import os\nif os.fork() == 0:\n"
        " os.setsid(); print(os.getpid(), flush=True); os.execvp('sleep', ['sleep', '300'])"
    )
    with anyio.fail_after(20):
        content = await failing("bash", command=python(source) + "\nsleep 300", timeout=1.5)
    assert isinstance(content[0], Text)
    stray.append(int(content[0].text))
    os.kill(stray[0], 0)
    assert "timeout of 1.5 s" in str(said(content)["stopped"])


async def test_a_timeout_keeps_what_was_said_before_and_on_term(failing: Call, said: Said) -> None:
    command = "trap 'echo bye; exit 1' TERM; echo hello; sleep 300 & wait"
    content = await failing("bash", command=command, timeout=1.5)
    assert content[0] == Text(text="hello\nbye\n")
    assert said(content)["stopped"]


async def test_a_command_that_ignores_term_is_killed(failing: Call, said: Said, alive: int) -> None:
    command = "exec 9>alive; trap '' TERM; while :; do sleep 0.1; done"
    with anyio.fail_after(20):
        content = await failing("bash", command=command, timeout=1)
    assert said(content)["signal"] == "SIGKILL"
    assert os.read(alive, 1) == b""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("sh -c 'sleep 300 & wait'; true", id="B24-through-a-shell"),
        pytest.param("(while :; do echo x >>log; sleep 0.01; done) & echo >&9; wait", id="B27-a-writer"),
        pytest.param("(trap '' TERM; echo >&9; sleep 300 & wait) & wait", id="term-ignored"),
        pytest.param("kill -STOP $$ & sleep 300", id="stopped"),
    ],
)
async def test_a_cancelled_command_is_dead_with_its_whole_group_before_the_call_returns(
    call: Call, context: ToolContext, alive: int, command: str
) -> None:
    """B24 B27: TERM, then KILL to the group; nobody waits for a cancel to be true."""

    async def run() -> None:
        await call("bash", command=f"exec 9>alive; echo >&9; {command}")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await anyio.wait_readable(alive)
            os.read(alive, 100)
            with pytest.raises(BlockingIOError):  # it lives
                os.read(alive, 1)
            tasks.cancel_scope.cancel()
    with contextlib.suppress(BlockingIOError):
        while os.read(alive, 100):
            pass
    assert os.read(alive, 1) == b""
    assert not list(context.spool.directory.iterdir())


async def test_twenty_megabytes_of_anything_fail_in_the_last_line(
    failing: Call, said: Said, context: ToolContext
) -> None:
    """B28 B64 B65: both ends, exit code and the path of all of it; memory stays small."""
    source = (
        "import sys\nw = sys.stdout.buffer.write\n"
        "for _ in range(200): w((b'\\x1b[31m\\0\\xff' + b'x' * 91 + b'\\n') * 1000)\n"
        "w(b'Error: the last line\\n'); sys.stdout.flush(); sys.exit(1)"
    )
    whole = (b"\x1b[31m\0\xff" + b"x" * 91 + b"\n") * 200_000 + b"Error: the last line\n"
    tracemalloc.start()
    content = await failing("bash", command=python(source))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * 1024 * 1024
    spill = content[0]
    assert isinstance(spill, Spill)
    assert spill.tail.endswith("Error: the last line\n")
    assert spill.head.startswith("\x1b[31m\0\ufffdxxx")
    assert spill.lossy
    assert spill.size == len(whole)
    assert Path(spill.path).read_bytes() == whole
    assert spill.sha256 == hashlib.sha256(whole).hexdigest()
    assert said(content) == {
        "exitCode": 1,
        "bytes": len(whole),
        "truncated": True,
        "outputPath": spill.path,
        "lossy": True,
    }
    json.dumps(spill.model_dump()).encode("utf-8")


@pytest.mark.parametrize("before", [4093, 4094, 4095, 65533, 65534, 65535, 262141])
async def test_a_character_over_the_border_of_a_read_stays_one_character(call: Call, before: int) -> None:
    """B62: byte-identical."""
    source = (
        f"import os, sys\ndata = b'x' * {before} + '\\U0001f600ж'.encode()\n"
        f"os.write(1, data[:{before} + 2]); sys.stdout.flush(); os.write(1, data[{before} + 2:])"
    )
    content = await call("bash", command=python(source))
    if isinstance(content[0], Spill):
        assert content[0].tail.endswith("x😀ж")
        assert not content[0].lossy
        assert Path(content[0].path).read_text(encoding="utf-8") == "x" * before + "😀ж"
    else:
        assert content[0] == Text(text="x" * before + "😀ж")


async def test_characters_that_come_byte_by_byte_are_whole(call: Call) -> None:
    """B62: also byte by byte."""
    content = await call(
        "bash", command=python("import os\nfor b in '😀жé✓'.encode(): os.write(1, bytes([b]))")
    )
    assert content[0] == Text(text="😀жé✓")


async def test_another_code_page_is_flagged_and_its_bytes_are_kept(call: Call, said: Said) -> None:
    """B68: what is shown is a reading; the raw bytes are in the file."""
    raw = "Привет, мир\n".encode("cp866")
    content = await call("bash", command=python(f"import os; os.write(1, {raw!r})"))
    facts = said(content)
    assert facts["lossy"] is True
    assert isinstance(content[0], Text)
    assert "\ufffd" in content[0].text
    assert Path(str(facts["outputPath"])).read_bytes() == raw


async def test_a_lossy_reading_that_outgrows_a_block_is_spilled(call: Call) -> None:
    """B68: every bad byte becomes three; the block stays within its bound."""
    content = await call("bash", command="head -c 60000 /dev/zero | tr '\\0' '\\377'")
    spill = content[0]
    assert isinstance(spill, Spill)
    assert (spill.size, spill.lossy) == (60000, True)
    assert len(spill.head.encode()) <= SPILL_PART
    assert Path(spill.path).read_bytes() == b"\xff" * 60000


async def test_a_chatty_error_output_is_drained(call: Call, said: Said) -> None:
    """B74: 256 KB to stderr, then an answer; and 40 KB of arguments."""
    with anyio.fail_after(20):
        content = await call("bash", command="head -c 262144 /dev/zero | tr '\\0' e >&2; echo done")
        assert isinstance(content[0], Spill)
        assert content[0].tail.endswith("edone\n")
        long = "x" * 40_000
        assert (await call("bash", command=f"echo {long}"))[0] == Text(text=long + "\n")


async def test_a_line_of_200_kib_is_followed_by_a_small_one(call: Call) -> None:
    """B61: nothing reads by lines."""
    first = await call("bash", command="head -c 204800 /dev/zero | tr '\\0' j")
    assert isinstance(first[0], Spill)
    assert first[0].size == 204800
    assert (await call("bash", command="echo small"))[0] == Text(text="small\n")


async def test_text_that_only_says_it_is_truncated_is_whole(call: Call, said: Said) -> None:
    """B67: the flag is a field, never words in the data."""
    content = await call("bash", command="printf 'the end [truncated]'")
    assert content[0] == Text(text="the end [truncated]")
    assert "truncated" not in said(content)


@pytest.mark.parametrize(("size", "kind"), [(SPILL_ABOVE, Text), (SPILL_ABOVE + 1, Spill)])
async def test_output_is_spilled_above_the_bound_and_not_at_it(call: Call, size: int, kind: type) -> None:
    content = await call("bash", command=f"head -c {size} /dev/zero | tr '\\0' x")
    assert isinstance(content[0], kind)


async def test_thirty_two_parallel_commands_really_overlap(call: Call, said: Said) -> None:
    command = "echo >>here; while [ $(wc -l <here) -lt 32 ]; do sleep 0.05; done; echo all"
    contents: list[Content] = []

    async def one() -> None:
        contents.append(await call("bash", command=command, timeout=60))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(32):
                tasks.start_soon(one)
    assert [content[0] for content in contents] == [Text(text="all\n")] * 32
    assert BASH.parallel


async def test_the_bridges_own_variables_are_not_handed_on(
    context: ToolContext, call_in: Callable[[ToolContext], Call]
) -> None:
    """B34: a session started from a command is a new one."""
    environment = {**context.environment, "CHAPPIE_SESSION": "old", "CHAPPIER": "mine"}
    call = call_in(dataclasses.replace(context, environment=environment))
    content = await call("bash", command="env | grep ^CHAPPIE | sort")
    assert content[0] == Text(text="CHAPPIER=mine\n")


async def test_a_flood_is_stopped_at_its_bound(
    context: ToolContext, call_in: Callable[[ToolContext], Call], said: Said
) -> None:
    call = call_in(dataclasses.replace(context, output_max=1_000_000))
    with pytest.raises(ToolFailed) as failure, anyio.fail_after(20):
        await call("bash", command="echo first; yes")
    spill, facts = failure.value.content[0], said(failure.value.content)
    assert isinstance(spill, Spill)
    assert spill.head.startswith("first\ny\n")
    assert 1_000_000 < spill.size < 2_000_000
    assert "more than 1000000 bytes" in str(facts["stopped"])


async def test_a_full_disk_loses_the_middle_and_says_so(
    call: Call, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Spool, suffix: str) -> tuple[BinaryIO, Path]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Spool, "create", full)
    content = await call("bash", command="echo first; head -c 200000 /dev/zero | tr '\\0' x; echo last")
    assert isinstance(content[0], Text)
    assert isinstance(content[1], Text)
    assert content[0].text.startswith("first\nx")
    assert content[1].text.endswith("xlast\n")
    facts = said(content)
    assert (facts["truncated"], facts["outputLost"]) == (True, "No space left on device")
    assert "outputPath" not in facts


async def test_a_directory_that_is_gone_is_named(failing: Call, context: ToolContext) -> None:
    context.cwd.rmdir()
    content = await failing("bash", command="true")
    assert isinstance(content[0], Text)
    assert str(context.cwd) in content[0].text


async def test_a_command_too_long_for_the_system_says_what_to_do(failing: Call) -> None:
    """B74: big arguments are answered."""
    content = await failing("bash", command="true " + "x" * 200_000)
    assert isinstance(content[0], Text)
    assert "write it to a file" in content[0].text


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "a\0b"},
        {"command": "\ud83d"},
        {"command": ""},
        {"command": "true", "timeout": 3601},
        {"command": "true", "timeout": 0},
        {"command": "true", "timeout": "5"},
        {"command": "true", "cwd": "/"},
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_anything_runs(
    arguments: dict[str, JsonValue],
) -> None:
    """S15: nothing but an argv list with the command as one item is ever built."""
    with pytest.raises(BadArguments):
        BASH.parse(arguments)
