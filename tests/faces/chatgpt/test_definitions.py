"""What a client is shown before it calls anything."""

import json
import re

import pytest

from chappie_bridge.codec.tokens import estimate
from chappie_bridge.faces.chatgpt.server import INSTRUCTIONS
from chappie_bridge.faces.chatgpt.tools import TOOLS

# SPEC §1: read-only, destructive, idempotent, open world.
HINTS = {
    "sessions": (True, False, True, False),
    "init": (False, False, True, False),
    "tools": (True, False, True, False),
    "call": (False, True, False, True),
    "chat": (False, False, False, False),
    "transfer": (False, True, False, True),
    "history": (True, False, True, False),
    "ask": (False, False, False, False),
    "ask_assert": (False, False, True, False),
    "answer": (False, False, False, False),
}
DEFINITIONS = {name: tool.definition() for name, tool in TOOLS.items()}
NAMES = sorted(DEFINITIONS)


def test_the_tools_and_their_parameters_only_ever_grow() -> None:
    """B21: ChatGPT keeps the list that it saw when the app was added."""
    known = {
        "sessions": {"sessionId", "agent", "device", "directory", "name", "online", "limit", "after"},
        "init": {"sessionId", "directory", "agent", "create"},
        "tools": {"names", "sessionId"},
        "call": {"calls", "base64", "operation", "wait", "cancel", "key", "sessionId"},
        "transfer": {"paths", "files", "from", "to", "overwrite", "wait", "sessionId"},
        "ask": {"header", "question", "context", "options", "allowMultiple", "sessionId"},
        "ask_assert": {"questionId"},
        "answer": {"questionId", "loaded", "answer", "revision"},
        "chat": {"text", "replyTo", "final", "wait", "sessionId"},
        "history": {
            *("limit", "before", "after", "wait", "observer", "entry", "offset", "find", "query", "sessionId")
        },
    }
    assert set(known) <= set(DEFINITIONS)
    for name, parameters in known.items():
        assert parameters <= set(DEFINITIONS[name]["inputSchema"]["properties"])


@pytest.mark.parametrize("name", NAMES)
def test_every_tool_has_a_title_a_use_and_four_true_hints(name: str) -> None:
    """B22: a host that misses one of them shows no tool at all."""
    given = DEFINITIONS[name]
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", name)
    assert given["title"]
    assert "Use this" in str(given["description"]) or "Call this" in str(given["description"])
    hints = given["annotations"]
    assert isinstance(hints, dict)
    shown = tuple(
        hints[key] for key in ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
    )
    assert shown == HINTS[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_flat_and_closed(name: str) -> None:
    schema = DEFINITIONS[name]["inputSchema"]
    assert isinstance(schema, dict)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert not {"anyOf", "oneOf", "allOf", "$defs", "if"} & set(schema)
    text = json.dumps(schema)
    assert "$ref" not in text
    assert '"null"' not in text
    assert ("outputSchema" in DEFINITIONS[name]) == (name in ("ask", "ask_assert", "answer"))


def test_the_definitions_stay_small() -> None:
    sizes = {
        name: max(estimate(json.dumps(each)), len(json.dumps(each)) // 3)
        for name, each in DEFINITIONS.items()
    }
    assert max(sizes.values()) < 5_000
    assert sum(sizes.values()) < 16_000


def test_the_first_512_characters_of_the_instructions_stand_alone() -> None:
    first = INSTRUCTIONS.split("\n\n", 1)[0]
    assert len(first) <= 512
    for word in (
        "agents",
        "`init` first",
        "`sessionId`",
        "`history`",
        "globalAgents.path",
        "session, device",
    ):
        assert word in first
    assert "agent's own files" in first


def test_the_instructions_are_short_and_name_no_tool_that_is_not_there() -> None:
    assert estimate(INSTRUCTIONS) < 700
    named = set(re.findall(r"`([a-z_]+)`", INSTRUCTIONS))
    parameters = {key for each in DEFINITIONS.values() for key in each["inputSchema"]["properties"]}
    fields = {"running", "asking", "needs", "executed", "yes", "unknown", "status", "trimmed", "more"}
    assert named <= set(DEFINITIONS) | parameters | fields
