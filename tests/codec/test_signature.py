"""Signatures of string parameters: the seed's own, any tool's, and calls read back."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from chappie_bridge.codec.signature import (
    HANDOFF,
    MAX_DECLARED,
    MAX_DESCRIPTION,
    MAX_HINT,
    MAX_NAME,
    MAX_PARAMS,
    MAX_SIGNATURES,
    WHOLE,
    declare,
    read,
    signature,
)
from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.values import ToolDefinition


def tool(
    properties: dict[str, JsonValue], *required: str, name: str = "t", **more: JsonValue
) -> ToolDefinition:
    parameters: dict[str, JsonValue] = {"type": "object", "properties": properties, "required": [*required]}
    return ToolDefinition(name=name, description="Does it.", parameters={**parameters, **more})


EDIT = tool(
    {
        "path": {"type": "string", "description": "Where."},
        "edits": {"type": "array", "items": {"type": "object"}, "description": "What."},
        "limit": {"type": "integer", "minimum": 1},
        "force": {"type": "boolean"},
        "command": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "mode": {"enum": ["a", "b"]},
        "any": {},
        "maybe": {"type": ["string", "null"]},
        "far": {"$ref": "#/$defs/Far"},
    },
    "path",
    **{"$defs": {"Far": {"type": "object"}}},
)


def test_every_parameter_is_text_and_says_how_it_is_written() -> None:
    made = signature(EDIT, "edit")
    assert {param.type.type for param in made.params} == {"string"}
    assert {param.name for param in made.params if param.required} == {"path"}
    hints = {param.name: param.type.description for param in made.params}
    assert hints["path"] == "Where."
    assert hints["edits"].startswith("What. Write a JSON array as text. Schema: {")
    assert hints["limit"] == 'Write a whole number as text. Schema: {"minimum":1}'
    assert hints["force"] == "Write true or false as text."
    assert hints["command"].startswith("Plain text, or a JSON array as text.")
    assert hints["mode"] == 'Schema: {"enum":["a","b"]}'
    assert hints["maybe"] == "Text."
    assert hints["far"].startswith("Write a JSON object as text.")


@pytest.mark.parametrize(
    ("given_text", "wanted"),
    [
        ({"path": "x"}, {"path": "x"}),
        ({"path": "[1]"}, {"path": "[1]"}),
        ({"path": "x", "edits": '[{"a": 1}]'}, {"path": "x", "edits": [{"a": 1}]}),
        ({"path": "x", "edits": [{"a": 1}]}, {"path": "x", "edits": [{"a": 1}]}),
        ({"path": "x", "limit": "5"}, {"path": "x", "limit": 5}),
        ({"path": "x", "limit": 5}, {"path": "x", "limit": 5}),
        ({"path": "x", "limit": ""}, {"path": "x"}),
        ({"path": "x", "force": "true"}, {"path": "x", "force": True}),
        ({"path": "x", "command": "ls [a]"}, {"path": "x", "command": "ls [a]"}),
        ({"path": "x", "command": '["ls"]'}, {"path": "x", "command": ["ls"]}),
        ({"path": "x", "command": "5"}, {"path": "x", "command": "5"}),
        ({"path": "x", "mode": "a"}, {"path": "x", "mode": "a"}),
        ({"path": "x", "maybe": "null"}, {"path": "x", "maybe": "null"}),
        ({"path": "", "maybe": ""}, {"path": "", "maybe": ""}),
        ({"path": "x", "any": '{"b": 1}'}, {"path": "x", "any": {"b": 1}}),
        ({"path": "x", "any": "words"}, {"path": "x", "any": "words"}),
        ({"path": "x", "far": "{}"}, {"path": "x", "far": {}}),
        ({"path": "\ud83d"}, {"path": "\ufffd"}),
    ],
    ids=str,
)
def test_a_call_is_read_back(given_text: JsonValue, wanted: JsonValue) -> None:
    assert read(EDIT, json.dumps(given_text)) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be JSON"),
        ("[]", "a JSON object"),
        ('{"path": "x"', "at character"),
        ('{"path": NaN}', "must be JSON"),
        ("[" * 100_000, "nested"),
        ('{"path": "x", "edits": ' + "[" * 101 + "]" * 101 + "}", "nested more than"),
        ("{}", "`path` is missing"),
        ('{"path": "x", "pth": 1}', "Unknown argument `pth`; known here: `path`"),
        ('{"path": "x", "edits": "none"}', "`edits` must be JSON"),
        ('{"path": "x", "limit": "five"}', "`limit` must be JSON"),
        ('{"path": "' + "x" * (5 * 1024 * 1024) + '"}', "longer than"),
    ],
    ids=lambda text: text[:30],
)
def test_what_is_no_call_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(BadArguments, match=said):
        read(EDIT, text)


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object"},
        {"type": "object", "properties": {f"p{n}": {} for n in range(MAX_PARAMS + 1)}},
        {"type": "object", "properties": {"a b": {}}},
        {"type": "object", "properties": {"x" * (MAX_NAME + 1): {}}},
    ],
    ids=["free", "too many", "a name that is none", "a long name"],
)
def test_what_cannot_be_declared_one_by_one_is_one_object(parameters: dict[str, JsonValue]) -> None:
    whole = ToolDefinition(name="w", description="", parameters=parameters)
    (param,) = signature(whole, "w").params
    assert (param.name, param.required) == (WHOLE, False)
    assert read(whole, '{"arguments": "{\\"a b\\": 1}"}') == {"a b": 1}
    assert read(whole, '{"arguments": {"a b": 1}}') == {"a b": 1}
    assert read(whole, "{}") == {}
    for wrong in ('{"a b": 1}', '{"arguments": "[1]"}', '{"arguments": "x"}'):
        with pytest.raises(BadArguments):
            read(whole, wrong)


def test_a_tool_without_parameters_takes_none() -> None:
    none = tool({}, additionalProperties=False)
    assert signature(none, "t").params == ()
    assert read(none, "{}") == {}


def test_further_arguments_pass_where_the_tool_takes_them() -> None:
    assert read(tool({"a": {"type": "string"}}, additionalProperties=True), '{"b": "[1]"}') == {"b": [1]}


def test_names_that_cannot_be_declared_or_are_taken_become_others() -> None:
    tools = [tool({}, name=name) for name in ("a.b", "a_b", "handoff", "", "x" * 80, "x" * 90)]
    found = declare(tools, taken={"handoff"})
    assert list(found.tools) == ["a_b", "a_b_2", "handoff_2", "tool", "x" * 64, "x" * 62 + "_2"]
    assert [found.tools[each.name].name for each in found.signatures] == [each.name for each in tools]


def test_what_is_declared_has_bounds() -> None:
    """S22: names, descriptions, numbers and the whole."""
    long = ToolDefinition(
        name="n" * 500,
        description="d" * 9_000,
        parameters=tool({"p": {"description": "x" * 9_000}}).parameters,
    )
    made = declare([long]).signatures[0]
    assert len(made.name) == MAX_NAME
    assert len(made.description) == MAX_DESCRIPTION
    assert len(made.params[0].type.description) == MAX_HINT
    many = declare([tool({}, name=f"t{n}") for n in range(MAX_SIGNATURES + 2)])
    assert len(many.signatures) == MAX_SIGNATURES
    assert many.left_out == (f"t{MAX_SIGNATURES}", f"t{MAX_SIGNATURES + 1}")
    large = declare([long.model_copy(update={"name": f"t{n}"}) for n in range(60)])
    assert large.left_out
    size = sum(len(json.dumps(each.as_json())) for each in large.signatures)
    assert size <= MAX_DECLARED * 1.1


def test_handoff_is_declared_as_the_app_does() -> None:
    assert [param.name for param in HANDOFF.params] == ["prompt", "reason"]
    assert HANDOFF.description.startswith("Redirect the user's request from ChatGPT to Work mode")


values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text("abc_-", min_size=1, max_size=5), values, max_size=5))
def test_any_arguments_come_back_through_text(arguments: dict[str, JsonValue]) -> None:
    kinds = {
        str: "string",
        bool: "boolean",
        int: "integer",
        list: "array",
        dict: "object",
        type(None): "null",
    }
    made = tool({name: {"type": kinds[type(value)]} for name, value in arguments.items()}, *arguments)
    sent = {name: value if isinstance(value, str) else json.dumps(value) for name, value in arguments.items()}
    assert read(made, json.dumps(sent)) == arguments


@given(st.text(max_size=40) | st.builds(json.dumps, values))
def test_no_text_raises_anything_else(text: str) -> None:
    with suppress(BadArguments):
        read(EDIT, text)
