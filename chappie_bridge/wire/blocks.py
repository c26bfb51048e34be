"""Content of results, inputs and transcript entries: text, images, links, and what was spilled."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

SPILL_ABOVE = 64 * 1024
"""Bytes of one block (UTF-8 text, decoded image) above which the agent keeps it and sends a `Spill`."""

SPILL_PART = 32 * 1024
"""Bytes of text kept at each end of a spilled block, cut between characters."""


def _stop_at_first_fault(part: Any) -> None:
    """A sequence is given up at its first bad item: to list the faults of a megabyte of them takes seconds.
    Models inside did the same for themselves."""
    if isinstance(part, list):
        for each in part:
            _stop_at_first_fault(each)
    elif isinstance(part, dict) and part.get("type") != "model":
        if part.get("type") == "tuple":
            part["fail_fast"] = True
        for each in part.values():
            _stop_at_first_fault(each)


class Value(BaseModel):
    """An immutable value of the wire.  Unknown keys are ignored, so versions can mix."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_at_first_fault(schema.get("schema"))
        return schema


class Text(Value):
    type: Literal["text"] = "text"
    text: str


class Image(Value):
    """`data` is standard Base64 of the exact bytes."""

    type: Literal["image"] = "image"
    data: str
    mime_type: str


class ResourceLink(Value):
    """A reference to bytes that stay where they are.  `size` in bytes; `sha256` in hex."""

    type: Literal["resource_link"] = "resource_link"
    uri: str
    name: str
    mime_type: str | None = None
    size: int | None = None
    sha256: str | None = None
    description: str | None = None


class Spill(Value):
    """A block too long for a message: its ends are here, all of it stays on the device.

    `head` and `tail` are text (empty for an image), `size` counts the whole block in bytes, `path` is
    the file on the device that holds exactly these bytes for 24 h.  `lossy` says that the text shown is
    a reading of bytes that were not valid text; the file holds the bytes.
    """

    type: Literal["spill"] = "spill"
    of: Literal["text", "image"]
    head: str = ""
    tail: str = ""
    size: int
    sha256: str
    path: str
    mime_type: str | None = None
    lossy: bool = False


Block = Annotated[Text | Image | ResourceLink | Spill, Field(discriminator="type")]
Content = tuple[Block, ...]
