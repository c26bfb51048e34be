"""Agent processes that start sessions when asked (SPEC §1 `init` with `create`).  Binds nothing."""

from collections.abc import Awaitable, Callable

import anyio
from pydantic import JsonValue

from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.errors import (
    BadArguments,
    BridgeError,
    Denied,
    NoFreeSession,
    NoSession,
    Overloaded,
    PathMissing,
    SessionOffline,
    Timeout,
)
from chappie_bridge.wire.messages import Residence, SessionStarted, StartSession
from chappie_bridge.wire.ports import Link

from .audit import Audit
from .directory import Directory, Session, within
from .limits import LONGEST_WAIT, Limits
from .rpc import Correspondence

MAX_SHOWN = 20
"""Residents, and roots of each, that an error names."""

HOW = (
    "On that device: set `agent_roots` in its config.toml to directories in which agents may be started, "
    "and run `chappie-bridge agent --daemon`. Or start one yourself: `chappie-bridge agent --directory DIR`."
)


class Residents:
    """By link; the device decides, what it told of its roots only says whom to ask first."""

    def __init__(
        self,
        directory: Directory,
        rpc: Correspondence,
        audit: Audit,
        limits: Limits,
        *,
        news: Callable[[], Awaitable[None]],
        now: Callable[[], float],
    ) -> None:
        self._directory, self._rpc, self._audit, self._limits = directory, rpc, audit, limits
        self._news, self._now = news, now
        self._known: dict[Link, Residence] = {}

    # -- from agents -----------------------------------------------------------------------------

    def came(self, link: Link, message: Residence) -> None:
        self._known[link] = message

    def gone(self, link: Link) -> None:
        self._known.pop(link, None)

    def started(self, link: Link, message: SessionStarted) -> None:
        """It registers next; whoever asked for it has it then, and nobody is quicker."""
        if self._rpc.resolve(link, message):
            self._directory.promise(message.session, self._now() + LONGEST_WAIT)

    # -- for targets -----------------------------------------------------------------------------

    async def start(self, directory: str, agent: str | None, who: str, deadline: float) -> Session | None:
        """A new session in `directory`, promised; None: nobody is there who might start one.

        :raises PathMissing: it would be allowed, but is not there.
        :raises Denied: it is inside nobody's roots.
        :raises Overloaded: who may start it has as many sessions as it takes.
        :raises Timeout: no answer, or no registration, by `deadline`.
        """
        if not directory.startswith(("/", "~/")) and directory != "~" and not _drive(directory):
            raise BadArguments("`create` needs an absolute `directory`, or one that begins with `~/`.")
        refused: BridgeError | None = None
        for link in self._candidates(directory, agent):
            self._audit.note(who=who, what="start", target=display(f"{link.peer.name} {directory}", 500))
            try:
                return await self._start(link, directory, deadline)
            except (PathMissing, Overloaded) as error:
                refused = error
            except (Denied, SessionOffline) as error:
                refused = refused or error
        if refused is not None:
            refused.hint = refused.hint or HOW
            refused.data = self._data()
            raise refused
        return None

    def same(self, session: Session, directory: str) -> bool:
        """Does the session work in just this directory of its device?"""
        known = None if session.link is None else self._known.get(session.link)
        meant = directory if known is None else _filled(directory, known)
        return within(session.info.cwd, meant) and within(meant, session.info.cwd)

    def explained(self, error: NoFreeSession | NoSession) -> NoFreeSession | NoSession:
        """The same, with how a session could be started."""
        hint = f"{error.hint or ''} No resident agent may start one there. {HOW}".strip()
        return type(error)(hint=hint, data={**(error.data or {}), **self._data()})

    # -- inside ----------------------------------------------------------------------------------

    def _candidates(self, directory: str, agent: str | None) -> list[Link]:
        """Those first whose roots seem to hold the directory: a link there may lead into another's."""
        able = [
            link
            for link, known in self._known.items()
            if link.up and known.roots and (agent is None or agent.lower() in known.agent.lower())
        ]
        return sorted(able, key=lambda link: not _holds(self._known[link], directory))

    async def _start(self, link: Link, directory: str, deadline: float) -> Session:
        seconds = min(max(deadline - anyio.current_time(), 0.1), self._limits.ask_seconds)
        started = await self._rpc.ask(link, StartSession(directory=directory), SessionStarted, seconds)
        try:
            while True:
                session = self._directory.sessions.get(started.session)
                if session is not None and session.link is link and session.online:
                    return session
                if link not in self._known:
                    raise SessionOffline("The device left while it started the agent.")
                if anyio.current_time() >= deadline:
                    raise Timeout(f"Session {started.session} was started, but is not registered yet.")
                with anyio.move_on_at(deadline):
                    await self._news()
        except BaseException:
            self._directory.redeem(started.session)
            raise

    def _data(self) -> dict[str, JsonValue]:
        shown: list[JsonValue] = [
            {"device": link.peer.name, "roots": [display(root, 200) for root in known.roots[:MAX_SHOWN]]}
            for link, known in list(self._known.items())[:MAX_SHOWN]
        ]
        return {"residents": shown}


def _holds(known: Residence, directory: str) -> bool:
    return any(within(_filled(directory, known), root) for root in known.roots)


def _filled(directory: str, known: Residence) -> str:
    """With what `~` means on that device."""
    return known.home + directory[1:] if directory == "~" or directory.startswith("~/") else directory


def _drive(directory: str) -> bool:
    return directory[1:2] == ":" or directory.startswith("\\\\")
