"""What the owner gives for each request: headers, and the answer to a challenge.  Read anew each time, used
once, kept nowhere, shown nowhere.  Makes none of it."""

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, CalledProcessError

import anyio

from chappie_bridge.faces.flow.settings import FlowSettings
from chappie_bridge.wire.errors import BadArguments

MAX_GIVEN = 64 * 1024
"""Bytes of a file or of a command's output."""

COMMAND_SECONDS = 60.0

OURS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "accept", "accept-encoding"}
)
"""Headers that the transport sets itself."""

NEVER = frozenset({"x-codex-turn-state"})
"""Headers that have no place in this flow."""


_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")


class Own:
    """`settings` name files and commands; a command is an argument list, never a shell's line."""

    def __init__(self, settings: FlowSettings) -> None:
        self._settings = settings
        self._used: bytes | None = None
        """The digest of the last answer: the same is not sent twice."""

    async def headers(self) -> list[tuple[str, str]]:
        """`Name: value` lines; `#` begins a comment.

        :raises BadArguments: a line is none, or a header is not the owner's to set."""
        found: list[tuple[str, str]] = []
        text = await self._given(self._settings.headers_file, self._settings.headers_command, "headers")
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, colon, value = line.partition(":")
            plain = name.strip().lower()
            if not colon or not _NAME.fullmatch(plain) or not (value.isascii() and value.isprintable()):
                raise BadArguments(f"The headers' line {number} is not `Name: value`.")
            if plain in OURS or plain in NEVER:
                raise BadArguments(f"The header {plain} is not sent from the headers' configuration.")
            found.append((plain, value.strip()))
        return found

    async def answer(self, challenge: str | None) -> str:
        """The owner's answer; a command reads the challenge, if there is one, from its stdin.

        :raises BadArguments: there is none, or it is the one that was used before."""
        file, command = self._settings.answer_file, self._settings.answer_command
        if not file and not command:
            raise BadArguments(
                "No answer to the challenge is configured.",
                hint="Set `answer_command` or `answer_file` in [flow].",
            )
        text = (await self._given(file, command, "answer", challenge or "")).strip()
        if not text:
            raise BadArguments("The answer to the challenge is empty.")
        digest = hashlib.sha256(text.encode()).digest()
        if digest == self._used:
            raise BadArguments("The answer to the challenge was used before; each is good for one request.")
        self._used = digest
        return text

    async def _given(self, file: str, command: tuple[str, ...], what: str, stdin: str = "") -> str:
        try:
            data = await _output(command, stdin) if command else await _contents(file) if file else b""
        except (OSError, TimeoutError, CalledProcessError) as error:
            kind = f"exit code {error.returncode}" if isinstance(error, CalledProcessError) else _why(error)
            raise BadArguments(f"The configured source of the {what} failed: {kind}.") from None
        if len(data) > MAX_GIVEN:
            raise BadArguments(f"The configured source of the {what} gives more than {MAX_GIVEN} bytes.")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise BadArguments(f"The configured source of the {what} gives no UTF-8.") from None


async def _output(command: tuple[str, ...], stdin: str) -> bytes:
    """:raises CalledProcessError: it failed; what it says on stderr is for the terminal alone."""
    found = bytearray()
    with anyio.fail_after(COMMAND_SECONDS):
        async with await anyio.open_process(list(command), stdin=PIPE, stdout=PIPE, stderr=None) as process:
            assert process.stdin is not None  # noqa: S101 - asked for
            assert process.stdout is not None  # noqa: S101 - this, too
            with suppress(anyio.BrokenResourceError, ConnectionError):  # it need not read the challenge
                await process.stdin.send(stdin.encode())
            with suppress(anyio.BrokenResourceError, ConnectionError):
                await process.stdin.aclose()
            async for piece in process.stdout:
                found += piece
                if len(found) > MAX_GIVEN:
                    process.kill()
                    return bytes(found)
            if code := await process.wait():
                raise CalledProcessError(code, command[0])
    return bytes(found)


async def _contents(file: str) -> bytes:
    def read() -> bytes:
        with Path(file).expanduser().open("rb") as stream:
            if os.fstat(stream.fileno()).st_mode & 0o077:
                raise PermissionError("others may read the file; `chmod 600` it")
            return stream.read(MAX_GIVEN + 1)

    return await anyio.to_thread.run_sync(read)


def _why(error: OSError | TimeoutError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or "it took too long"
