"""What of a program's session is read and moved: its history, its tools' definitions, files, images.  Knows
nothing of the program's turns, and changes none."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from chappie_agents.answers import Answers
from chappie_agents.files import Files
from chappie_agents.hosts.model.journal import Journal
from chappie_agents.hosts.model.knowledge import Habits, Settings
from chappie_agents.spool import Spool
from chappie_agents.transcript import Transcript
from chappie_agents.upkeep import TIDY_EVERY
from chappie_bridge.codec.turn import OfferedTool, is_ours
from chappie_bridge.wire.blocks import Content
from chappie_bridge.wire.errors import BadArguments, BridgeError
from chappie_bridge.wire.messages import (
    Admit,
    Describe,
    Description,
    Failed,
    Message,
    Pull,
    ReadHistory,
    Recall,
    Withdraw,
)
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.values import Origin, SessionInfo


class Shelf:
    """Of one session.  `takes` says what it does with which message."""

    def __init__(
        self,
        info: Callable[[], SessionInfo],
        tools: Callable[[], Sequence[OfferedTool]],
        home: Path,
        transcript: Transcript,
        journal: Journal,
        spool: Spool,
        *,
        habits: Habits,
        settings: Settings,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        now: Callable[[], float],
    ) -> None:
        """`info` and `tools`: as they are when somebody asks.  `now`: seconds since the epoch.  Raises
        `OSError`."""
        self._info, self._tools, self._habits, self._settings = info, tools, habits, settings
        self._start, self._now = start, now
        self._reading = partial(
            Answers,
            info,
            outbox=journal,
            spool=spool,
            tools=(),
            surroundings=habits.surroundings,
            start=start,
        )
        self._answers = self._reading(transcript=transcript, keep=self.keep)
        self._native: Answers | None = None
        self._files = Files(
            info().id,
            home / "transfers",
            directory=Path(info().cwd or "/"),
            permit=self._permit,
            work=self._answers.work,
            start=start,
            now=now,
        )
        self.takes: Mapping[type[Message], Callable[[Link, Any], None]] = {
            ReadHistory: self._read,
            Withdraw: self._withdraw,
            Admit: partial(self._answers.admit, settings.callers),
            Describe: self._describe,
            Recall: self._answers.recall,
            Pull: self._pull,
            **self._files.takes,
        }

    def show(self, native: Transcript) -> None:
        """From now on history is read from there."""
        self._native = self._reading(transcript=native)

    def keep(self, content: Content) -> None:
        """Native blocks are about to be told: their images can be asked for from now on."""
        self._files.keep(content)

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> bool:
        """False: it waits for no such stream."""
        return self._files.received_chunk(link, stream, offset, data)

    def drop(self) -> None:
        """The broker's link is gone: nobody waits for answers."""
        for answers in (self._answers, self._native):
            if answers is not None:
                answers.drop()

    async def tidy(self) -> None:
        """What transfers left, now and every hour; until cancelled."""
        while True:
            await self._files.tidy(self._now())
            await anyio.sleep(TIDY_EVERY)

    def shut(self) -> None:
        """The process ends.  Blocks."""
        self._files.shut()

    # -- inside ----------------------------------------------------------------------------------

    async def _permit(self, path: str, *, writing: bool, origin: Origin | None) -> Path:
        info = self._info()
        if not info.cwd and not path.startswith(("/", "~/")):
            raise BadArguments("The program has not said where it works; give an absolute path.")
        return await self._settings.policy.permit(
            path,
            cwd=Path(info.cwd or "/"),
            tool="transfer",
            writing=writing,
            session=info.id,
            conversation=None if origin is None else origin.conversation,
        )

    def _pull(self, link: Link, message: Pull) -> None:
        if message.source.startswith("spill:"):
            self._answers.pull(link, message)
        else:
            self._files.pull(link, message)

    def _read(self, link: Link, message: ReadHistory) -> None:
        # A result is read in full under its call's id, as it was told.
        ours = message.range.entry is not None and is_ours(message.range.entry)
        (self._answers if ours else self._native or self._answers).read(link, message)

    def _withdraw(self, link: Link, message: Withdraw) -> None:
        self._answers.withdraw(link, message)
        if self._native is not None:
            self._native.withdraw(link, message)

    def _describe(self, link: Link, message: Describe) -> None:
        async def answer() -> None:
            around = await to_thread.run_sync(self._habits.surroundings)
            tools = [tool.definition() for tool in self._tools()]
            known = {tool.name for tool in tools}
            wanted = message.names
            description = Description(
                request=message.request,
                session=message.session,
                tools=tuple(tool for tool in tools if wanted is None or tool.name in wanted),
                skills=around.skills,
                global_agents=around.global_agents,
                unknown=tuple(name for name in wanted or () if name not in known),
            )
            try:
                link.send(description)
            except BridgeError as error:
                link.send(Failed(request=message.request, failure=error.failure()))

        self._start(answer)
