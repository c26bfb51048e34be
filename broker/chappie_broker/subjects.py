"""The person whom ChatGPT names with a request: the first of each credential is let in, any other waits for
the owner.  A client could leave the name out; this guards against a shared connector, not against a thief."""

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from chappie_bridge.wire.errors import BadArguments, Executed, Forbidden
from chappie_bridge.wire.values import Caller

from .store.port import Access, Store
from .store.rows import Subject
from .storing import storing
from .writer import Write

MAX_WAITING = 100
"""Persons who wait for the owner; the one silent for longest goes first."""

_SEEN = 600.0
"""Seconds between two notes that somebody was here."""

_CONSENT = re.compile(r"[0-9a-f]{32}")

Key = tuple[str, str]


class Subjects:
    """`key` is the registry's own; `later` writes behind."""

    def __init__(
        self, store: Store, later: Callable[[Write], None], *, key: bytes, now: Callable[[], float]
    ) -> None:
        self._key = hmac.digest(key, b"subject", hashlib.sha256)
        self._store, self._later, self._now = store, later, now
        self._rows: dict[Key, Subject] = {}
        self._taken: set[str] = set()

    def load(self, access: Access) -> None:
        alive = {grant.id for grant in access.grants}
        for row in access.subjects:
            if _CONSENT.fullmatch(row.credential) and row.credential not in alive:
                self._later(partial(self._store.delete_subject, row.credential, row.hash))
            else:
                self._rows[row.credential, row.hash] = row
        self._taken = {row.credential for row in self._rows.values() if row.status == "allowed"}

    def admit(self, caller: Caller) -> Caller:
        """The same caller.  :raises Forbidden: somebody else than before uses this credential."""
        if not caller.subject:
            return caller
        credential = caller.credential or caller.principal
        digest = self._hash(caller.subject)
        row = self._rows.get((credential, digest))
        now = self._now()
        if row is None:
            row = Subject(credential, digest, "allowed", now, now)
            if credential in self._taken:
                row = replace(row, status="waiting")
            self._keep(row)
        elif now - row.last_seen > _SEEN:
            self._keep(replace(row, last_seen=now))
        if row.status == "waiting":
            raise Forbidden(
                "Another ChatGPT user than before uses this connection.",
                hint=f"The owner of the bridge allows it: `chappie-bridge subjects allow {name(row)}`.",
            )
        return caller

    def known(self) -> tuple[Subject, ...]:
        """The last seen first."""
        return tuple(sorted(self._rows.values(), key=lambda row: -row.last_seen))

    async def allow(self, named: str) -> None:
        """:raises BadArguments: nobody has that name."""
        row = replace(self._named(named), status="allowed")
        with storing(Executed.NO):
            await self._store.save_subject(row)
        self._rows[row.credential, row.hash] = row
        self._taken.add(row.credential)

    async def forget(self, named: str) -> None:
        """As if they had never come.  When nobody is left for a credential, the next one is let in.

        :raises BadArguments: nobody has that name."""
        row = self._named(named)
        with storing(Executed.NO):
            await self._store.delete_subject(row.credential, row.hash)
        self._drop(row)

    def _named(self, named: str) -> Subject:
        for row in self._rows.values():
            if name(row) == named:
                return row
        raise BadArguments("Nobody has this id; `chappie-bridge subjects` lists them.")

    def _keep(self, row: Subject) -> None:
        self._rows[row.credential, row.hash] = row
        if row.status == "allowed":
            self._taken.add(row.credential)
        self._later(partial(self._store.save_subject, row))
        waiting = [each for each in self._rows.values() if each.status == "waiting"]
        if len(waiting) > MAX_WAITING:
            silent = min(waiting, key=lambda each: each.last_seen)
            self._drop(silent)
            self._later(partial(self._store.delete_subject, silent.credential, silent.hash))

    def _drop(self, row: Subject) -> None:
        self._rows.pop((row.credential, row.hash), None)
        left = [each for each in self._rows.values() if each.credential == row.credential]
        if not any(each.status == "allowed" for each in left):
            self._taken.discard(row.credential)

    def _hash(self, subject: str) -> str:
        return hmac.digest(self._key, subject.encode("utf-8", "surrogatepass"), hashlib.sha256).hex()


def name(row: Subject) -> str:
    """What the owner types."""
    return hashlib.sha256(f"{row.credential}\n{row.hash}".encode()).hexdigest()[:10]
