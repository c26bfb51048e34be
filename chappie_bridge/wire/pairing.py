"""The line that `pair` prints and `join` reads, and the answer of the exchange between.  Pure."""

import re
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from .errors import BadArguments
from .ids import MAX_ID, DeviceId

CODE_SCHEME = "Pairing"
"""`Authorization: Pairing <one-time code>` stands for a device that has no token yet."""

NEW_TOKEN = "Chappie-Token"  # noqa: S105 - the name of a header
"""Header of a request on the link's port that is no upgrade: the SHA-256 of the token that the device has
made, in hexadecimal.  With a code it makes a device, with a token it replaces that token."""

DEVICE_NAME = "Chappie-Device"
"""Header beside a code: what the device calls itself, percent-encoded."""

CA = "ca"
"""Instead of a fingerprint: a public authority vouches for the certificate."""

OPEN = "open"
"""Instead of a fingerprint: no TLS, so this machine only (or what forwards a port to it)."""

MAX_LINE = 1000
"""Characters."""

_PIN = re.compile(r"sha256:[0-9a-f]{64}")
_URL = re.compile(r"wss?://[!-~]{1,300}")
_CODE = re.compile(r"[0-9A-Za-z-]{8,64}")


class Pairing(NamedTuple):
    """`pin` is `sha256:` and 64 hexadecimal digits of the certificate (DER), `ca`, or `open`."""

    url: str
    code: str
    pin: str

    def __str__(self) -> str:
        return f"{self.url} {self.code} {self.pin}"

    @classmethod
    def parse(cls, line: str) -> "Pairing":
        """:raises BadArguments: it is no such line.  The text does not repeat it: it may hold a code."""
        parts = line.split() if len(line) <= MAX_LINE else []
        if len(parts) == 3:
            url, code, pin = parts
            fits = pin in (CA, OPEN) or _PIN.fullmatch(pin) is not None
            if (
                fits
                and _URL.fullmatch(url)
                and _CODE.fullmatch(code)
                and (pin == OPEN) == url.startswith("ws:")
            ):
                return cls(url, code, pin)
        raise BadArguments(
            "This is no line of `chappie-bridge pair`: an address, a code and a fingerprint.",
            hint="Copy the whole line, also where it was wrapped.",
        )


class Enrolled(BaseModel):
    """The broker's answer: as what it knows the device now."""

    model_config = ConfigDict(frozen=True)

    device: DeviceId = Field(min_length=1, max_length=MAX_ID)
    name: str = Field(default="", max_length=64)
