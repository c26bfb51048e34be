"""Apps that the owner let in, as face and broker speak of them.  Pure data; never sent over a link."""

from dataclasses import dataclass, field

from .ids import AppId, GrantId


@dataclass(frozen=True, slots=True)
class App:
    """A client program.  `name` is what it calls itself; `redirects` the exact addresses that may get an
    answer."""

    id: AppId
    name: str
    redirects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Told once; only hashes are kept.  `seconds` is how long `access` is good."""

    grant: GrantId
    access: str = field(repr=False)
    refresh: str = field(repr=False)
    seconds: int


@dataclass(frozen=True, slots=True)
class Held:
    """What a good token says: whose consent it came of, for which app and address.  `until` in seconds since
    the epoch."""

    grant: GrantId
    app: AppId
    principal: str
    resource: str
    until: float
