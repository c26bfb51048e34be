"""Which conversation a caller is: a keyed hash, so that the raw value is never stored."""

import hashlib
import hmac
from functools import lru_cache
from typing import Literal

from chappie_bridge.wire.errors import NoConversation
from chappie_bridge.wire.ids import ConversationId
from chappie_bridge.wire.values import Caller, Origin

SESSION = "session:"
"""Before the id of a session that asks, so that no session's own id is ever a conversation's."""


class Identity:
    """`key` is made once per state directory."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._hashed = lru_cache(maxsize=10_000)(self._hash)

    def of(self, caller: Caller) -> ConversationId | None:
        if caller.source in ("none", "shell", "session"):
            return None
        return self._hashed(caller.principal, caller.source, caller.value)

    def _hash(self, *parts: str) -> ConversationId:
        digest = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            raw = part.encode("utf-8", "surrogatepass")
            digest.update(len(raw).to_bytes(8, "big"))
            digest.update(raw)
        return ConversationId("c_" + digest.hexdigest()[:40])

    def origin(self, caller: Caller) -> Origin:
        """Who will be told the outcome.  A caller without a conversation is its principal's shell."""
        conversation = self.of(caller)
        kind: Literal["conversation", "session", "shell"]
        if conversation is not None:
            kind, name = "conversation", str(conversation)
        elif caller.source == "session":
            kind, name = "session", SESSION + caller.value
        else:
            kind, name = "shell", f"shell:{caller.principal}"
        label = caller.label or label_of(kind, name)
        return Origin(kind=kind, id=name, label=label, principal=caller.principal)


def label_of(kind: str, name: str) -> str:
    """What an origin is called where nothing better is known."""
    return f"ChatGPT {name[-4:]}" if kind == "conversation" else name


def required(conversation: ConversationId | None) -> ConversationId:
    """:raises NoConversation: when the caller is none."""
    if conversation is None:
        raise NoConversation
    return conversation
