"""What a program's session keeps on the disk, so that a new process of the endpoint goes on where the last
one stopped: operations, results, input, and what was answered last.  Sends nothing.

An operation that was begun is not over when the endpoint dies: the program runs its tools all the same, and
its next request brings the results by their call ids.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from chappie_agents.hosts.model.turns import Given
from chappie_agents.outbox import Outbox, as_result
from chappie_agents.transcript import Transcript
from chappie_bridge.codec.tail import Trace
from chappie_bridge.codec.turn import SessionKey, Subagent
from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.ids import CallId, InputId, OperationId, SessionId
from chappie_bridge.wire.messages import Finished, PostChat, RunBatch
from chappie_bridge.wire.values import SessionInfo, ToolCall

log = logging.getLogger("chappie.model")


LONGEST = 512 * 1024
"""Bytes of `session.jsonl` after which it is begun anew."""

LATEST = 64 * 1024
"""Bytes at its end among which the newest line lies."""

LONGEST_TEXT = 4096
"""Characters of a last answer that a new process can give again."""

KEPT_HEARD = 64
"""Typed texts that a new process knows again; a program repeats only what was not answered."""


class Journal(Outbox):
    """An outbox whose begun operations go on."""

    def _recover(self) -> tuple[Finished, ...]:
        return ()

    def open_operations(self, transcript: Transcript) -> tuple[RunBatch | PostChat, ...]:
        """What was accepted and has not ended, oldest first, with the results that are known already.
        Blocks; once, at the start."""
        if not self._begun:
            return ()
        calls: dict[OperationId, list[ToolCall]] = {}
        chats: dict[OperationId, tuple[str, bool]] = {}
        for place, entry in transcript.records(min(begun.start for begun in self._begun.values())):
            begun = self._begun.get(entry.operation) if entry.operation is not None else None
            if begun is None or entry.operation is None:
                continue
            if entry.kind == "call" and entry.call is not None and entry.name is not None:
                call = ToolCall(id=entry.call, name=entry.name, arguments=entry.arguments or {})
                calls.setdefault(entry.operation, []).append(call)
            elif entry.kind == "assistant":
                text = "".join(block.text for block in entry.content if isinstance(block, Text))
                chats[entry.operation] = text, entry.final is not False
            elif (result := as_result(entry)) is not None and result.call in begun.calls:
                begun.results[begun.calls.index(result.call)] = place
        found: list[RunBatch | PostChat] = []
        for operation, begun in self._begun.items():
            if operation in calls:
                batch = RunBatch(
                    operation=operation,
                    session=self._session,
                    origin=begun.origin,
                    calls=tuple(calls[operation]),
                )
                found.append(batch)
            elif operation in chats:
                text, final = chats[operation]
                chat = PostChat(
                    operation=operation, session=self._session, origin=begun.origin, text=text, final=final
                )
                found.append(chat)
        return tuple(found)


class Memory(NamedTuple):
    """What `session.jsonl` holds besides the operations.  `seen`: seconds since the epoch."""

    info: SessionInfo
    program: str
    seen: float
    given: Given | None
    heard: dict[InputId, str]
    ended: bool = False


class Home:
    """The directory of one session."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self._file = directory / "session.jsonl"
        self._size = 0

    @classmethod
    def of(cls, above: Path, program: str, session: SessionId) -> "Home":
        mark = hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", session)[:40]
        return cls(above / f"{program}-{readable}-{mark}")

    def read(self) -> Memory | None:
        """What was written last; None where nothing readable is.  Blocks."""
        try:
            with self._file.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LATEST))
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s cannot be read: %s", self._file, error)
            return None
        # The last line may be torn: then the one before it counts.
        return next((memory for line in reversed(lines) if (memory := _memory(line)) is not None), None)

    def write(self, memory: Memory) -> None:
        """Appends: replacing a file makes the disk wait.  Raises `OSError`."""
        if memory.given is not None and len(memory.given.text) > LONGEST_TEXT:
            memory = memory._replace(given=None)  # told again by this process only
        told = {**memory._asdict(), "info": memory.info.model_dump(exclude_none=True)}
        told["heard"] = dict(list(memory.heard.items())[-KEPT_HEARD:])
        line = json.dumps(told, default=_plain).encode() + b"\n"
        if self._size + len(line) > LONGEST:
            part = self.path / "session.jsonl.part"
            part.touch(mode=0o600)
            part.write_bytes(line)
            part.replace(self._file)
            self._size = len(line)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._file, flags, 0o600)
        try:
            if not self._size:
                self._size = os.fstat(descriptor).st_size
                os.write(descriptor, b"\n")  # nothing is ever appended to a torn line
            self._size += os.write(descriptor, line)
        finally:
            os.close(descriptor)


def open_journal(home: Home, transcript: Transcript, session: SessionId, now: Callable[[], float]) -> Journal:
    """Blocks.  Raises `OSError`."""
    return Journal(home.path / "journal", transcript, session, now=now)


def _memory(line: bytes) -> Memory | None:
    try:
        told = json.loads(line)
        return Memory(
            info=SessionInfo.model_validate(told["info"]),
            program=str(told["program"]),
            seen=float(told["seen"]),
            given=_given(told["given"]),
            heard={InputId(name): str(mark) for name, mark in told["heard"].items()},
            ended=bool(told["ended"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _plain(value: object) -> object:
    if isinstance(value, Subagent):
        return {"id": value.id, "kind": value.kind, "parent": value.parent}
    if isinstance(value, SessionKey):
        return {"id": value.id, "calls": value.calls}
    raise TypeError(f"{type(value).__name__} is not written")


def _given(told: Any) -> Given | None:
    if told is None:
        return None
    trace, operation, calls, text = told
    program, api, side, key, agent, *rest = trace
    back = Trace(
        program,
        api,
        side,
        SessionKey(key["id"], tuple(CallId(call) for call in key["calls"])),
        Subagent(agent["id"], agent["kind"], agent["parent"]) if agent else None,
        *rest,
    )
    return Given(back, OperationId(operation), tuple(CallId(call) for call in calls), text)
