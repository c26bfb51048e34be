"""What the owner sets of the local function flow.  Names no host: where it goes is the owner's to say."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def _endpoint(text: str) -> str:
    if not text:
        return ""
    parts = urlsplit(text)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("an http(s) URL without query or fragment")
    if parts.username or parts.password:
        raise ValueError("an URL without a user; secrets belong into `headers_file` or `headers_command`")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise ValueError("https, unless it is on this machine")
    return text.rstrip("/")


def _path(text: str) -> str:
    if text and not re.fullmatch(r"/[^\s?#]*", text):
        raise ValueError("a path that begins with /")
    return text


Path = Annotated[str, AfterValidator(_path)]


class Model(BaseModel):
    """What a name of the interface is in a request.  `effort` empty: it is left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1)
    effort: str = ""


class FlowSettings(BaseModel):
    """`[flow]` of the configuration.  Paths follow `endpoint`; times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: Annotated[str, AfterValidator(_endpoint)] = ""
    conversation: Path = "/f/conversation"
    prepare: Path = "/f/conversation/prepare"
    challenge: Path = ""
    read: Path = ""
    headers_file: str = ""
    headers_command: tuple[str, ...] = ()
    answer_file: str = ""
    answer_command: tuple[str, ...] = ()
    conduit_header: str = ""
    hidden: bool = True
    timezone: str = ""
    idle: float = Field(default=120, gt=0)
    model: str = "Medium"
    models: dict[str, Model] = Field(
        default={
            "Instant": Model(model="gpt-5-5-instant"),
            "Medium": Model(model="gpt-5-5-thinking", effort="standard"),
            "High": Model(model="gpt-5-5-thinking", effort="extended"),
        },
        min_length=1,
    )
