"""A scripted tunnel: what a POST-only connector and its client on the user's machine do to messages.

Between an MCP client and a server on this machine.  Keeps no request header, drops replies that come too
late without a word to the server, refuses what exceeds its queue, and loses or repeats where a script says.
"""

import json
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
from anyio.abc import TaskGroup

from chappie_bridge.demo.http import HttpError, Request, Response, post, serve

ACTIVE, QUEUED = 10, 20
"""Commands handed to the server at the same time, and waiting for that; one more is refused."""

REQUEST_ID = "otunnel/requestId"
"""The key in `_meta` under which some tunnels name a command."""

PASSED = frozenset(
    {
        "content-type",
        "mcp-session-id",
        "mcp-protocol-version",
        "last-event-id",
        "access-control-expose-headers",
        "www-authenticate",
    }
)
"""Headers of a response that get through."""

INTERNAL_ERROR = -32603

Fault = Literal["pass", "lose", "redeliver", "twice"]
"""What happens to one tool call: nothing; its reply is lost; its reply is lost and it is delivered again;
it is delivered twice at the same time, and the first reply counts."""


@dataclass
class Statistics:
    """What went through so far; `most_active`: commands at the server at one moment, the highest count."""

    delivered: int = 0
    dropped: int = 0
    refused: int = 0
    most_active: int = 0


@dataclass(eq=False)
class _Command:
    """One request from the connector until its reply, or until the reply is no longer wanted."""

    body: bytes
    fault: Fault
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    settled: anyio.Event = field(default_factory=anyio.Event)
    reply: Response | None = None
    late: bool = False


class Tunnel:
    """`url` and `headers` are the server's; `response_timeout` in seconds from a command's arrival, its time
    in the queue included.  `request_ids`: the connector's `X-Request-Id` is handed on in `_meta`.  `hang_up`:
    a request whose reply is too late is closed; else its reply is read and thrown away."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        response_timeout: float = 60.0,
        request_ids: bool = True,
        hang_up: bool = False,
    ) -> None:
        self.statistics = Statistics()
        self._url = url
        self._headers = {
            **headers,
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        self._response_timeout = response_timeout
        self._request_ids = request_ids
        self._hang_up = hang_up
        self._faults: deque[Fault] = deque()
        self._slots = anyio.Semaphore(ACTIVE)
        self._active = 0
        self._commands = 0
        self._idle = anyio.Event()
        self._idle.set()

    def script(self, *faults: Fault) -> None:
        """What happens to the next tool calls, in this order; to later ones nothing."""
        self._faults.extend(faults)

    async def idle(self) -> None:
        """Until the server has answered all that was delivered to it, be the reply wanted or not."""
        await self._idle.wait()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[str]:
        """The address for the connector."""
        async with anyio.create_task_group() as tasks:

            async def answer(request: Request) -> Response:
                return await self._answer(request, tasks)

            async with serve(answer) as port:
                yield f"http://127.0.0.1:{port}/mcp"
            tasks.cancel_scope.cancel()

    async def _answer(self, request: Request, tasks: TaskGroup) -> Response:
        if request.method != "POST":
            return Response(405, {"allow": "POST"}, b"")
        try:
            message = json.loads(request.body)
        except ValueError:
            return Response(400, {}, b"")
        if not isinstance(message, dict):
            return Response(400, {}, b"")
        if self._commands >= ACTIVE + QUEUED:
            self.statistics.refused += 1
            return _failure(message, "overloaded", f"{ACTIVE} commands run and {QUEUED} wait already.")
        fault = self._faults.popleft() if self._faults and message.get("method") == "tools/call" else "pass"
        command = _Command(self._marked(message, request.headers), fault)
        if self._commands == 0:
            self._idle = anyio.Event()
        self._commands += 1
        tasks.start_soon(self._run, command)
        with anyio.move_on_after(self._response_timeout):
            await command.settled.wait()
        if command.reply is not None:
            return command.reply
        self.statistics.dropped += 1
        command.late = True
        if self._hang_up:
            command.scope.cancel()
        if command.fault == "lose":
            return _failure(message, "reply_lost", "The reply was lost on its way.")
        return _failure(message, "response_timeout", f"No reply within {self._response_timeout:g} s.")

    def _marked(self, message: dict[str, Any], headers: Mapping[str, str]) -> bytes:
        params = message.get("params", {})
        if self._request_ids and message.get("method") == "tools/call" and isinstance(params, dict):
            named = headers.get("x-request-id") or secrets.token_hex(16)
            meta = {**params.get("_meta", {}), REQUEST_ID: named}
            message = {**message, "params": {**params, "_meta": meta}}
        return json.dumps(message).encode()

    async def _run(self, command: _Command) -> None:
        """Wait for a turn, deliver as the script says, settle."""
        try:
            with command.scope:
                async with self._slots:
                    self._active += 1
                    self.statistics.most_active = max(self.statistics.most_active, self._active)
                    try:
                        if not command.late:
                            await self._play(command)
                    finally:
                        self._active -= 1
        finally:
            self._commands -= 1
            if self._commands == 0:
                self._idle.set()
            command.settled.set()

    async def _play(self, command: _Command) -> None:
        if command.fault == "twice":
            async with anyio.create_task_group() as both:
                both.start_soon(self._deliver, command)
                both.start_soon(self._deliver, command)
        elif command.fault == "lose":
            await self._forward(command.body)
        else:
            if command.fault == "redeliver":
                await self._forward(command.body)
                self.statistics.dropped += 1
            await self._deliver(command)

    async def _deliver(self, command: _Command) -> None:
        reply = await self._forward(command.body)
        if command.reply is None and not command.late:
            command.reply = reply
            command.settled.set()

    async def _forward(self, body: bytes) -> Response:
        self.statistics.delivered += 1
        try:
            response = await post(self._url, self._headers, body)
        except HttpError as error:
            return _failure(json.loads(body), "unreachable", str(error))
        passed = {name: value for name, value in response.headers.items() if name in PASSED}
        return Response(response.status, passed, response.body)


def _failure(message: Mapping[str, Any], kind: str, text: str) -> Response:
    error = {"code": INTERNAL_ERROR, "message": text, "data": {"tunnel_failure": {"kind": kind}}}
    body = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "error": error}).encode()
    return Response(200, {"content-type": "application/json"}, body)
