"""The owner's pages: an application that is made when the first of them is asked for.

Knows the broker as a Switchboard and an Office only.
"""

import time
from typing import TYPE_CHECKING

import anyio
from starlette.types import Receive, Scope, Send

from chappie_bridge.wire.ports import Office, Switchboard

if TYPE_CHECKING:
    from chappie_bridge.faces.dashboard.site import Site

AT = "/dashboard"
"""The path of all of it."""


class Dashboard:
    """`public_url`: where else the pages are reached; over https its cookies are for https alone."""

    def __init__(self, switchboard: Switchboard, office: Office, *, public_url: str = "") -> None:
        self._switchboard, self._office, self._public_url = switchboard, office, public_url
        self._site: Site | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._site is None:
            made = await anyio.to_thread.run_sync(self._made)
            self._site = self._site or made  # of two first requests, one makes the site that stays
        await self._site(scope, receive, send)

    def close(self) -> None:
        """The server leaves: pages that are open are no reason to wait."""
        if self._site is not None:
            self._site.close()

    def _made(self) -> "Site":
        from chappie_bridge.faces.dashboard.site import Site  # noqa: PLC0415  # 100 ms that MCP never pays

        return Site(self._switchboard, self._office, public_url=self._public_url, clock=time.monotonic)
