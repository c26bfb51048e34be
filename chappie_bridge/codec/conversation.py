"""The bodies of the local function flow: declaration, call, return, requests, answers.  Pure data."""

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Json = dict[str, JsonValue]


class Body(BaseModel):
    """What is absent is not sent (`as_json`); what the other side adds is kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def as_json(self) -> Json:
        """What was set, no more."""
        return self.model_dump(mode="json", exclude_unset=True)


# --- declaration ---


class ParamType(Body):
    description: str
    type: Literal["string"]


class Param(Body):
    name: str
    required: bool
    type: ParamType


class Signature(Body):
    description: str
    name: str
    params: tuple[Param, ...]
    type: Literal["kwargs"]


# --- messages ---


class Author(Body):
    role: Literal["user", "assistant", "tool", "system"]
    name: str | None = None
    metadata: Json = Field(default_factory=dict)


class Content(Body):
    """`text` content has `parts`; `code` has `text`, and in a call `language`.  There are others."""

    content_type: str
    parts: tuple[JsonValue, ...] | None = None
    text: str | None = None
    language: str | None = None


class ConversationMessage(Body):
    """`channel`: None or `final` is the answer, `commentary` the tool trail, `analysis` hidden."""

    id: str
    author: Author
    recipient: str = "all"
    content: Content
    channel: str | None = None
    create_time: float | None = None
    update_time: float | None = None
    status: str | None = None
    end_turn: bool | None = None
    weight: float = 1
    metadata: Json = Field(default_factory=dict)


class ToolResultBody(Body):
    """The text of a return.  `call_id` is the id of the calling message, never another."""

    call_id: str
    result: Json
    tool: str


# --- requests and their answers ---


class PartialContent(Body):
    content_type: Literal["text"]
    parts: tuple[str, ...]


class PartialQuery(Body):
    content: PartialContent
    id: str | None = None


class PrepareBody(Body):
    """`partial_query` only while typing; without it, what is opened."""

    action: Literal["next"]
    client_prepare_state: Literal["sent"]
    partial_query: PartialQuery | None = None
    model: str
    thinking_effort: str | None = None
    timezone: str
    timezone_offset_min: int
    conversation_id: str | None = None


class PrepareAnswer(Body):
    conduit_token: str = Field(repr=False)


class ChallengeAnswer(Body):
    attestation_challenge: str = Field(repr=False)


class ConversationBody(Body):
    """`conversation_id` and `parent_message_id` are left out on the first turn, `thinking_effort` where the
    model has none.  What stands after them is the app's own and not sent by us."""

    action: Literal["next"]
    local_function_signatures: tuple[Signature, ...] | None = None
    messages: tuple[ConversationMessage, ...]
    model: str
    supported_encodings: tuple[Literal["v1"], ...]
    thinking_effort: str | None = None
    timezone: str
    timezone_offset_min: int
    client_prepare_state: Literal["sent", "success", "failure"]
    app_attest_challenge: str = Field("", repr=False)
    conversation_id: str | None = None
    parent_message_id: str | None = None
    attachment_mime_types: tuple[str, ...] | None = None
    continue_from_shared_conversation_id: str | None = None
    conversation_origin: str | None = None
    locale: str | None = None
    message_id: str | None = None
    service_tier: str | None = None
    system_hints: tuple[JsonValue, ...] | None = None
    is_client_thread: bool | None = None


HIDDEN = "is_visually_hidden_from_conversation"


def tool_return(call: str, tool: str, result: Json, *, id: str, at: float, hidden: bool) -> Json:  # noqa: A002 - as in the JSON
    """The record of a call that was carried out, as a message.  `call` is the id of the calling message,
    `at` seconds since the epoch; `hidden` as the app's own builder sets it."""
    body = ToolResultBody(call_id=call, result=result, tool=tool)
    return {
        "author": {"metadata": {}, "name": tool, "role": "tool"},
        "channel": "commentary",
        "content": {"content_type": "code", "text": json.dumps(body.as_json(), ensure_ascii=False)},
        "create_time": at,
        "end_turn": None,
        "id": id,
        "metadata": {HIDDEN: True} if hidden else {},
        "recipient": "all",
        "status": "finished_successfully",
        "update_time": None,
        "weight": 1,
    }


def user_message(text: str, *, id: str, at: float) -> Json:  # noqa: A002 - as in the JSON
    """What a person says.  `at` in seconds since the epoch."""
    return {
        "author": {"metadata": {}, "name": None, "role": "user"},
        "channel": None,
        "content": {"content_type": "text", "parts": [text]},
        "create_time": at,
        "end_turn": None,
        "id": id,
        "metadata": {},
        "recipient": "all",
        "status": "finished_successfully",
        "update_time": None,
        "weight": 1,
    }
