"""What our extension inside a program tells, and what it waits for: `/chappie/wait` and `/chappie/left`.
Starts no turn by itself."""

from collections.abc import Mapping

import anyio
from pydantic import JsonValue

from chappie_agents.hosts.model.house import House
from chappie_agents.hosts.model.session import ProgramSession
from chappie_bridge.codec.loose import record, string
from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.ids import SessionId

WAIT = 25.0
"""Seconds after which a program that waits is answered with nothing and asks again."""

MAX_WAITING = 1_000


class _Listener:
    def __init__(self) -> None:
        self.text: str | None = None
        self.told = anyio.Event()


class Extensions:
    """The programs that can be woken, by session."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._listeners: dict[SessionId, _Listener] = {}

    async def __call__(self, what: str, headers: Mapping[str, str], body: JsonValue) -> JsonValue:
        """:raises BadArguments: nothing that an extension of ours asks."""
        session = SessionId(string(record(body).get("session")))
        known = self._house.sessions.get(session)
        if not session:
            raise BadArguments("The extension names no session.")
        match what:
            case "wait":
                if known is not None:
                    self._house.heard(known)
                return {"text": await self._wait(session)}
            case "left":
                if known is not None:
                    self._house.end(known)
                return {}
            case _:
                raise BadArguments(f"No extension asks {what[:32]!r}.")

    async def wake(self, session: ProgramSession, text: str) -> bool:
        """Give `text` to the program that waits for it."""
        listener = self._listeners.pop(session.info.id, None)
        if listener is None:
            return False
        listener.text = text
        listener.told.set()
        return True

    async def _wait(self, session: SessionId) -> str | None:
        if len(self._listeners) >= MAX_WAITING:
            raise BadArguments("Too many programs wait.")
        listener = self._listeners[session] = _Listener()
        try:
            with anyio.move_on_after(WAIT):
                await listener.told.wait()
            return listener.text
        finally:
            if self._listeners.get(session) is listener:
                del self._listeners[session]
