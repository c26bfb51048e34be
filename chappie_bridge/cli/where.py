"""Which broker an agent's process links to, and with what: given, joined, or this machine's.  Opens nothing.

What `connect` names comes first, then the broker that this machine joined, then that of the state directory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

import pydantic
from chappie_broker.state import StateDirectory, StateUnsafe

from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.ids import Mint
from chappie_bridge.wire.pairing import CA

if TYPE_CHECKING:
    from chappie_agents.dial import Dial

    from chappie_bridge.config import Settings
    from chappie_bridge.wire.ports import Attendant

JOINED = "joined.json"
"""File of the state directory, 0600."""


class Joined(pydantic.BaseModel):
    """What a device keeps of its pairing.  `next`: a token that was sent to replace the other one, while it
    is not known which of them the broker has."""

    model_config = pydantic.ConfigDict(frozen=True)

    url: str
    pin: str
    device: str
    name: str
    token: str
    next: str = ""

    def tokens(self) -> tuple[str, ...]:
        return (self.token, self.next) if self.next else (self.token,)


def joined(state: StateDirectory) -> Joined | None:
    """:raises StateUnsafe: others may read it, or it is no such file."""
    text = state.private(JOINED)
    try:
        return None if text is None else Joined.model_validate_json(text)
    except pydantic.ValidationError:
        raise StateUnsafe(state.path / JOINED, "This file holds no pairing any more. Join again.") from None


def keep(state: StateDirectory, pairing: Joined) -> None:
    state.keep(JOINED, json.dumps(pairing.model_dump()).encode())


@dataclass(frozen=True)
class Where:
    """`token` as a Dial takes it.  Dials are made anew for each link."""

    state: StateDirectory
    connect: str
    given: str | None
    paired: bool

    @classmethod
    def of(cls, settings: Settings, state: StateDirectory, token: str | None, *, here: bool = False) -> Where:
        """`token` is one that was given beside the settings; `here`: this machine's broker, whatever else.

        :raises BadArguments: a broker elsewhere is named and no token for it is known."""
        known = None if here else joined(state)
        connect = "" if here else settings.connect
        paired = known is not None and token is None and connect in ("", known.url)
        if connect and not paired and token is None and not connect.startswith("unix:"):
            raise BadArguments(
                "--connect needs a device token: `join` that broker, or --token-file FILE, or CHAPPIE_TOKEN."
            )
        return cls(state, connect, token, paired)

    @property
    def address(self) -> str:
        """Of the link.  Ask again for each: a socket may move with a restart."""
        known = joined(self.state) if self.paired else None
        return known.url if known is not None else self.connect or f"unix:{self.state.socket}"

    def dial(self, attendant: Attendant, role: Literal["agent", "caller"], name: str) -> Dial:
        from chappie_agents.dial import Dial

        known = joined(self.state) if self.paired else None
        return Dial(
            self.address,
            attendant,
            role=role,
            instance=Mint().instance(),
            name=name,
            version=version("chappie-bridge"),
            token=self.given if known is None else self._tokens,
            pin=CA if known is None else known.pin,
        )

    def _tokens(self) -> Sequence[str]:
        known = joined(self.state)
        return () if known is None else known.tokens()
