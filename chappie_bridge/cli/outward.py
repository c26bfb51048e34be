"""The broker as tools of an agent ask it: a link of its own, made at the first one.  Imports no face."""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version
from typing import TYPE_CHECKING

from chappie_agents.caller import RemoteSwitchboard

from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.ids import Mint

if TYPE_CHECKING:
    from chappie_broker.state import StateDirectory

log = logging.getLogger("chappie.local")

WITHIN = 5.0
"""Seconds until a broker that does not answer counts as not there."""


class Outward:
    """`broker`: the URL of its link, or its state directory on this machine.  `run` owns the link."""

    def __init__(self, broker: str | StateDirectory, token: str | None) -> None:
        self.switchboard = RemoteSwitchboard()
        self._broker, self._token = broker, token
        self._wanted = asyncio.Event()

    async def __call__(self) -> RemoteSwitchboard:
        """:raises Lost: it is not there."""
        self._wanted.set()
        await self.switchboard.reach(WITHIN)
        return self.switchboard

    async def run(self) -> None:
        """Until cancelled; returns when the broker refuses this end for good."""
        await self._wanted.wait()
        from chappie_agents.dial import Dial  # what only lists its tools does without a socket

        at = self._broker
        dial = Dial(
            at if isinstance(at, str) else f"unix:{at.socket}",
            self.switchboard,
            role="caller",
            instance=Mint().instance(),
            name="chappie-bridge",
            version=version("chappie-bridge"),
            token=self._token,
        )
        try:
            await dial.run()
        except BridgeError as error:
            log.error("the broker does not take this end: %s", error)
