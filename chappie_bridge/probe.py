"""Asks the bridge over its own front door, as an MCP client would.  Standard library only."""

import http.client
import itertools
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

_NAME = "chappie-bridge self-check"
_VERSION = "2026-07-28"
_LIMIT = 16 * 1024 * 1024
"""Bytes of an answer that are read."""


class ProbeError(Exception):
    """The front door did not answer as it should; the text says what it did instead."""


class Probe:
    """`headers` carry the credential.  Each request is a connection of its own, at most
    `timeout` seconds long; blocks."""

    def __init__(self, url: str, headers: Mapping[str, str], *, timeout: float = 10) -> None:
        self._url = urlsplit(url)
        self._headers = dict(headers)
        self._timeout = timeout
        self._numbers = itertools.count(1)

    def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The `result` of a JSON-RPC request.  :raises ProbeError: no answer, or another one."""
        status, body = self._post(method, params)
        try:
            answer = json.loads(body)
        except ValueError:
            raise ProbeError(f"{method}: HTTP {status}, {body[:200]!r}") from None
        if not isinstance(answer, dict) or not isinstance(answer.get("result"), dict):
            raise ProbeError(f"{method}: HTTP {status}, {json.dumps(answer, ensure_ascii=False)[:500]}")
        result: dict[str, Any] = answer["result"]
        return result

    def tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The head (first block) of a tool's result.  :raises ProbeError: also when the tool failed."""
        result = self.request("tools/call", {"name": name, "arguments": arguments})
        try:
            head = json.loads(result["content"][0]["text"])
        except (KeyError, IndexError, TypeError, ValueError):
            raise ProbeError(f"{name}: a result without a head: {str(result)[:500]}") from None
        if not isinstance(head, dict) or "error" in head:
            raise ProbeError(f"{name}: {json.dumps(head, ensure_ascii=False)[:500]}")
        return head

    def _post(self, method: str, params: Mapping[str, Any]) -> tuple[int, bytes]:
        meta = {
            "io.modelcontextprotocol/protocolVersion": _VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": _NAME, "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        message = {
            "jsonrpc": "2.0",
            "id": next(self._numbers),
            "method": method,
            "params": {**params, "_meta": meta},
        }
        headers = {
            **self._headers,
            "User-Agent": _NAME,
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": _VERSION,
            "Mcp-Method": method,
            **({"Mcp-Name": params["name"]} if "name" in params else {}),
        }
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._url.hostname or "", self._url.port, timeout=self._timeout)
        try:
            connection.request("POST", self._url.path or "/", json.dumps(message).encode(), headers)
            response = connection.getresponse()
            return response.status, response.read(_LIMIT)
        except (OSError, http.client.HTTPException) as error:
            raise ProbeError(f"{self._url.geturl()}: {error or type(error).__name__}") from None
        finally:
            connection.close()


def check(probe: Probe, session: str | None) -> None:
    """One `init` and one `call` of a tool that changes nothing, named to `session` and to no conversation,
    so that no binding is made; without a session, the list of tools.

    :raises ProbeError: the first thing that went wrong."""
    if session is None:
        if not probe.request("tools/list", {}).get("tools"):
            raise ProbeError("tools/list: no tools")
        return
    opened = probe.tool("init", {"sessionId": session})
    if opened.get("initialization", {}).get("sessionId") != session:
        raise ProbeError(f"init: answered for another session: {opened}")
    ran = probe.tool("call", {"sessionId": session, "calls": [{"name": "ls", "arguments": {"path": "."}}]})
    if ran.get("status") != "done":
        raise ProbeError(f"call: {ran}")
