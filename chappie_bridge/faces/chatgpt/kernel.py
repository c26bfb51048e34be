"""One JSON-RPC message in, one answer out, in both protocol eras.  Neither reads nor writes a socket.

The SDK's own request kernel (`serve_one`) does the work: every message gets a born-ready connection of its
own, so nothing has to be initialised first, nothing is shared, and equal ids in flight cannot meet.  The
SDK's HTTP and stdio entries are not used: a stateless exchange through them costs twice the time (a task
group and five memory streams a request), and their stdio never answers a line it cannot parse.
"""

import logging
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import anyio
import mcp_types as types
import pydantic_core
from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_one
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    unsupported_protocol_version_rejection,
)
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp.shared.message import MessageMetadata, ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from chappie_bridge.faces.chatgpt.exchange import Exchange

logger = logging.getLogger(__name__)

Json = dict[str, Any]

VERSION_HEADER = "mcp-protocol-version"

SECURITY_SCHEMES = "securitySchemes"
"""A tool's key of ChatGPT's own."""

WWW_AUTHENTICATE = "mcp/www_authenticate"
"""In a failed result's `_meta`: ChatGPT offers to connect anew, for tools that have security schemes."""


class Answer(NamedTuple):
    """`status` is HTTP's; `body` a line of JSON, or empty when nothing is owed (a notification)."""

    status: int
    body: bytes


class Kernel:
    """Serves single messages for `server`."""

    def __init__(self, server: Server[dict[str, Any]]) -> None:
        self._server = server

    async def answer(
        self, message: object, exchange: Exchange, *, version: str, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Answer one decoded message.  `version` is what the transport says: a handshake version, or any
        other text for the era of single requests, whose envelope is then checked (against `headers`, lower
        case, where there are any).  Raises nothing but cancellation."""
        modern = version not in HANDSHAKE_PROTOCOL_VERSIONS
        if not isinstance(message, dict):
            return _refused(None, types.INVALID_REQUEST, "Send one JSON-RPC message at a time, not a batch.")
        if "id" not in message or "method" not in message:
            return _acknowledged(message, version, modern=modern)
        try:
            request = types.JSONRPCRequest.model_validate(message, by_name=False)
        except ValidationError:
            return _refused(None, types.INVALID_REQUEST, "This is not a JSON-RPC 2.0 request.")
        if modern:
            route = classify_inbound_request(message, headers=headers)
            if isinstance(route, InboundLadderRejection):
                return _refused(request.id, route.code, route.message, route.data)
            connection = Connection.from_envelope(
                route.protocol_version, route.client_info, route.client_capabilities
            )
        else:
            connection = Connection.from_envelope(version, None, None)
        try:
            result = await serve_one(
                self._server,
                _Once(request.id, exchange),
                request.method,
                request.params,
                connection=connection,
                lifespan_state={},
            )
            if request.method == "tools/list":
                for tool in result["tools"]:  # the SDK's types know it in `_meta` only, ChatGPT wants both
                    if schemes := tool.get("_meta", {}).get(SECURITY_SCHEMES):
                        tool[SECURITY_SCHEMES] = schemes
            body = pydantic_core.to_json(
                {"jsonrpc": "2.0", "id": request.id, "result": result}, inf_nan_mode="null"
            )
        except Exception as error:
            data = handler_exception_to_error_data(error)
            if data is None:
                data = types.ErrorData(code=types.INTERNAL_ERROR, message=f"Internal error ({logged(error)})")
            status = ERROR_CODE_HTTP_STATUS.get(data.code, 200) if modern else 200
            return Answer(status, failed(request.id, data.code, data.message, data.data))
        return Answer(200, body)


def logged(error: Exception) -> str:
    """Write an unexpected error to the log; the id under which it stands there."""
    name = f"err_{secrets.token_hex(6)}"
    logger.error("%s: an unexpected error in the face", name, exc_info=error)
    return name


def failed(identifier: types.RequestId | None, code: int, text: str, data: object = None) -> bytes:
    """A JSON-RPC error as it is sent; `identifier` None when the request's own is not known."""
    error: Json = {"code": code, "message": text}
    if data is not None:
        error["data"] = data
    return pydantic_core.to_json({"jsonrpc": "2.0", "id": identifier, "error": error})


def decode(body: bytes) -> object:
    """Strict UTF-8, at most 200 levels deep.  :raises ValueError: it is not JSON."""
    return pydantic_core.from_json(body, allow_inf_nan=False)


def _refused(identifier: types.RequestId | None, code: int, text: str, data: object = None) -> Answer:
    return Answer(ERROR_CODE_HTTP_STATUS.get(code, 400), failed(identifier, code, text, data))


def _acknowledged(message: Json, version: str, *, modern: bool) -> Answer:
    """A notification, or (in the handshake era) a response: taken and dropped, there is nothing to act on."""
    shape: type[types.JSONRPCNotification | types.JSONRPCResponse | types.JSONRPCError]
    shape = types.JSONRPCNotification
    if "id" in message and not modern:
        shape = types.JSONRPCError if "error" in message else types.JSONRPCResponse
    try:
        shape.model_validate(message, by_name=False)
    except ValidationError:
        return _refused(None, types.INVALID_REQUEST, "This is not a JSON-RPC 2.0 message.")
    if "id" in message and modern:
        return _refused(None, types.INVALID_REQUEST, "A client sends requests and notifications only.")
    if modern and (unsupported := unsupported_protocol_version_rejection(version)) is not None:
        return _refused(None, unsupported.code, unsupported.message, unsupported.data)
    return Answer(202, b"")


class _Once:
    """The SDK's dispatch context for a single exchange: no way back to the client but the answer."""

    can_send_request = False
    transport = TransportContext(kind="single-exchange", can_send_request=False)

    def __init__(self, identifier: types.RequestId, exchange: Exchange) -> None:
        self.request_id: types.RequestId | None = identifier
        self.message_metadata: MessageMetadata = ServerMessageMetadata(
            request_context=exchange, can_send_request=False
        )

    @property
    def cancel_requested(self) -> anyio.Event:
        """Never set: a cancelled request is cancelled as a task."""
        return anyio.Event()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def notify(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> None:
        """Dropped: the answer is JSON and holds one message."""

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Dropped likewise."""
