"""The device's side of pairing and of a new token: one request on the link's port.  Keeps nothing."""

import hashlib
import json
import secrets
import ssl
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import quote

import pydantic

from chappie_bridge.wire.errors import Failure, Forbidden, Lost, VersionMismatch, from_failure
from chappie_bridge.wire.pairing import CODE_SCHEME, DEVICE_NAME, NEW_TOKEN, Enrolled, Pairing

from .dial import Address, parse
from .pin import pinned, same

WITHIN = 15.0
"""Seconds for each step of the exchange."""

MAX_ANSWER = 16 * 1024


def new_token() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(32)


def pair(line: Pairing, token: str, name: str) -> Enrolled:
    """Redeem a code: the broker gets the hash of `token`, which never leaves this machine until it is used.
    Blocks.  Asked again with the same token after its answer was lost, it succeeds.

    :raises Forbidden: another certificate, or the code is not good (any more).
    :raises Lost: nobody answers.  :raises Overloaded: too many wrong codes before it."""
    return _enrol(line.url, line.pin, f"{CODE_SCHEME} {line.code}", token, {DEVICE_NAME: quote(name)})


def rotate(url: str, pin: str, old: str, new: str) -> Enrolled:
    """Replace `old` by `new`; every connection of the device is cut and comes back with the new one.  Blocks.

    :raises BridgeError: see `pair`."""
    return _enrol(url, pin, f"Bearer {old}", new, {})


def _enrol(url: str, pin: str, authority: str, token: str, more: dict[str, str]) -> Enrolled:
    digest = hashlib.sha256(token.encode()).hexdigest()
    headers = {"Authorization": authority, NEW_TOKEN: digest, "Connection": "close", **more}
    to = parse(url)
    connection = _connection(to, pin)
    try:
        connection.connect()
        if isinstance(connection.sock, ssl.SSLSocket) and not same(connection.sock, pin):
            raise Forbidden(
                "The server at this address has another certificate than the line says; nothing was sent.",
                hint="Somebody may stand between. Look at both machines, then make a new line.",
            )
        connection.request("GET", to.uri.path, headers=headers)
        return _answer(connection.getresponse())
    except (OSError, HTTPException) as error:
        raise Lost(f"No broker answers at {url}: {error}") from error
    finally:
        connection.close()


def _connection(to: Address, pin: str) -> HTTPConnection:
    host, port = to.uri.host, to.uri.port
    if to.uri.secure:
        return HTTPSConnection(host, port, timeout=WITHIN, context=pinned(pin))
    return HTTPConnection(host, port, timeout=WITHIN)


def _answer(response: HTTPResponse) -> Enrolled:
    body = response.read(MAX_ANSWER)
    try:
        if response.status == 200:
            return Enrolled.model_validate_json(body)
        raise from_failure(Failure.model_validate(json.loads(body)["error"]))
    except (ValueError, KeyError, TypeError, pydantic.ValidationError):
        raise VersionMismatch(
            f"No broker that pairs devices is at this address: it answers {response.status}."
        ) from None
