"""Which other sessions may do something here, and how their words are shown.  Decides; runs nothing."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from chappie_agents.policy import Decision
from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.errors import Denied
from chappie_bridge.wire.messages import Admit, PostChat
from chappie_bridge.wire.values import Origin

_WIDEST = 10
"""Characters that one may need when it is escaped."""


@dataclass(frozen=True)
class CallerRule:
    """`caller`: a session's id, `device:ID` for all sessions of a device, or `*`."""

    caller: str
    decision: Decision

    def fits(self, origin: Origin) -> bool:
        return self.caller in ("*", origin.id.removeprefix("session:"), origin.principal)


@dataclass(frozen=True)
class Callers:
    """The first rule that fits decides; without one a session is admitted.

    `approve` asks the person here; without it, `ask` is a refusal."""

    rules: tuple[CallerRule, ...] = ()
    approve: Callable[[Admit], Awaitable[bool]] | None = None

    async def admit(self, message: Admit) -> None:
        """:raises Denied: the owner's rule or answer is no.  Overloaded: too much is asked already."""
        found = (rule.decision for rule in self.rules if rule.fits(message.origin))
        decision = next(found, Decision.ALLOW)
        if decision is Decision.ALLOW:
            return
        if decision is Decision.DENY:
            raise Denied("The owner of that device does not admit this session.")
        if self.approve is None:
            raise Denied(
                "That device asks its owner before it admits another session, and nobody is there to ask.",
                hint="Start the agent there on a terminal, or let its owner set a rule.",
            )
        if not await self.approve(message):
            raise Denied("The owner of that device was asked and did not admit this session.")


def attributed(message: PostChat) -> PostChat:
    """The words of another session: whose they are, then each line quoted, so that none of them passes for
    the person's, ChatGPT's or the bridge's.  An answer to a model request, and ChatGPT's words, stay."""
    if message.origin.kind != "session" or message.reply_to is not None:
        return message
    lines = [f"> {display(line, _WIDEST * len(line) + 1)}" for line in message.text.split("\n")]
    text = "\n".join([f"Message from {message.origin.label}:", *lines])
    return message.model_copy(update={"text": text})
