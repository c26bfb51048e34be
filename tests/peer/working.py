"""A device's agent that does what it is asked, at once.  For tests and benchmarks; it keeps nothing."""

import threading
from typing import Literal

from chappie_bridge.wire.errors import Executed, Unsupported
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.messages import (
    Admit,
    CallResult,
    Done,
    Failed,
    Finished,
    Message,
    PostChat,
    Register,
    Registered,
    Request,
    RunBatch,
)
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.table import MESSAGES
from chappie_bridge.wire.values import SessionInfo, ToolResult

_ASKS = tuple(row.model for row in MESSAGES.values() if row.sender == "broker" and row.reply is not None)


class Working:
    """An attendant with one session; `there` is set once it is registered, `gone` when its link ended."""

    def __init__(self, session: str) -> None:
        self.session = SessionId(session)
        self.there = threading.Event()
        self.gone = threading.Event()

    def link_up(self, link: Link) -> None:
        info = SessionInfo(id=self.session, agent="builtin", device="a device", cwd="/work")
        link.send(Register(request=1, session=info))

    def link_back(self, link: Link) -> None:
        pass

    def link_down(self, link: Link) -> None:
        self.gone.set()

    def link_gone(self, link: Link) -> None:
        self.gone.set()

    def received(self, link: Link, message: Message) -> None:
        if isinstance(message, Registered):
            self.there.set()
        elif isinstance(message, RunBatch):
            for index, call in enumerate(message.calls):
                result = ToolResult(call=call.id, name=call.name, is_error=False, duration_ms=1, content=())
                link.send(
                    CallResult(operation=message.operation, session=self.session, index=index, result=result)
                )
            self._finish(link, message, "batch", len(message.calls))
        elif isinstance(message, PostChat):
            self._finish(link, message, "chat", 0)
        elif isinstance(message, Admit):
            link.send(Done(request=message.request))
        elif isinstance(message, _ASKS) and isinstance(message, Request):
            link.send(Failed(request=message.request, failure=Unsupported().failure()))

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> None:
        pass

    def _finish(
        self, link: Link, message: RunBatch | PostChat, kind: Literal["batch", "chat"], count: int
    ) -> None:
        link.send(
            Finished(
                operation=message.operation,
                session=self.session,
                origin=message.origin,
                kind=kind,
                status="done",
                executed=Executed.YES,
                cwd="/work",
                count=count,
            )
        )
