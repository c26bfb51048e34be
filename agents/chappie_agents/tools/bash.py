"""The tool `bash`: one shell command, its whole output kept.  No sandbox, and no list of bad commands."""

import errno
from pathlib import Path
from typing import Annotated

import anyio
from anyio import to_thread
from pydantic import Field

from chappie_agents.spool import Kept
from chappie_agents.tools import process
from chappie_agents.tools.tool import (
    Arguments,
    ToolContext,
    ToolFailed,
    Word,
    shown,
    status,
    tool,
)
from chappie_bridge.wire.blocks import SPILL_ABOVE, Content

TIMEOUT = 120.0
TIMEOUT_MAX = 3600.0


class Bash(Arguments):
    command: Annotated[Word, Field(description="The command, as typed in a shell.")]
    timeout: Annotated[
        float,
        Field(gt=0, le=TIMEOUT_MAX, description="Seconds until the command is stopped; at most 3600."),
    ] = TIMEOUT


async def _bash(arguments: Bash, context: ToolContext) -> Content:
    cwd = await context.permit("bash", ".", writing=True, what=arguments.command)
    with context.spool.sink() as sink:

        async def keep(chunk: bytes) -> bool:
            if sink.size + len(chunk) > SPILL_ABOVE:
                await to_thread.run_sync(sink.write, chunk)
            else:
                sink.write(chunk)
            return sink.size <= context.output_max

        try:
            ending = await process.run(
                [_shell(), "-c", arguments.command],
                cwd=cwd,
                environment=context.environment,
                keep=keep,
                timeout=arguments.timeout,
            )
        except OSError as error:
            raise ToolFailed(f"The command did not start in {shown(cwd)}: {_why(error)}") from error
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                left = await to_thread.run_sync(sink.close)
                context.leave(_content(left, stopped="It was cancelled; its process group was ended."))
            raise
        kept = await to_thread.run_sync(sink.close)
    reasons = {
        "timeout": f"It ran into its timeout of {arguments.timeout:g} s; its process group was ended.",
        "enough": f"It wrote more than {context.output_max} bytes; its process group was ended.",
    }
    content = _content(
        kept,
        stopped=reasons[ending.stopped] if ending.stopped else None,
        exitCode=ending.code,
        signal=ending.signal,
        outputOpen=True if ending.open and not ending.stopped else None,
    )
    if ending.code != 0 or ending.stopped:
        raise ToolFailed(content)
    return content


def _content(kept: Kept, *, stopped: str | None, **ending: int | str | bool | None) -> Content:
    line = status(
        **ending,
        bytes=kept.size,
        truncated=kept.cut or None,
        outputPath=str(kept.path) if kept.path else None,
        outputLost=kept.trouble,
        lossy=kept.lossy or None,
        stopped=stopped,
    )
    return (*kept.content, line)


def _shell() -> str:
    return "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"


def _why(error: OSError) -> str:
    if error.errno == errno.E2BIG:
        return "it is too long for the system; write it to a file and run that"
    return error.strerror or str(error)


BASH = tool(
    "bash",
    f"""Run a shell command in the working directory. stdin is empty; stdout and stderr come back in the
    order they were written, then a JSON line with exitCode. A long output comes as its two ends, and
    outputPath names the file with all of it. The call ends with the command: start what should go on
    with its output redirected (`server >server.log 2>&1 &`). After `timeout` seconds (default
    {TIMEOUT:g}) the whole process group is stopped.""",
    Bash,
    _bash,
    parallel=True,
)
