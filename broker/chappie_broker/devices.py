"""Which devices may link: pairs them, knows their tokens by hash, revokes them.  Opens no connection."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import anyio

from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.errors import BadArguments, Forbidden, Overloaded
from chappie_bridge.wire.ids import DeviceId, Mint
from chappie_bridge.wire.owner import DeviceView
from chappie_bridge.wire.pairing import Enrolled, Pairing

from .codes import OneTimeCodes
from .store.port import Store
from .store.rows import Device

MAX_DEVICES = 1000
"""Paired at once, revoked ones not counted."""

NAME = 64
"""Characters of a device's name."""

_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A device brings the SHA-256 of a token that it made: with a code for the first time, or with the
    token (`device`) that the new one replaces.  `by` is the address that it comes from."""

    token_hash: str
    by: str
    code: str = ""
    name: str = ""
    device: DeviceId | None = None


@dataclass(frozen=True, slots=True)
class Entrance:
    """How other machines reach the link; `pin` as in `wire.pairing`."""

    url: str
    pin: str


class Links(Protocol):
    """The connections that devices have now."""

    def drop(self, device: DeviceId) -> int:
        """Cut them, and forget their links."""
        ...

    def cut(self, device: DeviceId) -> int:
        """Cut them; whoever has the device's token may come back to its links."""
        ...

    def count(self, device: DeviceId) -> int: ...


class Devices:
    """Made by `open`.  `now` gives seconds since the epoch.

    Tokens are 256 random bits, so a plain SHA-256 of one can neither be guessed nor turned back."""

    def __init__(
        self,
        store: Store,
        codes: OneTimeCodes,
        known: tuple[Device, ...],
        *,
        local: DeviceId,
        now: Callable[[], float],
        mint: Mint,
    ) -> None:
        self._store, self._codes, self._local, self._now, self._mint = store, codes, local, now, mint
        self._known = {device.id: device for device in known}
        self._by_hash = {device.token_hash: device.id for device in known if device.revoked_at is None}
        self._change = anyio.Lock()  # a token that is just being replaced must not outlive its revocation
        self._seen: dict[DeviceId, float] = {}
        self._links: Links | None = None
        self._entrance: Entrance | None = None

    @classmethod
    async def open(
        cls,
        store: Store,
        codes: OneTimeCodes,
        *,
        local: Device,
        now: Callable[[], float],
        mint: Mint,
    ) -> "Devices":
        """`local` is this machine, whose token is the broker's own affair.  :raises StoreError:"""
        await store.save_device(local)
        return cls(store, codes, await store.devices(), local=local.id, now=now, mint=mint)

    def serves(self, links: Links, entrance: Entrance | None) -> None:
        """From now on `links` are open; None: no port listens."""
        self._links, self._entrance = links, entrance

    def authenticate(self, token: str) -> DeviceId | None:
        """The device of a token.  Looking a hash up tells nothing about the token by its time."""
        device = self._by_hash.get(token_hash(token))
        if device is not None:
            self._seen[device] = self._now()
        return device

    # -- what the owner asks -----------------------------------------------------------------------

    def invite(self, name: str, url: str) -> Pairing:
        """A line for one further device.  :raises BadArguments: no port listens."""
        if self._entrance is None:
            raise BadArguments(
                "This broker listens on no port, so no other machine can reach it.",
                hint="Start it with `chappie-bridge up` or `serve`, and `--link HOST:PORT`.",
            )
        code = self._codes.make("pair", note=display(name, NAME))
        return Pairing.parse(str(Pairing(url or self._entrance.url, code, self._entrance.pin)))

    async def views(self) -> tuple[DeviceView, ...]:
        """All of them, revoked ones too.  :raises StoreError:"""
        await self.write_down()
        known = sorted(await self._store.devices(), key=lambda device: device.created_at)
        return tuple(
            DeviceView(
                id=device.id,
                name=device.name,
                paired=device.created_at,
                last_seen=device.last_seen,
                links=0 if self._links is None else self._links.count(device.id),
                revoked=device.revoked_at,
            )
            for device in known
        )

    async def revoke(self, named: str) -> DeviceId:
        """Refuse a device from now on and cut its links, then write that down.

        :raises BadArguments: there is no such device.
        :raises StoreError: it is refused, but only as long as this broker runs: to be asked again."""
        async with self._change:
            device = self._find(named)
            if device == self._local:
                raise BadArguments("This machine itself cannot be revoked.")
            known, at = self._known[device], self._now()
            self._by_hash.pop(known.token_hash, None)
            if self._links is not None:
                self._links.drop(device)
            await self._store.revoke_device(device, at)
            self._known[device] = replace(known, token_hash="", revoked_at=known.revoked_at or at)
            return device

    async def write_down(self) -> None:
        """When devices were last seen.  :raises StoreError:"""
        seen, self._seen = self._seen, {}
        await self._store.touch_devices(list(seen.items()))

    # -- what devices ask --------------------------------------------------------------------------

    async def enrol(self, enrolment: Enrolment) -> Enrolled:
        """Asked again after its answer was lost, the same request gets the same answer.

        :raises Forbidden: the code or the token is not good for this.
        :raises BadArguments: what it brings is no hash.
        :raises Overloaded: too many devices, or too many wrong codes before it."""
        if not _HASH.fullmatch(enrolment.token_hash):
            raise BadArguments("A new token is given as its SHA-256, 64 hexadecimal digits.")
        async with self._change:
            holder = self._by_hash.get(enrolment.token_hash)
            if holder is None:
                holder = await (self._pair if enrolment.device is None else self._rotate)(enrolment)
            elif holder == self._local or enrolment.device not in (None, holder):
                raise Forbidden("That token is another device's.")
            return Enrolled(device=holder, name=self._known[holder].name)

    async def _pair(self, enrolment: Enrolment) -> DeviceId:
        if len(self._by_hash) > MAX_DEVICES:
            raise Overloaded("As many devices are paired as may be; revoke one.")
        noted = self._codes.redeem("pair", enrolment.code, by=enrolment.by)
        name = noted or display(enrolment.name, NAME) or "device"
        now = self._now()
        device = Device(DeviceId(self._mint.text("d_", 10)), name, enrolment.token_hash, now, now)
        await self._save(device)
        return device.id

    async def _rotate(self, enrolment: Enrolment) -> DeviceId:
        old = self._known.get(enrolment.device or self._local)
        if old is None or old.id == self._local or old.token_hash not in self._by_hash:
            raise Forbidden("This token is not replaced here.")
        await self._save(replace(old, token_hash=enrolment.token_hash))
        self._by_hash.pop(old.token_hash, None)
        if self._links is not None:
            self._links.cut(old.id)  # whoever has the new token comes back; a thief does not
        return old.id

    async def _save(self, device: Device) -> None:
        await self._store.save_device(device)
        self._known[device.id] = device
        self._by_hash[device.token_hash] = device.id

    def _find(self, named: str) -> DeviceId:
        if named in self._known:
            return DeviceId(named)
        found = [
            device.id for device in self._known.values() if device.name == named and device.revoked_at is None
        ]
        if len(found) == 1:
            return found[0]
        which = f"{len(found)} devices are called" if found else "No device has the id or name"
        hint = "`chappie-bridge devices` lists them" + (": name one by its id." if found else ".")
        raise BadArguments(f"{which} {display(named, NAME)!r}.", hint=hint)


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
