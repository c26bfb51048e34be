"""A conversation's turns as a table: from a person's words, over calls that are ours, to the answer.  Pure:
no I/O, no clock; each method gives the steps to take next.

    send:     [prepare] -> challenge -> conversation -> stream
    a call:   run -> prepare -> challenge -> conversation with the return -> stream
    the end:  an assistant's message that ends the turn, and the stream's own end
"""

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from pydantic import JsonValue

from chappie_bridge.codec.conversation import Json, Signature, tool_return, user_message
from chappie_bridge.faces.flow.hearing import Hearing, LocalCall, Said
from chappie_bridge.wire.machine import Table

MAX_RETURNS = 200
"""Calls carried out in one turn."""

MAX_READS = 8
"""Looks at a conversation whose stream was cut, before the turn is given up."""

READ_EVERY = 2.0
"""Seconds between two of them."""


class State(StrEnum):
    OPEN = "open"
    PREPARING = "preparing"
    CHALLENGING = "challenging"
    STREAMING = "streaming"
    RUNNING = "running"
    RESUMING = "resuming"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


_S = State
RESTING = (_S.OPEN, _S.FINISHED, _S.FAILED, _S.STOPPED)
_BUSY = (_S.PREPARING, _S.CHALLENGING, _S.STREAMING, _S.RUNNING, _S.RESUMING)

TURN = Table(
    "turn",
    {
        **{(rest, "sent"): _S.PREPARING for rest in RESTING},
        **{(rest, "sent_prepared"): _S.CHALLENGING for rest in RESTING},
        (_S.PREPARING, "prepared"): _S.CHALLENGING,
        (_S.PREPARING, "unprepared"): _S.CHALLENGING,  # the conversation then says so
        (_S.CHALLENGING, "challenged"): _S.STREAMING,
        (_S.STREAMING, "heard"): _S.STREAMING,
        (_S.STREAMING, "calls"): _S.RUNNING,
        (_S.STREAMING, "answered"): _S.FINISHED,
        (_S.STREAMING, "cut"): _S.RESUMING,
        (_S.STREAMING, "failed"): _S.FAILED,
        (_S.RUNNING, "returning"): _S.PREPARING,
        (_S.RUNNING, "failed"): _S.FAILED,  # more calls than a turn may have
        (_S.RESUMING, "unfinished"): _S.RESUMING,
        (_S.RESUMING, "calls"): _S.RUNNING,
        (_S.RESUMING, "answered"): _S.FINISHED,
        (_S.RESUMING, "failed"): _S.FAILED,
        **{(busy, "refused"): _S.FAILED for busy in _BUSY},
        **{(busy, "stopped"): _S.STOPPED for busy in _BUSY},
        # One of several calls, while another's return is on its way; or a call that outlived the turn.
        **{(state, "ran"): state for state in State},
        # What was asked while typing, or before a stop, and is answered now.
        **{(state, late): state for state in State for late in ("opened", "typed")},
        **{
            (state, late): state
            for state in State
            for late in ("prepared", "unprepared")
            if state is not _S.PREPARING
        },
        **{
            (state, late): state
            for state in RESTING
            for late in ("challenged", "heard", "closed", "read", "refused", "stopped")
        },
    },
)


class Manner(NamedTuple):
    """How a conversation is held.  `effort` empty: left out; `offset` in minutes behind UTC; `tools`: names
    that are ours; `readable`: can a conversation be read again?"""

    model: str
    effort: str
    timezone: str
    offset: int
    signatures: tuple[Signature, ...]
    tools: frozenset[str]
    hidden: bool = True
    readable: bool = False


class Prepare(NamedTuple):
    """Send it; `prepared` takes its token, or None."""

    body: Json


class Challenge(NamedTuple):
    """Get an answer from the owner; `challenged` takes it."""


class Converse(NamedTuple):
    """Send it; `heard` takes its stream, `closed` the end.  `call`: the id of the call it returns."""

    body: Json
    conduit: str | None
    call: str | None


class Run(NamedTuple):
    """Carry it out, once; `ran` takes its result."""

    call: LocalCall


class Read(NamedTuple):
    """Read the conversation after so many seconds; `read` takes it, or None."""

    conversation: str
    after: float


class Ended(NamedTuple):
    """The turn is over; `reason` says why when it did not finish."""

    state: State
    reason: str = ""


Step = Prepare | Challenge | Converse | Run | Read | Said | Ended


