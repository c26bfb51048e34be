"""One request on its way: who sent it, how long it may take, what its answer told.  No I/O."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.ids import ReceiptId
from chappie_bridge.wire.ports import Switchboard
from chappie_bridge.wire.values import Caller

SESSION_META = "openai/session"
SUBJECT_META = "openai/subject"
TUNNEL_META = "otunnel/requestId"

MAX_VALUE = 1024
"""Characters of a conversation value or a tunnel's request id."""

ANSWER_WITHIN = 50.0
"""Seconds from a request's arrival within which its answer must begin; later ones count as not sent."""

_MARGIN = 1.0
"""Seconds of those kept for writing the answer, however long the client is ready to wait."""

_LABEL = 64


class Exchange:
    """`principal` comes from the credential; `clock` is the loop's (seconds), `arrived` its value when the
    request came.  `session` and `conversation` are what HTTP headers say, `process` is the random value of
    a stdio process; `client` is what the client calls itself,
    `subject` how ChatGPT names its user; `credential` tells those of one principal apart."""

    __slots__ = (
        "_receipts",
        "arrived",
        "client",
        "clock",
        "conversation",
        "credential",
        "principal",
        "process",
        "replaced",
        "session",
        "subject",
        "tell",
        "withdrawn",
    )

    def __init__(
        self,
        principal: str,
        clock: Callable[[], float],
        *,
        session: str = "",
        conversation: str = "",
        process: str = "",
        client: str = "",
        subject: str = "",
        credential: str = "",
    ) -> None:
        self.principal = principal
        self.clock = clock
        self.arrived = clock()
        self.session = session
        self.conversation = conversation
        self.process = process
        self.client = client
        self.subject = subject
        self.credential = credential
        self.replaced = 0
        """Lone surrogates of the request that became U+FFFD."""
        self.tell: Callable[[bytes], Awaitable[None]] | None = None
        """Sends a message ahead of the answer; None where the client's way takes one message only."""
        self.withdrawn: Callable[[], str] = str
        """What a client must read that may learn nothing any more: `WWW-Authenticate`; empty: it may."""
        self._receipts: list[ReceiptId] = []

    def caller(self, meta: Mapping[str, Any] | None) -> Caller:
        """Who asks (SPEC §0, conversation); `meta` is the request's `_meta`.

        :raises BadArguments: `_meta` and header name different conversations or persons, or the value is no
            short text.
        """
        subject = _text(meta, SUBJECT_META)
        if subject and self.subject and subject != self.subject:
            raise BadArguments(
                f"`_meta` {SUBJECT_META} and the header X-OpenAI-Subject name different persons."
            )
        caller = self._conversation(_text(meta, SESSION_META))
        person = {"credential": self.credential, "subject": _bounded(subject or self.subject)}
        return caller.model_copy(update=person)

    def _conversation(self, value: str) -> Caller:
        if value and self.session and value != self.session:
            raise BadArguments(
                f"`_meta` {SESSION_META} and the header X-OpenAI-Session name different conversations.",
                hint="Something between the client and the bridge changes one of them; send only one.",
            )
        if value := value or self.session:
            return Caller(principal=self.principal, source="openai", value=_bounded(value))
        source: Literal["header", "stdio", "none"]
        if self.conversation:
            source, value = "header", _bounded(self.conversation)
        elif self.process:
            source, value = "stdio", self.process
        else:
            source, value = "none", ""
        label = display(self.client, _LABEL)
        return Caller(principal=self.principal, source=source, value=value, label=label)

    def left(self, wait: float) -> float:
        """Seconds of `wait`, counted from the arrival, that are left now; time to write is kept."""
        return max(0.0, min(wait, ANSWER_WITHIN - _MARGIN) - (self.clock() - self.arrived))

    @property
    def in_time(self) -> bool:
        """Does an answer that begins now begin within 50 s of the request?"""
        return self.clock() - self.arrived <= ANSWER_WITHIN

    def carry(self, receipt: ReceiptId | None) -> None:
        """The answer will tell what `receipt` names."""
        if receipt is not None:
            self._receipts.append(receipt)

    def settle(self, switchboard: Switchboard, *, sent: bool) -> None:
        """The last word on all that the answer was to tell.  Repeats say nothing."""
        receipts, self._receipts = self._receipts, []
        for receipt in receipts:
            switchboard.told(receipt, sent=sent)


def tunnel_request(meta: Mapping[str, Any] | None) -> str | None:
    """The tunnel's own id of the request, when it sent one that can be one."""
    value = meta.get(TUNNEL_META) if meta else None
    return value if isinstance(value, str) and 0 < len(value) <= MAX_VALUE else None


def _text(meta: Mapping[str, Any] | None, key: str) -> str:
    value = meta.get(key) if meta else None
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadArguments(f"`_meta` {key} must be text.")
    return value


def _bounded(value: str) -> str:
    if len(value) > MAX_VALUE:
        raise BadArguments(f"The conversation's or the person's value is longer than {MAX_VALUE} characters.")
    return value
