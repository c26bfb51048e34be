"""Names of things.  An id is opaque text: ours are random, an agent's are its own (native)."""

import secrets
from collections.abc import Callable
from typing import NewType

SessionId = NewType("SessionId", str)
"""One agent session on one device; the agent's own id."""

ConversationId = NewType("ConversationId", str)
"""One chat, as a keyed hash: the raw value of the client is never stored."""

DeviceId = NewType("DeviceId", str)
"""One device credential."""

LOCAL = DeviceId("local")
"""The device of every process of the owner on the broker's machine; neither paired nor revoked."""

OperationId = NewType("OperationId", str)
"""A batch, chat or transfer under way: `op_` and 128 random bits."""

CallId = NewType("CallId", str)
"""One tool call of a batch: `call_chp_` and 96 random bits; it appears in the native transcript."""

EntryId = NewType("EntryId", str)
"""One entry of an agent's transcript; native."""

QuestionId = NewType("QuestionId", str)
"""One question to the person in a chat: `q_` and 128 random bits."""

InputId = NewType("InputId", str)
"""Text or images that a person typed at the agent."""

InstanceId = NewType("InstanceId", str)
"""One life of one process at the other end of a link.  A new process is a new instance."""

ConnectionId = NewType("ConnectionId", int)
"""One socket.  Comparing it keeps a stale socket's clean-up away from its successor."""

ReceiptId = NewType("ReceiptId", str)
"""One response on its way to a conversation: told `sent` or `unsent` by the gate."""

AppId = NewType("AppId", str)
"""One client program: ours, 128 random bits, or the address of its metadata document."""

GrantId = NewType("GrantId", str)
"""One consent of the owner: 128 random bits."""

MAX_ID = 256
"""Longest id accepted from anybody, in characters."""


class Mint:
    """Makes new ids.  `random(n)` gives n random bytes; a simulation passes a seeded one."""

    def __init__(self, random: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._random = random

    def text(self, prefix: str, size: int) -> str:
        """`prefix` and `size` random bytes in hexadecimal."""
        return prefix + self._random(size).hex()

    def operation(self) -> OperationId:
        return OperationId(self.text("op_", 16))

    def call(self) -> CallId:
        return CallId(self.text("call_chp_", 12))

    def entry(self) -> EntryId:
        return EntryId(self.text("e_", 10))

    def input(self) -> InputId:
        return InputId(self.text("in_", 10))

    def instance(self) -> InstanceId:
        return InstanceId(self.text("i_", 10))

    def question(self) -> QuestionId:
        return QuestionId(self.text("q_", 16))

    def session(self) -> SessionId:
        return SessionId(self.text("s_", 10))

    def receipt(self) -> ReceiptId:
        return ReceiptId(self.text("r_", 10))