class Conversation:
    """`now` gives seconds since the epoch, `new_id` a UUID as text.  `id` and `parent` go on with one that is
    there already."""

    def __init__(
        self,
        manner: Manner,
        *,
        now: Callable[[], float],
        new_id: Callable[[], str],
        id: str | None = None,  # noqa: A002 - as in the JSON
        parent: str | None = None,
    ) -> None:
        self.manner = manner
        self.state = State.OPEN
        self.id = id
        self.parent = parent
        self._now = now
        self._new_id = new_id
        self._conduit: str | None = None
        self._message: Json | None = None
        self._message_parent: str | None = None
        self._returning: str | None = None
        self._hearing = Hearing(manner.tools)
        self._waiting: deque[LocalCall] = deque()
        self._results: dict[str, Json] = {}
        self._returned = 0
        self._reads = 0

    def opened(self) -> list[Step]:
        """The conversation is on the screen."""
        self._next("opened")
        return [Prepare(self._preparation(None))] if self.state in RESTING else []

    def typed(self, text: str) -> list[Step]:
        """This much is typed; while a turn is under way nothing is prepared."""
        self._next("typed")
        return [Prepare(self._preparation(text))] if self.state in RESTING else []

    def send(self, text: str) -> list[Step]:
        """This is what is said; begins a turn."""
        name = self._new_id()
        self._message = user_message(text, id=name, at=self._now())
        self._message_parent = self.parent
        self._returning = None
        self._waiting.clear()
        self._results.clear()
        self._returned = 0
        if self._conduit is not None:
            self._next("sent_prepared")
            return [Challenge()]
        self._next("sent")
        return [Prepare(self._preparation(text))]

    def prepared(self, token: str | None) -> list[Step]:
        """The answer to a preparation.  The latest token is kept for the next request."""
        before = self.state
        if token is not None:
            self._conduit = token
        self._next("unprepared" if token is None else "prepared")
        return [Challenge()] if before is State.PREPARING else []

    def challenged(self, answer: str) -> list[Step]:
        """The owner's answer; it is sent and not kept."""
        self._next("challenged")
        if self.state is not State.STREAMING or self._message is None:
            return []
        body: Json = {
            "action": "next",
            "local_function_signatures": [each.as_json() for each in self.manner.signatures],
            "messages": [self._message],
            "supported_encodings": ["v1"],
            "client_prepare_state": "failure" if self._conduit is None else "success",
            "app_attest_challenge": answer,
            **self._about(),
        }
        if self._message_parent is not None:
            body["parent_message_id"] = self._message_parent
        conduit, self._conduit = self._conduit, None
        self._hearing.begin(str(self._message["id"]))
        return [Converse(body, conduit, self._returning)]

    def heard(self, data: bytes) -> list[Step]:
        """More of the stream."""
        self._next("heard")
        if self.state is not State.STREAMING:
            return []
        said = self._hearing.feed(data)
        self.id = self._hearing.conversation or self.id
        return [*said, *(self._fail(self._hearing.fault) if self._hearing.fault else [])]

    def closed(self) -> list[Step]:
        """The stream is over, in whatever way."""
        if self.state is not State.STREAMING:
            self._next("closed")
            return []
        found = self._hearing.end()
        self.parent = found.parent or self.parent
        if found.calls or self._waiting:
            return self._calls(found.calls)
        if found.foreign:
            return self._fail(f"The model calls {found.foreign!r}, which is not ours. Nothing was run.")
        if found.answered:
            self._next("answered")
            return [Ended(self.state)]
        return self._cut("The stream ended before the turn did.")

    def ran(self, call: str, result: Json) -> list[Step]:
        """A call has its result, whose `message` the model reads.  Of a turn that is over nobody asks."""
        self._next("ran")
        if self.state in RESTING:
            return []
        self._results[call] = result
        return self._return() if self.state is State.RUNNING else []

    def read(self, conversation: JsonValue) -> list[Step]:
        """The conversation as it is stored; None: it could not be read."""
        if self.state is not State.RESUMING:
            self._next("read")
            return []
        if conversation is None:
            return self._fail("The stream was cut, and the conversation could not be read.")
        found = self._hearing.read(conversation)
        self.parent = found.parent or self.parent
        if found.calls:
            return [*found.said, *self._calls(found.calls)]
        if found.foreign:
            return self._fail(f"The model calls {found.foreign!r}, which is not ours. Nothing was run.")
        if found.answered:
            self._next("answered")
            return [*found.said, Ended(self.state)]
        self._reads += 1
        if self._reads >= MAX_READS:
            return [*found.said, *self._fail("The stream was cut, and the turn did not finish.")]
        self._next("unfinished")
        return [*found.said, Read(self.id or "", READ_EVERY)]

    def refused(self, reason: str) -> list[Step]:
        """A request was not accepted."""
        if self.state in RESTING:
            self._next("refused")
            return []
        self._next("refused")
        return [Ended(self.state, reason)]

    def stopped(self) -> None:
        """The person does not want to wait.  What runs on a device goes on."""
        self._next("stopped")

    def _calls(self, calls: tuple[LocalCall, ...]) -> list[Step]:
        self._waiting += calls
        self._next("calls")
        return [*(Run(call) for call in calls), *self._return()]

    def _return(self) -> list[Step]:
        """Send the result that is next in order, if it is there."""
        head = self._waiting[0]
        result = self._results.pop(head.id, None)
        if result is None:
            return []
        self._waiting.popleft()
        self._returned += 1
        if self._returned > MAX_RETURNS:
            return self._fail(f"The turn has more than {MAX_RETURNS} calls.")
        self._message = tool_return(
            head.id,
            head.tool,
            {"message": "", **result},
            id=self._new_id(),
            at=self._now(),
            hidden=self.manner.hidden,
        )
        self._message_parent = self._returning = head.id
        self._conduit = None  # a return is prepared anew
        self._next("returning")
        return [Prepare(self._preparation(None))]

    def _cut(self, reason: str) -> list[Step]:
        if not self.manner.readable or self.id is None:
            return self._fail(f"{reason} Nothing of it was run.")
        self._reads = 0
        self._next("cut")
        return [Read(self.id, 0)]

    def _fail(self, reason: str) -> list[Step]:
        self._next("failed")
        return [Ended(self.state, reason)]

    def _preparation(self, text: str | None) -> Json:
        body: Json = {"action": "next", "client_prepare_state": "sent", **self._about()}
        if text is not None:
            body["partial_query"] = {"content": {"content_type": "text", "parts": [text]}}
        return body

    def _about(self) -> Json:
        about: Json = {"model": self.manner.model}
        if self.manner.effort:
            about["thinking_effort"] = self.manner.effort
        about |= {"timezone": self.manner.timezone, "timezone_offset_min": self.manner.offset}
        if self.id is not None:
            about["conversation_id"] = self.id
        return about

    def _next(self, event: str) -> None:
        self.state = TURN.next(self.state, event)
