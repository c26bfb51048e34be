"""Who is logged in: cookies, by their hashes, in memory.  A restart of the bridge ends all of them."""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

IDLE = 12 * 3600.0
"""Seconds without a page that a person opened or an action; then the login ends."""

MAX_LOGINS = 32
"""At once; one more ends the one that was used longest ago."""


@dataclass(slots=True)
class Login:
    """One browser.  `token` goes into its forms and is checked when they come back."""

    token: str = field(repr=False)
    used: float


class Logins:
    """`clock` gives seconds that only grow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logins: OrderedDict[bytes, Login] = OrderedDict()

    def open(self) -> str:
        """A new login's cookie: 256 random bits."""
        cookie = secrets.token_urlsafe(32)
        self._logins[_digest(cookie)] = Login(secrets.token_urlsafe(32), self._clock())
        while len(self._logins) > MAX_LOGINS:
            self._logins.popitem(last=False)
        return cookie

    def find(self, cookie: str, *, renew: bool) -> Login | None:
        """The login of `cookie`, if it has not ended.  `renew`: a person did something."""
        digest = _digest(cookie)
        login = self._logins.get(digest)
        if login is None:
            return None
        if self._clock() - login.used > IDLE:
            del self._logins[digest]
            return None
        if renew:
            login.used = self._clock()
            self._logins.move_to_end(digest)
        return login

    def close(self, cookie: str) -> None:
        self._logins.pop(_digest(cookie), None)


def _digest(cookie: str) -> bytes:
    """Looking a digest up tells nothing about the cookie by its time."""
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).digest()
