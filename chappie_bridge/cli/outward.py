"""The broker as tools of an agent ask it: a link of its own, made at the first one.  Imports no face."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from chappie_agents.caller import RemoteSwitchboard

from chappie_bridge.wire.errors import BridgeError

if TYPE_CHECKING:
    from .where import Where

log = logging.getLogger("chappie.local")

WITHIN = 5.0
"""Seconds until a broker that does not answer counts as not there."""


class Outward:
    """`run` owns the link."""

    def __init__(self, where: Where) -> None:
        self.switchboard = RemoteSwitchboard()
        self._where = where
        self._wanted = asyncio.Event()

    async def __call__(self) -> RemoteSwitchboard:
        """:raises Lost: it is not there."""
        self._wanted.set()
        await self.switchboard.reach(WITHIN)
        return self.switchboard

    async def run(self) -> None:
        """Until cancelled; returns when the broker refuses this end for good."""
        await self._wanted.wait()
        dial = self._where.dial(self.switchboard, "caller", "chappie-bridge")
        try:
            await dial.run()
        except BridgeError as error:
            log.error("the broker does not take this end: %s", error)
