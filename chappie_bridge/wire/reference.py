"""The address of bytes that stay where they are: `chappie://session/<id>/<kind>/<id>/<name>`.  Pure."""

from typing import Literal, NamedTuple, cast
from urllib.parse import parse_qs, quote, unquote, urlsplit

from .errors import BadArguments
from .ids import MAX_ID, SessionId

SCHEME = "chappie://"

TEMPLATE = "chappie://session/{sessionId}/{kind}/{id}/{name}{?chatId}"
"""RFC 6570."""

MAX_ADDRESS = 4096
"""Characters of an address."""


class Reference(NamedTuple):
    """`file` with a random id, or `image` with its SHA-256.  Its name is for people."""

    session: SessionId
    kind: Literal["file", "image"]
    id: str
    name: str
    capability: str | None = None

    @property
    def source(self) -> str:
        """What the agent calls it."""
        return f"{self.kind}:{self.id}"

    def __str__(self) -> str:
        parts = (quote(part, safe="") for part in (self.session, self.kind, self.id, self.name or "file"))
        query = f"?chatId={quote(self.capability, safe='')}" if self.capability else ""
        return f"{SCHEME}session/{'/'.join(parts)}{query}"


def parse(address: str) -> Reference:
    """:raises BadArguments: it is none of ours."""
    fault = BadArguments("This is not an address of the form " + TEMPLATE + ".")
    if not address.startswith(SCHEME) or len(address) > MAX_ADDRESS:
        raise fault
    try:
        found = urlsplit(address)
        session, kind, identifier, name = (
            unquote(part, errors="strict") for part in found.path[1:].split("/")
        )
        capability = parse_qs(found.query, strict_parsing=bool(found.query)).get("chatId", [None])[0]
    except ValueError:
        raise fault from None
    well = found.netloc == "session" and kind in ("file", "image") and all((session, identifier, name))
    if not well or found.fragment or len(session) > MAX_ID or len(identifier) > MAX_ID:
        raise fault
    return Reference(SessionId(session), cast("Literal['file', 'image']", kind), identifier, name, capability)
