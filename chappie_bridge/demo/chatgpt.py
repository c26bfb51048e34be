"""A scripted ChatGPT: speaks MCP over HTTP as ChatGPT's client does, with chats that a script drives.

Each chat has an opaque id in `_meta`; a request may be sent again as it was; two clients may send the same
request at the same time.  No model, no account.
"""

import itertools
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import anyio

from chappie_bridge.demo.http import HttpError, Response, post

VERSIONS = ("2025-11-25", "2025-06-18")
"""Protocol versions of the two clients that ChatGPT runs side by side; the first one's answers are used."""

CONTROL_AGENT = "openai-mcp/1.0.0 (ChatGPT)"
CALL_AGENT = "openai-mcp/1.0.0"

PATIENCE = 60.0
"""Seconds after which ChatGPT gives a request up."""


class LostAnswer(Exception):
    """No answer came; what became of the request is not known here."""


class Refused(Exception):
    """The server answered with a protocol error."""


@dataclass(frozen=True)
class Request:
    """One JSON-RPC request, to be sent once or again; `identifier` is what the platform calls it."""

    identifier: str
    method: str
    message: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """The result of a tool: `blocks` as MCP content."""

    blocks: Sequence[Mapping[str, Any]]
    is_error: bool

    @property
    def texts(self) -> list[str]:
        return [block["text"] for block in self.blocks if block["type"] == "text"]

    @property
    def head(self) -> dict[str, Any]:
        """The first block."""
        return cast("dict[str, Any]", json.loads(self.texts[0]))

    @property
    def links(self) -> list[str]:
        """Addresses of the resources that the result refers to."""
        return [block["uri"] for block in self.blocks if block["type"] == "resource_link"]

    def notes(self, key: str) -> list[dict[str, Any]]:
        """The blocks that are JSON objects with this key, such as `toolCallId` or `input`."""
        found: list[dict[str, Any]] = []
        for text in self.texts[1:]:
            try:
                value = json.loads(text)
            except ValueError:
                continue
            if isinstance(value, dict) and key in value:
                found.append(value)
        return found


class ChatGPT:
    """One user's ChatGPT, connected to the server at `url`.

    `headers` carry the credential, if one is needed; `patience` in seconds; `subject` is the user, a new one
    where none is given."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        patience: float = PATIENCE,
        subject: str | None = None,
    ) -> None:
        self._url = url
        self._headers = dict(headers or {})
        self._patience = patience
        self._numbers = itertools.count()
        self._subject = subject or _opaque()

    async def connect(self) -> list[dict[str, Any]]:
        """Both clients introduce themselves at the same time; then the tools are read, once for good."""

        async def introduce(version: str) -> None:
            params = {
                "protocolVersion": version,
                "capabilities": {},
                "clientInfo": {"name": "openai-mcp", "version": "1.0.0"},
            }
            await self.send(self.request("initialize", params), version)
            await self._notify("notifications/initialized", version)

        async with anyio.create_task_group() as both:
            for version in VERSIONS:
                both.start_soon(introduce, version)
        listed = await self.send(self.request("tools/list", {}))
        return cast("list[dict[str, Any]]", listed["tools"])

    def new_chat(self) -> "Chat":
        return Chat(self)

    def request(self, method: str, params: Mapping[str, Any]) -> Request:
        # Ids repeat between conversations and clients: ChatGPT counts from 0 in each.
        message = {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": params}
        return Request(secrets.token_hex(16), method, message)

    def call(self, session: str, tool: str, arguments: Mapping[str, Any]) -> Request:
        meta = {
            "openai/session": session,
            "openai/subject": self._subject,
            "openai/locale": "en-US",
            "openai/userAgent": "ChatGPT",
        }
        return self.request("tools/call", {"name": tool, "arguments": arguments, "_meta": meta})

    async def send(self, request: Request, version: str = VERSIONS[0]) -> dict[str, Any]:
        """The `result`.  :raises LostAnswer: none came.  :raises Refused: an error came in its place."""
        response = await self._post(request.message, request.method, version, request.identifier)
        try:
            answer = json.loads(response.body)
        except ValueError:
            raise LostAnswer(f"{request.method}: HTTP {response.status}") from None
        if "result" in answer:
            return cast("dict[str, Any]", answer["result"])
        error = answer.get("error", {})
        if "tunnel_failure" in (error.get("data") or {}):
            raise LostAnswer(error["message"])
        raise Refused(f"{request.method}: HTTP {response.status}, {error.get('message', answer)}")

    async def read(self, uri: str) -> list[dict[str, Any]]:
        """The contents of a resource link.  ChatGPT names no conversation here.

        :raises LostAnswer: no answer came.  :raises Refused: there is no such resource."""
        result = await self.send(self.request("resources/read", {"uri": uri}))
        return cast("list[dict[str, Any]]", result["contents"])

    async def _notify(self, method: str, version: str) -> None:
        await self._post({"jsonrpc": "2.0", "method": method}, method, version, secrets.token_hex(16))

    async def _post(self, message: Mapping[str, Any], method: str, version: str, identifier: str) -> Response:
        headers = {
            **self._headers,
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": version,
            "User-Agent": CALL_AGENT if method == "tools/call" else CONTROL_AGENT,
            "X-Request-Id": identifier,
        }
        try:
            with anyio.fail_after(self._patience):
                return await post(self._url, headers, json.dumps(message).encode())
        except TimeoutError:
            raise LostAnswer(f"{method}: no answer within {self._patience:g} s") from None
        except HttpError as error:
            raise LostAnswer(f"{method}: {error}") from None


class Chat:
    """One conversation."""

    def __init__(self, owner: ChatGPT) -> None:
        self.session = _opaque()
        """As ChatGPT sends it: the same for all requests of this chat, and for no other."""
        self._owner = owner

    def request(self, tool: str, **arguments: Any) -> Request:
        """A tool call to be sent."""
        return self._owner.call(self.session, tool, arguments)

    async def send(self, request: Request, version: str = VERSIONS[0]) -> Answer:
        """Send it, for the first time or again.

        :raises LostAnswer: no answer came.  :raises Refused: a protocol error came."""
        result = await self._owner.send(request, version)
        return Answer(result["content"], bool(result.get("isError")))

    async def call(self, tool: str, **arguments: Any) -> Answer:
        """A new request, sent once.  Raises as `send` does."""
        return await self.send(self.request(tool, **arguments))

    async def twice(self, request: Request) -> list[Answer]:
        """Both clients send it at the same time; the answers in the order of VERSIONS."""
        answers: dict[str, Answer] = {}

        async def send(version: str) -> None:
            answers[version] = await self.send(request, version)

        async with anyio.create_task_group() as both:
            for version in VERSIONS:
                both.start_soon(send, version)
        return [answers[version] for version in VERSIONS]


def _opaque() -> str:
    return f"v1/{secrets.token_urlsafe(24)}"
