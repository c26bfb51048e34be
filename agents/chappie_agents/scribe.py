"""Writes what happens in a session into its transcript: gives entries their ids, times and parents.  Decides
nothing."""

from collections.abc import Callable
from datetime import UTC, datetime

from chappie_agents.transcript import Place, Transcript
from chappie_bridge.wire.blocks import Content, Text
from chappie_bridge.wire.ids import EntryId, Mint, OperationId
from chappie_bridge.wire.messages import PostChat, RunBatch
from chappie_bridge.wire.values import Entry, ToolResult


class Scribe:
    """Every method but `time` appends and raises DiskFull when nothing could be written."""

    def __init__(self, transcript: Transcript, *, now: Callable[[], float], mint: Mint) -> None:
        """`now`: seconds since the epoch."""
        self._transcript, self._now, self._mint = transcript, now, mint
        self._second = (0, "")

    def time(self) -> str:
        """Now, as ISO 8601 UTC with milliseconds."""
        now = self._now()
        whole = int(now)
        if self._second[0] != whole:
            self._second = (whole, datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
        return f"{self._second[1]}.{int((now - whole) * 1000):03}Z"

    def calls(self, batch: RunBatch) -> None:
        """All of them in one write, before the first one begins."""
        at, parent = self.time(), self._transcript.leaf
        entries: list[Entry] = []
        for call in batch.calls:
            entry = Entry(
                id=self._mint.entry(),
                at=at,
                kind="call",
                parent=parent,
                operation=batch.operation,
                origin=batch.origin,
                call=call.id,
                name=call.name,
                arguments=call.arguments,
            )
            parent = entry.id
            entries.append(entry)
        self._transcript.append(*entries)

    def result(self, operation: OperationId, result: ToolResult) -> Place:
        """Its entry's id is the call's own: who saw the result can read all of it by `history {entry}`."""
        name = EntryId(result.call)
        entry = Entry(
            id=self._mint.entry() if self._transcript.recent(name) else name,
            at=self.time(),
            kind="result",
            content=result.content,
            parent=self._transcript.leaf,
            operation=operation,
            call=result.call,
            name=result.name,
            is_error=result.is_error,
            duration_ms=result.duration_ms,
        )
        return self._transcript.append(entry)[0]

    def chat(self, chat: PostChat) -> EntryId:
        entry = Entry(
            id=self._mint.entry(),
            at=self.time(),
            kind="assistant",
            content=(Text(text=chat.text),),
            parent=self._transcript.leaf,
            operation=chat.operation,
            origin=chat.origin,
            final=chat.final,
        )
        self._transcript.append(entry)
        return entry.id

    def typed(self, content: Content, at: str) -> Place:
        entry = Entry(
            id=self._mint.entry(), at=at, kind="user", content=content, parent=self._transcript.leaf
        )
        return self._transcript.append(entry)[0]

    def notice(self, text: str, operation: OperationId | None = None) -> None:
        entry = Entry(
            id=self._mint.entry(),
            at=self.time(),
            kind="notice",
            content=(Text(text=text),),
            parent=self._transcript.leaf,
            operation=operation,
        )
        self._transcript.append(entry)
