"""The other side of the local function flow, as its description says and no more: refuses what is called
wrong there, answers with scripted messages as deltas in pieces of any size."""

import json
import math
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import anyio
import h11
from anyio.abc import ByteStream, SocketAttribute
from pydantic import ValidationError

from chappie_bridge.codec.conversation import HIDDEN, ConversationBody, PrepareBody, Signature
from chappie_bridge.codec.signature import HANDOFF
from tests.peer.deltas import Encoder

Json = dict[str, Any]

AUTHORIZATION = "Bearer of the test"
CONDUIT = "x-conduit"
FINISHED = "finished_successfully"
EFFORTS = ("standard", "extended")
TIME = 1_787_848_267.5

MESSAGE_FIELDS = {"author", "channel", "content", "create_time", "end_turn", "id", "metadata"} | {
    "recipient",
    "status",
    "update_time",
    "weight",
}


class Wrong(Exception):
    """The request is not as the description says."""


@dataclass(frozen=True)
class Say:
    """A message of the assistant.  `end`: it ends the turn."""

    text: str
    channel: str | None = "final"
    end: bool | None = True
    recipient: str = "all"
    role: str = "assistant"
    status: str = FINISHED


@dataclass(frozen=True)
class Call:
    """A message to `local.<tool>`, as it was captured: `in_progress` unless said otherwise."""

    tool: str
    arguments: Any
    status: str = "in_progress"
    recipient: str | None = None


@dataclass(frozen=True)
class Raw:
    """Bytes as they are."""

    data: bytes


@dataclass(frozen=True)
class Cut:
    """The connection ends here; of what was before, `less` bytes are missing."""

    less: int = 0


Script = Sequence[Say | Call | Raw | Cut]
Answer = Callable[[Json], Script]


