"""OUR format: what brokers and agents say to one another about the files of transfers.  Pure data.

`transfer` names one file of one transfer at both ends; every request is idempotent by it.  Bytes travel as
chunks: from a source when they are pulled, to a sink while it writes (`Flow`).
"""

from typing import Literal

from pydantic import Field

from .errors import Failure
from .ids import SessionId
from .messages import Message, Request
from .values import Origin


class OpenSource(Request):
    """Make a file ready to be pulled: one of `path` and `reference` (`file:<uuid>`, `image:<sha256>`).

    `keep`: hash it now and keep its place for 24 h, so that its bytes can be read later; `limit` in bytes,
    above which that is refused.  Without `keep` it is open until `close_source`.  `origin`: who asked for the
    transfer; brokers before it was there do not say.
    """

    type: Literal["open_source"] = "open_source"
    session: SessionId
    transfer: str
    path: str | None = None
    reference: str | None = None
    keep: bool = False
    limit: int | None = Field(default=None, ge=0)
    origin: Origin | None = None


class SourceOpened(Request):
    """`source` is what `pull` names.  `fingerprint` is another one when the file changed; `followed` is
    where a link led; `sha256` is there when the whole was hashed already."""

    type: Literal["source_opened"] = "source_opened"
    source: str
    name: str
    size: int
    mime_type: str
    fingerprint: str
    sha256: str | None = None
    followed: str | None = None


class HashSource(Request):
    """The SHA-256 of the first `length` bytes, before a sink that has them goes on."""

    type: Literal["hash_source"] = "hash_source"
    session: SessionId
    source: str
    length: int = Field(ge=0)


class SourceHashed(Request):
    type: Literal["source_hashed"] = "source_hashed"
    sha256: str


class CloseSource(Message):
    """Nobody pulls it any more."""

    type: Literal["close_source"] = "close_source"
    session: SessionId
    source: str


class OpenSink(Request):
    """Get ready to take a file.  A part of the same `transfer` and `fingerprint` is gone on with, any other
    is thrown away, and so is all of it with `restart`.  Chunks come on `stream`.  `size` None: not known.
    `origin` as in `OpenSource`."""

    type: Literal["open_sink"] = "open_sink"
    session: SessionId
    transfer: str
    stream: int
    path: str
    fingerprint: str
    size: int | None = Field(default=None, ge=0)
    overwrite: bool = False
    parents: bool = True
    restart: bool = False
    origin: Origin | None = None


class SinkOpened(Request):
    """Chunks are wanted from `offset`; `sha256` is of what is before it.  `published`: the file has its
    final name already, and that is all of it.  `discarded`: a part of another source was thrown away."""

    type: Literal["sink_opened"] = "sink_opened"
    path: str
    offset: int
    sha256: str
    published: bool = False
    discarded: bool = False


class Written(Message):
    """All before `offset` is written: the credit for more."""

    type: Literal["written"] = "written"
    session: SessionId
    stream: int
    offset: int


class SinkFailed(Message):
    """It cannot go on; the part is removed."""

    type: Literal["sink_failed"] = "sink_failed"
    session: SessionId
    stream: int
    failure: Failure


class CloseSink(Request):
    """All was sent: compare, put it on the disk, give it its name."""

    type: Literal["close_sink"] = "close_sink"
    session: SessionId
    transfer: str
    size: int
    sha256: str


class Published(Request):
    type: Literal["published"] = "published"
    path: str
    size: int
    sha256: str


class DropSink(Message):
    """It will not be finished: remove the part."""

    type: Literal["drop_sink"] = "drop_sink"
    session: SessionId
    transfer: str
