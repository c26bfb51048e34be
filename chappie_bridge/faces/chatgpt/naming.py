"""How bytes are named to a client: the files of a transfer, and addresses with its capability.  Pure."""

import base64
import binascii
import hashlib
import mimetypes
from collections.abc import Sequence
from typing import Any

from chappie_bridge.codec.unicode import display
from chappie_bridge.faces.chatgpt.sheet import PATH, Json, Sheet, Source, failure_line
from chappie_bridge.wire.blocks import Block, Content, Image, ResourceLink, Spill
from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.reference import Reference, parse
from chappie_bridge.wire.transfer import Move
from chappie_bridge.wire.values import FileReport

MAX_NAMED = 16
"""Images named in one header."""


def file_lines(sheet: Sheet, files: Sequence[FileReport], source: Source, capability: str | None) -> None:
    """A line for each file of a transfer, and the link to what can be read now."""
    for file in files:
        header: Json = {"path": display(file.path, PATH), "status": file.status}
        if file.status is Move.DONE or file.moved:
            header["bytes"] = file.moved
        if file.size is not None and file.size != file.moved:
            header["of"] = file.size
        for name, said in (("sha256", file.sha256), ("writtenTo", file.written), ("followed", file.followed)):
            if said is not None:
                header[name] = display(said, PATH)
        if file.restarted:
            header["restarted"] = "the source changed; it began again from zero"
        if file.error is not None:
            header |= failure_line(file.error)
        sheet.line(header)
        if file.link is not None:
            sheet.content((linked(file.link, capability),), source)


def linked(block: ResourceLink, capability: str | None) -> ResourceLink:
    """The link that this client may follow."""
    try:
        address = parse(block.uri)._replace(capability=capability)
    except BadArguments:
        return block
    return block.model_copy(update={"uri": str(address)})


def image_addresses(session: SessionId, content: Content, capability: str | None) -> dict[str, Any]:
    """`{"images": […]}` of the images among native blocks, in their order, where they can be read."""
    if capability is None:
        return {}
    found = [address for block in content if (address := _address(session, block, capability)) is not None]
    return {"images": found[:MAX_NAMED]} if found else {}


def _address(session: SessionId, block: Block, capability: str) -> str | None:
    if isinstance(block, Image):
        try:
            digest = hashlib.sha256(base64.b64decode(block.data, validate=True)).hexdigest()
        except binascii.Error:
            return None
    elif isinstance(block, Spill) and block.of == "image":
        digest = block.sha256
    else:
        return None
    end = mimetypes.guess_extension(block.mime_type or "") or ".bin"
    return str(Reference(session, "image", digest, f"image{end}", capability))
