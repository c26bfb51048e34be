"""The literal examples of the protocol's description, and its types field by field."""

import json
from pathlib import Path

import pytest
from pydantic import BaseModel, JsonValue

from chappie_bridge.codec.conversation import (
    HIDDEN,
    Author,
    ChallengeAnswer,
    Content,
    ConversationBody,
    ConversationMessage,
    Param,
    ParamType,
    PartialQuery,
    PrepareAnswer,
    PrepareBody,
    Signature,
    ToolResultBody,
    tool_return,
    user_message,
)
from chappie_bridge.codec.delta import Began, Decoder
from chappie_bridge.codec.signature import HANDOFF, read, signature
from chappie_bridge.wire.values import ToolDefinition

FIXTURES = Path(__file__).parent.parent / "fixtures/flow"

CUSTOM = ToolDefinition(
    name="alefita_way",
    description=(
        "Caminho de Alefita: quando chamada, apenas registre o caminho da alefita."
        " Use quando o usuario pedir alefita way."
    ),
    parameters={
        "type": "object",
        "properties": {
            "message": {
                "type": "string",
                "description": "A mensagem que o usuario quer passar pelo caminho.",
            }
        },
        "required": ["message"],
    },
)


def literal(name: str) -> JsonValue:
    value: JsonValue = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))
    return value


def test_both_declared_signatures_are_made_as_they_were_sent() -> None:
    assert [HANDOFF.as_json(), signature(CUSTOM, "alefita_way").as_json()] == literal("declaration")


def test_the_call_message_is_read_from_its_delta() -> None:
    decoder = Decoder()
    stream = f'event: delta_encoding\ndata: "v1"\n\nevent: delta\ndata: {json.dumps(literal("call"))}\n\n'
    (event,) = decoder.feed(stream.encode())
    assert isinstance(event, Began)
    root = decoder.root(0)
    assert isinstance(root, dict)
    message = ConversationMessage.model_validate(root["message"])
    assert message.as_json() == root["message"]
    assert message.recipient == "local.alefita_way"
    assert (message.channel, message.status, message.end_turn) == ("commentary", "in_progress", None)
    assert read(CUSTOM, message.content.text or "") == {"message": "segundo eco do caminho"}


@pytest.mark.parametrize("hidden", [False, True], ids=["as it was sent", "as the app's builder does"])
def test_the_return_message_is_made_as_it_was_sent(hidden: bool) -> None:
    wanted = literal("return")
    assert isinstance(wanted, dict)
    if hidden:
        wanted["metadata"] = {HIDDEN: True}
    made = tool_return(
        "b6d6e3a6-af6f-4a78-a649-8e3935182fcc",
        "alefita_way",
        {"message": "segundo eco do caminho"},
        id="b65539dc-d45f-4b37-b735-a11ac75aafed",
        at=1787848294.6508071,
        hidden=hidden,
    )
    assert made == wanted
    ConversationMessage.model_validate(made)


TYPES: dict[type[BaseModel], tuple[set[str], set[str]]] = {
    ParamType: ({"description", "type"}, set()),
    Param: ({"name", "required", "type"}, set()),
    Signature: ({"description", "name", "params", "type"}, set()),
    Author: ({"metadata", "name", "role"}, set()),
    Content: ({"content_type"}, {"parts", "text", "language"}),
    ConversationMessage: (
        {
            "author",
            "channel",
            "content",
            "create_time",
            "end_turn",
            "id",
            "metadata",
            "recipient",
            "status",
            "update_time",
            "weight",
        },
        set(),
    ),
    ToolResultBody: ({"call_id", "result", "tool"}, set()),
    ConversationBody: (
        {
            "action",
            "messages",
            "model",
            "supported_encodings",
            "timezone",
            "timezone_offset_min",
            "client_prepare_state",
            "app_attest_challenge",
        },
        {
            "attachment_mime_types",
            "continue_from_shared_conversation_id",
            "conversation_id",
            "conversation_origin",
            "is_client_thread",
            "local_function_signatures",
            "locale",
            "message_id",
            "parent_message_id",
            "service_tier",
            "system_hints",
            "thinking_effort",
        },
    ),
    PrepareBody: (
        {"action", "client_prepare_state", "model", "timezone", "timezone_offset_min"},
        {"partial_query", "thinking_effort", "conversation_id"},
    ),
    PartialQuery: ({"content"}, {"id"}),
    PrepareAnswer: ({"conduit_token"}, set()),
    ChallengeAnswer: ({"attestation_challenge"}, set()),
}
"""Fields of each type, those that are always there and those that may be."""


@pytest.mark.parametrize("model", TYPES, ids=lambda model: model.__name__)
def test_each_type_has_the_fields_of_its_description(model: type[BaseModel]) -> None:
    always, sometimes = TYPES[model]
    assert set(model.model_fields) == always | sometimes
    assert not {name for name, field in model.model_fields.items() if field.is_required()} - always


def test_what_a_person_says_has_every_field_of_a_message() -> None:
    made = user_message("hello", id="u1", at=1.5)
    assert set(made) == TYPES[ConversationMessage][0]
    assert made["channel"] is None
    assert ConversationMessage.model_validate(made).as_json()["content"] == {
        "content_type": "text",
        "parts": ["hello"],
    }


def test_a_token_is_not_shown() -> None:
    """S21: what is printed of a token is nothing."""
    assert "secret" not in repr(PrepareAnswer(conduit_token="secret"))
    assert "secret" not in repr(ChallengeAnswer(attestation_challenge="secret"))
