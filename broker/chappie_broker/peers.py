"""What one session may ask of another: who it is, whether it is admitted there, that no circle waits.  Sends
nothing but the question to the device's owner."""

import hashlib
import json

import anyio

from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.errors import BadArguments, Executed, Forbidden, Timeout, Unsupported
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.messages import Admit, Description, Done
from chappie_bridge.wire.requests import Submit
from chappie_bridge.wire.values import MAX_CHAIN, Caller, Origin, SessionInfo

from .audit import Audit
from .directory import Directory, Session
from .identity import SESSION, Identity
from .operations import Operation
from .rpc import Correspondence
from .targets import offline

NAME = 64
"""Characters of a name in a label."""


class Peers:
    """Sessions as callers.  Other callers pass through untouched."""

    def __init__(self, directory: Directory, identity: Identity, rpc: Correspondence, audit: Audit) -> None:
        self._directory, self._identity, self._rpc, self._audit = directory, identity, rpc, audit

    def origin(self, caller: Caller) -> Origin:
        """Who asks.  A session is named as the directory knows it, whatever it says of itself; its request
        belongs to what it runs now.

        :raises Forbidden: it is no session, or another device's."""
        origin = self._identity.origin(caller)
        if origin.kind != "session":
            return origin
        session = self._directory.sessions.get(SessionId(caller.value))
        device = caller.principal.startswith("device:")
        if session is None or (device and caller.principal != f"device:{session.owner}"):
            raise Forbidden("No session of this device has the id under which this was asked.")
        before = session.running.origin.chain if session.running is not None else ()
        chain = (*before, session.info.id)[-MAX_CHAIN:]
        return origin.model_copy(update={"label": label(session.info), "chain": chain})

    async def admit(
        self, origin: Origin, session: Session, what: str, deadline: float, *, queues: bool = False
    ) -> None:
        """Returns once `session` takes this.  `queues`: it would wait for its turn there.

        :raises BadArguments: it would wait for itself.  Denied: the owner of the device says no.
        :raises Timeout: the owner has not answered yet."""
        if origin.kind != "session" or (not queues and origin.chain[-1] == session.info.id):
            return
        if queues:
            self._no_circle(origin, session)
        if session.link is None or not session.online:
            raise offline(session)
        message = Admit(session=session.info.id, origin=origin, what=what)
        try:
            await self._rpc.ask(session.link, message, Done, max(deadline - anyio.current_time(), 0.1))
        except Unsupported:
            pass  # an agent from before there was such a policy
        except Timeout:
            raise Timeout(
                "The owner of that device was asked and has not answered yet; nothing ran.",
                executed=Executed.NO,
            ) from None

    def described(self, session: Session, about: Description) -> None:
        """All tools of a session were told: what they were, and each change, is on record."""
        text = json.dumps([each.model_dump(mode="json") for each in about.tools], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        if session.definitions != digest:
            what = "tools first seen" if session.definitions is None else "tools changed"
            target = session.info.id
            self._audit.note(who="broker", what=what, target=target, size=len(text), outcome=digest)
        session.definitions = digest

    def _no_circle(self, origin: Origin, session: Session) -> None:
        asking, target = origin.chain[-1], session.info.id
        if target == asking:
            raise BadArguments(
                "A session cannot call itself: this would wait for the very batch that asks.",
                hint="Use your own tools, or name another session.",
            )
        if target in origin.chain:
            way = " → ".join((*origin.chain, target))
            raise BadArguments(
                f"This would wait in a circle: {way}.",
                hint="Return the outcome as your result; the session that asked gets it.",
            )
        if len(origin.chain) >= MAX_CHAIN:
            raise BadArguments(f"This came through {MAX_CHAIN} sessions already; it may not go further.")
        if self._directory.sessions[asking].running is not None and target in self._waiting_for(asking):
            raise BadArguments(
                f"Session {target} waits for this one already: each would wait for the other.",
                hint="Finish what it asked for first.",
            )

    def _waiting_for(self, session: SessionId) -> set[SessionId]:
        """Sessions that wait for an outcome in this one, directly or through others."""
        found: set[SessionId] = set()
        todo = [session]
        while todo:
            for operation in _under_way(self._directory.sessions.get(todo.pop())):
                other = SessionId(operation.origin.id.removeprefix(SESSION))
                if operation.origin.kind == "session" and operation.waiters and other not in found:
                    found.add(other)
                    todo.append(other)
        return found


def label(info: SessionInfo) -> str:
    """A session for people and models: its name quoted, so that no name passes for anything else."""
    name = f" {json.dumps(display(info.name, NAME), ensure_ascii=False)}" if info.name else ""
    where = f"{display(info.agent, NAME)} on {display(info.device, NAME)}"
    return f"session{name} ({where}, {display(info.id, NAME)})"


def named(request: Submit) -> str:
    """A batch in the words of a person who must allow it."""
    names = list(dict.fromkeys(call.name for call in request.calls or ()))
    return f"run {', '.join(names[:8])}{f' and {len(names) - 8} more' if len(names) > 8 else ''}"


def _under_way(session: Session | None) -> list[Operation]:
    if session is None:
        return []
    return [*session.queue, *([session.running] if session.running is not None else [])]