@dataclass
class Flow:
    """`script`: what the model does at each accepted request, in order; functions are given the message."""

    script: list[Script | Answer]
    seed: int = 0
    readable: bool = True
    echoes: bool = True
    requests: list[tuple[str, Json]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    results: list[Json] = field(default_factory=list)
    """The `result` of each return."""

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.conversation = str(uuid.UUID(int=self.random.getrandbits(128)))
        self.messages: dict[str, Json] = {}
        self.parents: dict[str, str | None] = {}
        self.current: str | None = None
        self.pending: dict[str, str] = {}
        self.challenges: set[str] = set()
        self.conduit: str | None = None
        self.stored: list[Script] = []

    # --- the contract ---

    def challenge(self) -> Json:
        name = f"challenge-{self.random.getrandbits(64):x}"
        self.challenges.add(name)
        return {"attestation_challenge": name}

    def prepare(self, body: Json) -> Json:
        _only(body, PrepareBody)
        _that(body.get("client_prepare_state") == "sent", "client_prepare_state of a prepare is sent")
        self._about(body)
        if "partial_query" in body:
            content = body["partial_query"]["content"]
            _that(
                content["content_type"] == "text" and len(content["parts"]) == 1, "partial_query is one text"
            )
        self.conduit = f"conduit-{self.random.getrandbits(64):x}"
        return {"conduit_token": self.conduit}

    def converse(self, body: Json, headers: Mapping[str, str]) -> Script:
        _only(body, ConversationBody)
        self._about(body)
        answer = body.get("app_attest_challenge")
        _that(answer in self.challenges, "app_attest_challenge is unknown or was used")
        self.challenges.discard(str(answer))
        conduit, self.conduit = self.conduit, None
        wanted = "failure" if conduit is None else "success"
        _that(body.get("client_prepare_state") == wanted, f"client_prepare_state must be {wanted}")
        _that(headers.get(CONDUIT) == conduit, "the conduit token is not the prepared one")
        _that(body.get("supported_encodings") == ["v1"], "supported_encodings must be ['v1']")
        self._signatures(body.get("local_function_signatures"))
        messages = body.get("messages")
        _that(isinstance(messages, list) and len(messages) == 1, "messages holds one message")
        message: Json = messages[0]
        self._message(message)
        parent = body.get("parent_message_id")
        if message["author"]["role"] == "tool":
            self._return(message, parent)
        else:
            self._user(message, parent, body)
        self._store(message, parent)
        step = self.script.pop(0)
        return step(message) if callable(step) else step

    def _about(self, body: Json) -> None:
        _that(body.get("action") == "next", "action must be next")
        _that(isinstance(body.get("model"), str) and body["model"] != "", "model is required")
        _that(
            "thinking_effort" not in body or body["thinking_effort"] in EFFORTS, "thinking_effort is unknown"
        )
        _that("/" in str(body.get("timezone", "")) or body.get("timezone") == "UTC", "timezone is required")
        _that(type(body.get("timezone_offset_min")) is int, "timezone_offset_min is required")
        known = None if self.current is None else self.conversation
        _that(body.get("conversation_id", None) == known, "conversation_id is not this conversation's")

    def _signatures(self, given: Any) -> None:
        _that(isinstance(given, list) and len(given) > 0, "local_function_signatures is required")
        _that(given[0] == HANDOFF.as_json(), "handoff is declared first, as the app does")
        for each in given:
            _only(each, Signature)
            _that(each["type"] == "kwargs", "only kwargs is known")
            _that(all(param["type"]["type"] == "string" for param in each["params"]), "parameters are string")
            _that(
                all(set(param) == {"name", "required", "type"} for param in each["params"]),
                "parameter fields",
            )
        names = [each["name"] for each in given]
        _that(len(set(names)) == len(names), "a name is declared twice")
        self.declared = names

    def _message(self, message: Json) -> None:
        _that(set(message) == MESSAGE_FIELDS, f"fields of a message: {sorted(set(message) ^ MESSAGE_FIELDS)}")
        _that(set(message["author"]) == {"metadata", "name", "role"}, "fields of author")
        _that(str(uuid.UUID(message["id"])) == message["id"], "id must be a UUID")
        _that(message["id"] not in self.messages, "id was used before")
        _that(message["recipient"] == "all", "recipient must be all")
        _that(message["end_turn"] is None, "end_turn must be null")
        _that(message["status"] == FINISHED, "status must be finished_successfully")
        _that(message["weight"] == 1, "weight must be 1")
        _that(message["update_time"] is None, "update_time must be null")
        _that(type(message["create_time"]) is float and math.isfinite(message["create_time"]), "create_time")

    def _user(self, message: Json, parent: Any, body: Json) -> None:
        _that(message["author"]["role"] == "user", "role must be user or tool")
        _that(message["channel"] is None, "channel of a user's message is null")
        _that(set(message["content"]) == {"content_type", "parts"}, "content of a user's message is text")
        if self.current is None:
            _that("parent_message_id" not in body, "there is no parent on the first turn")
        else:
            _that(parent == self.last_assistant(), "parent_message_id must be the last assistant message")

    def _return(self, message: Json, parent: Any) -> None:
        _that(parent in self.pending, "parent_message_id must be the calling message")
        content = message["content"]
        _that("language" not in content, "a return has no language")
        _that(
            set(content) == {"content_type", "text"} and content["content_type"] == "code", "content is code"
        )
        body = json.loads(content["text"])
        _that(set(body) == {"call_id", "result", "tool"}, "the text has call_id, result and tool")
        _that(body["call_id"] == parent, "call_id must be the calling message's id")
        tool = self.pending[str(parent)]
        _that(body["tool"] == tool, "tool must be the called one")
        _that(message["author"]["name"] == tool, "author.name must be the tool")
        _that(message["channel"] == "commentary", "channel must be commentary")
        _that(message["metadata"] in ({}, {HIDDEN: True}), "metadata is empty or hides the message")
        result = body["result"]
        _that(
            isinstance(result, dict) and isinstance(result.get("message"), str), "result.message is missing"
        )
        if tool == "handoff":
            _that(isinstance(result.get("accepted"), bool), "handoff says whether it was accepted")
            _that(
                not result["accepted"] or isinstance(result.get("thread_id"), str), "handoff has a thread_id"
            )
        del self.pending[str(parent)]
        self.results.append(result)

    # --- the model ---

    def last_assistant(self) -> str | None:
        at = self.current
        while at is not None and self.messages[at]["author"]["role"] != "assistant":
            at = self.parents[at]
        return at

    def _store(self, message: Json, parent: str | None) -> None:
        self.messages[message["id"]] = message
        self.parents[message["id"]] = parent if parent is not None else self.current
        self.current = message["id"]

    def stream(self, script: Script) -> tuple[bytes, bool]:
        """The bytes, and whether the answer ends properly."""
        encoder = Encoder(self.random, self.random.choice(("\n", "\r\n")))
        sent = self.messages[self.current or ""]
        text = encoder.begin()
        channel = 0
        for message in [*self._earlier(), sent] if self.echoes else []:
            text += encoder.root(channel, self._root(message))
            channel += 1
        text += encoder.control("resume_conversation_token", token="never to be shown")
        whole = b""
        for item in script:
            if isinstance(item, Cut):
                data = whole + text.encode()
                return data[: len(data) - item.less], False
            if isinstance(item, Raw):
                whole, text = whole + text.encode() + item.data, ""
                continue
            before, after = self._made(item)
            text += encoder.root(channel, self._root(before))
            text += encoder.control("message_marker", conversation_id=self.conversation, marker="cot_token")
            text += encoder.grow(channel, self._root(before), self._root(after))
            self._store(after, self.current)
            channel += 1
        text += encoder.control("message_stream_complete", conversation_id=self.conversation)
        return whole + (text + encoder.done()).encode(), True

    def _earlier(self) -> list[Json]:
        """The last two before, as they are repeated: whole."""
        others = [each for name, each in self.messages.items() if name != self.current]
        return [{**each, "status": FINISHED} for each in others[-2:]]

    def _root(self, message: Json) -> Json:
        return {"message": message, "conversation_id": self.conversation, "error": None}

    def _made(self, item: Say | Call) -> tuple[Json, Json]:
        """A message as it begins and as it ends."""
        name = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        message: Json = {
            "id": name,
            "author": {"role": "assistant", "name": None, "metadata": {}},
            "create_time": TIME,
            "update_time": None,
            "status": "in_progress",
            "end_turn": None,
            "weight": 1,
            "metadata": {"resolved_model_slug": "m"},
        }
        if isinstance(item, Call):
            text = item.arguments if isinstance(item.arguments, str) else json.dumps(item.arguments)
            self.pending[name] = item.tool
            message |= {"recipient": item.recipient or f"local.{item.tool}", "channel": "commentary"}
            message["content"] = {"content_type": "code", "language": "json", "text": ""}
            after = {**message, "status": item.status, "content": {**message["content"], "text": text}}
            return message, after
        message |= {"recipient": item.recipient, "channel": item.channel}
        message["author"] = {**message["author"], "role": item.role}
        message["content"] = {"content_type": "text", "parts": [""]}
        content = {"content_type": "text", "parts": [item.text]}
        return message, {**message, "status": item.status, "end_turn": item.end, "content": content}

    def conversation_as_stored(self) -> Json:
        for script in self.stored[:1]:
            for item in script:
                if isinstance(item, Say | Call):
                    self._store(self._made(item)[1], self.current)
        del self.stored[:1]
        mapping = {
            name: {"id": name, "message": message, "parent": self.parents[name]}
            for name, message in self.messages.items()
        }
        return {"conversation_id": self.conversation, "mapping": mapping, "current_node": self.current}

    # --- HTTP ---

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        """A status, and a document or a stream with whether it ends properly."""
        try:
            _that(headers.get("authorization") == AUTHORIZATION, "not authorized")
            _that("x-codex-turn-state" not in headers, "x-codex-turn-state has no place here")
            if method == "GET" and path == "/api/challenge":
                return 200, self.challenge()
            if method == "GET" and path == f"/api/conversation/{self.conversation}" and self.readable:
                return 200, self.conversation_as_stored()
            given: Json = json.loads(body or b"null")
            if method == "POST" and path == "/api/f/conversation/prepare":
                answer = self.prepare(given)
                self.requests.append(("prepare", given))
                return 200, answer
            if method == "POST" and path == "/api/f/conversation":
                script = self.converse(given, headers)
                self.requests.append(("conversation", given))
                return 200, self.stream(script)
        except (Wrong, ValueError, KeyError, TypeError) as wrong:
            self.refused.append(str(wrong))
            return 400, {"detail": str(wrong)}
        return 404, {"detail": "there is nothing here"}


@asynccontextmanager
async def serving(flow: Flow) -> AsyncGenerator[str]:
    """The endpoint's URL."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)

    async def connection(stream: ByteStream) -> None:
        async with stream:
            try:
                await _one(flow, stream)
            except (OSError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError):
                return  # whoever asked has left

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, connection)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/api"  # noqa: S610
        tasks.cancel_scope.cancel()


async def _one(flow: Flow, stream: ByteStream) -> None:
    wire = h11.Connection(h11.SERVER)
    start: h11.Request | None = None
    body = b""
    while not isinstance(event := wire.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            wire.receive_data(await stream.receive())
        elif isinstance(event, h11.Request):
            start = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
    assert start is not None
    headers = {name.decode(): value.decode("latin-1") for name, value in start.headers}
    status, answer = flow.answer(start.method.decode(), start.target.decode(), headers, body)
    data, proper = answer if isinstance(answer, tuple) else (json.dumps(answer).encode(), True)
    fields = [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")]
    await stream.send(wire.send(h11.Response(status_code=status, headers=fields)) or b"")
    at = 0
    while at < len(data):
        size = flow.random.choice((1, 7, 100, 5_000, 60_000))
        await stream.send(wire.send(h11.Data(data=data[at : at + size])) or b"")
        at += size
    if proper:
        await stream.send(wire.send(h11.EndOfMessage()) or b"")


def _only(body: Any, model: Any) -> None:
    """The fields are known ones, and of their types."""
    _that(isinstance(body, dict), "a body is an object")
    unknown = set(body) - set(model.model_fields)
    _that(not unknown, f"unknown fields: {sorted(unknown)}")
    try:
        model.model_validate(body)
    except ValidationError as error:
        raise Wrong(str(error.errors(include_url=False)[0])) from None


def _that(holds: bool, rule: str) -> None:
    if not holds:
        raise Wrong(rule)
