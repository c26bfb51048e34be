"""Who may come in: Host, Origin, credential.  Pure: decides on headers alone."""

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.errors import BridgeError, Forbidden

LOOPBACK = ("127.0.0.1", "localhost", "::1")

_SHOWN = 100
_AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([0-9a-z._-]{1,253}?))\.?(?::([0-9]{1,5}))?")


class Credential(NamedTuple):
    """Whoever sends `secret` is `principal`."""

    principal: str
    secret: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer of the gate's own: HTTP status, the error, further headers."""

    status: int
    error: BridgeError
    headers: tuple[tuple[bytes, bytes], ...] = field(default=())


class Admission:
    """Loopback names and the host of `public_url` are always allowed, on any port.  An entry of
    `allowed_hosts` is a name (any port) or `name:port`; one of `allowed_origins` is `scheme://name`
    (any port) or with a port.  No `credentials`: everybody is `owner` (`auth = "none"`)."""

    def __init__(
        self,
        credentials: Sequence[Credential],
        *,
        public_url: str = "",
        allowed_hosts: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
        how_to_find: str = "",
    ) -> None:
        """:raises ValueError: an entry cannot be read."""
        public = (urlsplit(public_url).hostname or "",) if public_url else ()
        self._hosts = {(name, None) for name in (*LOOPBACK, *public)} | {
            _entry(each, each) for each in allowed_hosts
        }
        self._origins = {_origin_entry(each) for each in allowed_origins}
        self._credentials = tuple((each.principal, each.secret.encode()) for each in credentials)
        self._how_to_find = how_to_find
        self._base = public_base(public_url)
        self._public = bool(public_url)
        if any(not secret for _, secret in self._credentials):
            raise ValueError("a credential is empty")

    def place(self, headers: Mapping[str, str]) -> Refusal | None:
        """Was the request meant for us, and does its page, if a browser sent it, belong to us?"""
        host = headers.get("host", "")
        if not self._knows(_authority(host)):
            return Refusal(
                421,
                Forbidden(
                    f"The host {_quoted(host)} is not served here.",
                    hint="The owner adds it to `allowed_hosts`, or sets `public_url`.",
                ),
            )
        origin = headers.get("origin")
        if origin is None:
            return None
        scheme, _, rest = origin.lower().partition("://")
        page = _authority(rest)
        known = scheme in ("http", "https") and self._knows(page)
        if known or (page and {(scheme, *page), (scheme, page[0], None)} & self._origins):
            return None
        return Refusal(
            403,
            Forbidden(
                f"Pages of the origin {_quoted(origin)} may not use this server.",
                hint="The owner adds it to `allowed_origins`.",
            ),
        )

    def principal(self, headers: Mapping[str, str]) -> str | Refusal:
        """Whose credential the request carries."""
        if not self._credentials:
            return "owner"
        given = headers.get("x-chappie-key")
        if given is None:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            given = token.strip() if scheme.lower() == "bearer" else None
        if given is None:
            return self._unauthorized("The request carries no credential.", "")
        found: str | None = None
        sent = given.encode("utf-8", "surrogateescape")
        for principal, secret in self._credentials:  # all of them: the time tells nothing
            if hmac.compare_digest(sent, secret):
                found = principal
        return found or self._unauthorized("The credential is not valid here.", ', error="invalid_token"')

    def base(self, headers: Mapping[str, str]) -> str:
        """Our own address, without `/mcp`, for who sent these headers: `public_url`, or else the loopback
        name that was asked.  Empty where neither can name us to an OAuth client."""
        if self._public:
            return self._base
        host = headers.get("host", "").lower()
        found = _authority(host)
        return f"http://{host}" if found is not None and found[0] in LOOPBACK else ""

    def _knows(self, authority: tuple[str, int | None] | None) -> bool:
        return authority is not None and (authority in self._hosts or (authority[0], None) in self._hosts)

    def _unauthorized(self, what: str, challenge: str) -> Refusal:
        error = Forbidden(
            f"{what} Send the install secret in the header `Authorization: Bearer SECRET` or"
            " `X-Chappie-Key: SECRET`.",
            hint=self._how_to_find or None,
        )
        value = f'Bearer realm="chappie-bridge"{challenge}'.encode()
        return Refusal(401, error, ((b"www-authenticate", value),))


def public_base(public_url: str) -> str:
    """`public_url` as an issuer: without `/mcp`; empty when it is neither https nor of this machine."""
    base = public_url.rstrip("/").removesuffix("/mcp").rstrip("/")
    parts = urlsplit(base)
    return base if parts.scheme == "https" or parts.hostname in LOOPBACK else ""


def _authority(text: str) -> tuple[str, int | None] | None:
    found = _AUTHORITY.fullmatch(text.lower())
    if found is None:
        return None
    return found[1] or found[2], int(found[3]) if found[3] else None


def _entry(text: str, whole: str) -> tuple[str, int | None]:
    found = _authority(text.removesuffix(":*"))
    if found is None:
        raise ValueError(f"{whole!r} is not a name or name:port")
    return found


def _origin_entry(text: str) -> tuple[str, str, int | None]:
    scheme, mark, rest = text.lower().rstrip("/").partition("://")
    if not mark:
        raise ValueError(f"{text!r} is not scheme://name")
    return (scheme, *_entry(rest, text))


def _quoted(text: str) -> str:
    return f"`{display(text, _SHOWN)}`" if text else "(none)"
