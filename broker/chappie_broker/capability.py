"""Who may read what was offered: unguessable text in an address, good for a day.  Keeps nothing that a
restart would lose."""

import base64
import hashlib
import hmac
import secrets
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from chappie_bridge.wire.ids import ConversationId

KEEP = 24 * 3600
"""Seconds."""

_FRESH = 23 * 3600
_NONCE, _MAC = 9, 18
_REMEMBERED = 10_000

_K = TypeVar("_K")
_V = TypeVar("_V")


class Capabilities:
    """`key` is the registry's own; `random(n)` gives n random bytes."""

    def __init__(
        self, key: bytes, now: Callable[[], float], random: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self._key = hmac.digest(key, b"capability", hashlib.sha256)
        self._now, self._random = now, random
        self._given: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()
        self._conversations: OrderedDict[str, ConversationId] = OrderedDict()

    def give(self, principal: str, conversation: ConversationId | None) -> str:
        """For the addresses in one answer to that principal; the same for an hour."""
        name = (principal, conversation or "")
        until, text = self._given.pop(name, (0.0, ""))
        if until - self._now() < _FRESH:
            until = float(int(self._now()) + KEEP)
            body = self._random(_NONCE) + struct.pack(">Q", int(until))[3:]
            text = base64.urlsafe_b64encode(body + self._mac(body, principal)).decode("ascii").rstrip("=")
            if conversation is not None:
                self._conversations[text] = conversation
                _bound(self._conversations)
        self._given[name] = (until, text)
        _bound(self._given)
        return text

    def holds(self, text: str | None, principal: str) -> bool:
        """Was it given to this principal, less than a day ago?"""
        try:
            padded = (text or "") + "=" * (-len(text or "") % 4)
            raw = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
        except ValueError:
            return False
        body, mac = raw[:-_MAC], raw[-_MAC:]
        if len(body) != _NONCE + 5 or not hmac.compare_digest(mac, self._mac(body, principal)):
            return False
        return int.from_bytes(body[_NONCE:], "big") > self._now()

    def conversation(self, text: str) -> ConversationId | None:
        """Whose answer it came with, if that was in this life of the broker."""
        return self._conversations.get(text)

    def _mac(self, body: bytes, principal: str) -> bytes:
        said = body + principal.encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, said, hashlib.sha256)[:_MAC]


def _bound(kept: OrderedDict[_K, _V]) -> None:
    while len(kept) > _REMEMBERED:
        kept.popitem(last=False)
