"""Bytes of offered files and native images, as MCP resources: read from their device when asked for."""

import mimetypes

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError

from chappie_bridge.faces.chatgpt.exchange import Exchange
from chappie_bridge.wire.errors import BridgeError, Forbidden, Overloaded, TooLarge
from chappie_bridge.wire.ports import Switchboard
from chappie_bridge.wire.reference import TEMPLATE, parse
from chappie_bridge.wire.requests import FetchBytes
from chappie_bridge.wire.values import Caller

RESOURCE_MAX = 24 * 1024 * 1024
"""Bytes of one resource."""

READERS = 2
"""Reads at the same time; each holds its resource in memory, and once more as Base64."""

PART = 512 * 1024 // 3 * 3
"""Bytes asked for at once: whole Base64 groups, so that the parts join as text."""

NOT_FOUND = -32002

TEMPLATES = types.ListResourceTemplatesResult(
    resource_templates=[
        types.ResourceTemplate(
            name="session-file",
            title="File of a session",
            uri_template=TEMPLATE,
            description="A file or image of an agent session, as a result of `transfer` or `call` names it.",
        )
    ]
)


class Resources:
    """`resources/read` for one face."""

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard
        self._readers = anyio.CapacityLimiter(READERS)

    async def read(self, uri: str, exchange: Exchange) -> types.ReadResourceResult:
        """:raises MCPError: what went wrong, in the protocol's way."""
        try:
            blob = await self._whole(uri, exchange)
        except BridgeError as error:
            failure = error.failure()
            unknown = failure.code in ("path_missing", "unknown_session", "bad_arguments")
            data = failure.model_dump(mode="json", exclude_none=True, exclude={"message"})
            code = NOT_FOUND if unknown else types.INTERNAL_ERROR
            raise MCPError(code, failure.message, {**data, "uri": uri[:200]}) from None
        name = uri.partition("?")[0]
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return types.ReadResourceResult(
            contents=[types.BlobResourceContents(uri=uri, mime_type=kind, blob=blob)]
        )

    async def _whole(self, uri: str, exchange: Exchange) -> str:
        """Base64.  :raises BridgeError:"""
        reference = parse(uri)
        parts: list[str] = []
        with anyio.move_on_after(exchange.left(50)):
            async with self._readers:
                offset, size = 0, 1
                while offset < size:
                    request = FetchBytes(
                        caller=Caller(principal=exchange.principal, source="none"),
                        session=reference.session,
                        source=reference.source,
                        offset=offset,
                        length=PART,
                        capability=reference.capability,
                    )
                    part = await self._switchboard.fetch(request)
                    if exchange.withdrawn():
                        raise Forbidden("The consent of this app ended while the request was under way.")
                    size = part.size
                    if size > RESOURCE_MAX:
                        raise TooLarge(f"It has {size} bytes; at most {RESOURCE_MAX} can be read at once.")
                    parts.append(part.data)
                    got = len(part.data) * 3 // 4 - part.data[-2:].count("=")
                    if got == 0 and offset < size:
                        raise Overloaded("The device sent nothing.")
                    offset += got
                return "".join(parts)
        raise Overloaded("The bytes did not come in time; read it again.")
