"""Apps with the owner's consent and their tokens: random, hashed in the registry, checked in memory.

A token is `chp_`, its kind, its consent's id and 256 random bits.  A consent has one good refresh token; any
other of its own is an old one that somebody used again, and ends the consent.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import anyio

from chappie_bridge.wire.access import App, Held, Tokens
from chappie_bridge.wire.errors import BadArguments, Executed, Forbidden, Overloaded
from chappie_bridge.wire.ids import AppId, GrantId

from .addresses import Allowed
from .audit import Audit
from .download import Bounds, document
from .store.port import Access, Store
from .store.rows import App as StoredApp
from .store.rows import AppGrant
from .storing import storing
from .writer import Write

MAX_APPS = 200
"""Registrations; of those without a consent the one unused for longest goes first."""

MAX_GRANTS = 8
"""Consents of one app; the oldest goes first."""

REGISTRATIONS = 60
"""In one minute; one more is refused."""

ACCESS_SECONDS = 3600
REFRESH_SECONDS = 90 * 86400.0
"""Without a refresh; then the owner consents anew."""

_SEEN = 600.0
"""Seconds between two notes that a consent is in use."""


class _Token(NamedTuple):
    grant: GrantId
    digest: str


class Apps:
    """Implements `ports.Consents`.  `later` writes behind; `bounds` are of what it reads elsewhere."""

    def __init__(
        self,
        store: Store,
        audit: Audit,
        later: Callable[[Write], None],
        *,
        now: Callable[[], float],
        bounds: Bounds,
    ) -> None:
        self._store, self._audit, self._later, self._now, self._bounds = store, audit, later, now, bounds
        self._apps: dict[AppId, StoredApp] = {}
        self._grants: dict[GrantId, AppGrant] = {}
        self._change = anyio.Lock()
        self._minute = (0, 0.0)

    def load(self, access: Access) -> None:
        self._apps = {app.id: app for app in access.apps}
        self._grants = {grant.id: grant for grant in access.grants}

    # --- apps ---

    def app(self, app: AppId) -> App | None:
        row = self._apps.get(app)
        return None if row is None else App(row.id, row.name, tuple(json.loads(row.redirects)))

    async def register(self, app: App) -> None:
        """:raises Overloaded: too many, or all that are kept have the owner's consent."""
        now = self._now()
        count, since = self._minute if now - self._minute[1] < 60 else (0, now)
        if count >= REGISTRATIONS:
            raise Overloaded("Too many apps register at once; wait a minute.")
        self._minute = (count + 1, since)
        async with self._change:
            await self._tidy(now)
            while app.id not in self._apps and len(self._apps) >= MAX_APPS:
                used = {grant.app for grant in self._grants.values()}
                unused = [row for row in self._apps.values() if row.id not in used]
                if not unused:
                    raise Overloaded("No further app can register; the owner revokes one first.")
                await self._forget(min(unused, key=lambda row: row.last_used).id)
            row = self._row(app, now)
            with storing(Executed.NO):
                await self._store.save_app(row)
            self._apps[app.id] = row

    async def document(self, url: str) -> bytes:
        """The small document at `url`.  Strangers name it: what the owner opened for files is closed to them.

        :raises DownloadFailed: :raises TooLarge:"""
        return await document(url, self._bounds._replace(allowed=Allowed()))

    def known(self) -> tuple[tuple[StoredApp, AppGrant | None], ...]:
        """Each app with its newest consent, the last used first."""
        newest: dict[AppId, AppGrant] = {}
        for grant in sorted(self._grants.values(), key=lambda each: each.created_at):
            newest[grant.app] = grant
        rows = sorted(self._apps.values(), key=lambda each: -each.last_used)
        return tuple((row, newest.get(row.id)) for row in rows)

    async def revoke_app(self, app: AppId) -> None:
        """With all its consents.  :raises BadArguments: there is no such app."""
        async with self._change:
            if app not in self._apps:
                raise BadArguments("There is no app with this id.")
            await self._forget(app)
        self._note(app, "revoked by the owner")

    # --- tokens ---

    async def consented(self, app: App, resource: str) -> Tokens:
        """The owner let `app` in."""
        now = self._now()
        grant = GrantId(secrets.token_hex(16))
        async with self._change:
            await self._tidy(now)
            own = [each for each in self._grants.values() if each.app == app.id]
            for old in sorted(own, key=lambda each: each.created_at)[: len(own) - MAX_GRANTS + 1]:
                await self._end(old.id)
            empty = AppGrant(grant, app.id, resource, now, now, "", now + REFRESH_SECONDS, "", 0.0, "", 0.0)
            tokens = await self._renewed(empty, app)
        self._note(app.id, "consent")
        return tokens

    async def rotated(self, token: str) -> Tokens:
        """New tokens for a refresh token, which is used up.  :raises Forbidden: it is not good."""
        async with self._change:
            held = await self._refreshable(token)
            grant = self._grants[held.grant] if held is not None else None
            app = self.app(grant.app) if grant is not None else None
            if grant is None or app is None:
                raise Forbidden("This refresh token is not good any more.")
            return await self._renewed(grant, app)

    async def refreshable(self, token: str) -> Held | None:
        """What a refresh token is good for.  One that was used up ends its consent."""
        async with self._change:
            return await self._refreshable(token)

    def bearer(self, token: str, resource: str) -> Held | None:
        """Who sends this access token, when it is good here and now."""
        found = _read(token, "a")
        grant = self._grants.get(found.grant) if found is not None else None
        if found is None or grant is None or grant.resource != resource:
            return None
        now = self._now()
        for digest, until in (
            (grant.access_hash, grant.access_until),
            (grant.before_hash, grant.before_until),
        ):
            if hmac.compare_digest(digest, found.digest) and now < until:
                if now - grant.last_used > _SEEN:
                    self._grants[grant.id] = replace(grant, last_used=now)
                    self._later(partial(self._store.touch_grants, [(grant.id, now)]))
                return _held(grant, until)
        return None

    def stands(self, grant: GrantId) -> bool:
        """Has this consent not ended?"""
        return grant in self._grants

    async def revoke(self, token: str, app: AppId) -> None:
        """The app gives a token back: with it goes the consent.  Any other token changes nothing."""
        for kind in ("a", "r"):
            found = _read(token, kind)
            grant = self._grants.get(found.grant) if found is not None else None
            if found is None or grant is None or grant.app != app:
                continue
            if found.digest in (grant.access_hash, grant.before_hash, grant.refresh_hash):
                await self.withdraw(grant.id, "revoked by the app")

    async def withdraw(self, grant: GrantId, why: str) -> None:
        """End a consent; a repeat says nothing."""
        async with self._change:
            row = self._grants.get(grant)
            if row is None:
                return
            await self._end(grant)
        self._note(row.app, why)

    # --- the rest ---

    async def _refreshable(self, token: str) -> Held | None:
        found = _read(token, "r")
        grant = self._grants.get(found.grant) if found is not None else None
        if found is None or grant is None:
            return None
        if not hmac.compare_digest(grant.refresh_hash, found.digest):
            await self._end(grant.id)
            self._note(grant.app, "a used refresh token came again: consent ended")
            return None
        return _held(grant, grant.refresh_until) if self._now() < grant.refresh_until else None

    async def _renewed(self, grant: AppGrant, app: App) -> Tokens:
        now = self._now()
        access, refresh = (f"chp_{kind}_{grant.id}_{secrets.token_urlsafe(32)}" for kind in ("a", "r"))
        row = replace(
            grant,
            last_used=now,
            refresh_hash=_digest(refresh),
            refresh_until=now + REFRESH_SECONDS,
            access_hash=_digest(access),
            access_until=now + ACCESS_SECONDS,
            before_hash=grant.access_hash,
            before_until=grant.access_until,
        )
        stored = self._row(app, now)
        with storing(Executed.NO):
            await self._store.save_grant(row, stored)
        self._grants[grant.id], self._apps[app.id] = row, stored
        return Tokens(grant.id, access, refresh, ACCESS_SECONDS)

    def _row(self, app: App, now: float) -> StoredApp:
        before = self._apps.get(app.id)
        made = before.created_at if before is not None else now
        return StoredApp(app.id, app.name, json.dumps(app.redirects), made, now)

    async def _tidy(self, now: float) -> None:
        for grant in [each for each in self._grants.values() if each.refresh_until <= now]:
            await self._end(grant.id)

    async def _end(self, grant: GrantId) -> None:
        self._grants.pop(grant, None)  # refused from now on, whatever the registry says
        with storing(Executed.NO):
            await self._store.delete_grant(grant)

    async def _forget(self, app: AppId) -> None:
        self._apps.pop(app, None)
        for grant in [each.id for each in self._grants.values() if each.app == app]:
            self._grants.pop(grant)
        with storing(Executed.NO):
            await self._store.delete_app(app)

    def _note(self, app: AppId, outcome: str) -> None:
        self._audit.note(who=principal(app), what="app", target=app[:200], outcome=outcome)


def principal(app: AppId) -> str:
    """Whose conversations an app's are: its own, the same after another consent."""
    return "app:" + hashlib.sha256(app.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _held(grant: AppGrant, until: float) -> Held:
    return Held(grant.id, grant.app, principal(grant.app), grant.resource, until)


def _read(token: str, kind: str) -> _Token | None:
    parts = token.split("_", 3)
    if len(token) > 200 or len(parts) != 4 or parts[:2] != ["chp", kind]:
        return None
    return _Token(GrantId(parts[2]), _digest(token))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
