"""Server-sent events, HTTP statuses and refusals: what the three protocols' renderers share.  Pure."""

import json
from collections.abc import Mapping

from pydantic import JsonValue

from chappie_bridge.wire.errors import Failure

BODY_KEEP_ALIVE = b" "
"""Keeps a request that is answered whole alive: white space before the JSON body."""

_STATUS = {"forbidden": 403, "unknown_session": 404, "too_large": 413, "internal": 500}


def encode(value: Mapping[str, JsonValue]) -> bytes:
    """JSON in ASCII: no line separator a client might split at, no lone surrogate that cannot be sent."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def event(value: Mapping[str, JsonValue], name: str | None = None) -> bytes:
    head = b"event: " + name.encode("ascii") + b"\n" if name else b""
    return head + b"data: " + encode(value) + b"\n\n"


def status(failure: Failure) -> int:
    """The HTTP status of a refusal.  Programs send a request again after 5xx: only what another try can
    mend gets one, and a fault of ours."""
    return _STATUS.get(failure.code, 503 if failure.retryable else 400)


def sentence(failure: Failure) -> str:
    return f"{failure.message} {failure.hint}" if failure.hint else failure.message
