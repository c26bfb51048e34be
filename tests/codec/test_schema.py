from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from chappie_bridge.codec.schema import explain, flat_schema


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")


class Place(Camel):
    """Where."""

    session_id: str = Field(description="A session.")
    paths: list[str] = Field(min_length=1)


class Hop(Camel):
    place: Place


class Tool(Camel):
    """What the model is for: not part of the parameters."""

    title: str = Field(title="Shown Title", max_length=40)
    session_id: str | None = Field(None, description="Which session.", max_length=256)
    limit: int = Field(20, ge=1, le=200)
    order: Literal["up", "down"] | None = None
    source: Place | None = Field(None, description="From where.")
    hops: list[Hop] | None = None
    calls: list[dict[str, JsonValue]] = Field(default_factory=list)
    anything: Any = None
    mixed: int | list[str] | None = None

    @field_validator("title")
    @classmethod
    def _no_spaces(cls, title: str) -> str:
        if " " in title:
            raise ValueError("must not hold spaces")
        return title


PLACE = {
    "type": "object",
    "properties": {
        "sessionId": {"type": "string", "description": "A session."},
        "paths": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    },
    "required": ["sessionId", "paths"],
    "additionalProperties": False,
}


def test_the_schema_is_flat_and_keeps_what_a_model_reads() -> None:
    schema = flat_schema(Tool)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema == {
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 40},
            "sessionId": {"type": "string", "description": "Which session.", "maxLength": 256},
            "limit": {"type": "integer", "default": 20, "minimum": 1, "maximum": 200},
            "order": {"type": "string", "enum": ["up", "down"]},
            "source": {**PLACE, "description": "From where."},
            "hops": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"place": {**PLACE, "description": "Where."}},
                    "required": ["place"],
                    "additionalProperties": False,
                },
            },
            "calls": {"type": "array", "items": {"type": "object", "additionalProperties": True}},
            "anything": {},
            "mixed": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]},
        },
        "required": ["title"],
        "additionalProperties": False,
    }


class Nothing(BaseModel):
    pass


def test_a_model_without_fields_is_an_empty_object() -> None:
    assert flat_schema(Nothing) == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }


class Tree(BaseModel):
    below: "list[Tree]"


def test_a_model_that_refers_to_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="Tree refers to itself"):
        flat_schema(Tree)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "`title` is missing."),
        ({"title": "t", "sesionId": "x"}, "Unknown argument `sesionId`; did you mean `sessionId`?"),
        ({"title": "t", "session_id": "x"}, "Unknown argument `session_id`; did you mean `sessionId`?"),
        (
            {"title": "t", "source": {"sessionId": "x", "paths": ["a"], "path": "b"}},
            "Unknown argument `source.path`; did you mean `paths`?",
        ),
        (
            {"title": "t", "source": {"sessionId": "x", "paths": ["a"], "zzz": "b"}},
            "Unknown argument `source.zzz`; known here: `sessionId`, `paths`.",
        ),
        (
            {"title": "t", "hops": [{"place": {"sessionId": "x", "paths": []}}]},
            "`hops[0].place.paths`: list should have at least 1 item after validation, not 0.",
        ),
        ({"title": "t", "hops": [{"place": 5}]}, "`hops[0].place` should be an object."),
        ({"title": "t", "hops": 5}, "`hops` should be an array."),
        ({"title": "t", "limit": 500}, "`limit` should be less than or equal to 200."),
        ({"title": "t", "order": "sideways"}, "`order` should be 'up' or 'down'."),
        ({"title": "a secret"}, "`title`: must not hold spaces."),
        ({"title": "t", "mixed": {}}, "`mixed` should be a valid integer. `mixed` should be an array."),
    ],
)
def test_a_fault_is_one_sentence_that_names_the_argument(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Tool.model_validate(arguments)
    assert explain(caught.value, Tool) == says


def test_the_value_that_was_sent_is_never_said() -> None:
    with pytest.raises(ValidationError) as caught:
        Tool.model_validate(
            {
                "title": ["hunter2"],
                "limit": "hunter2",
                "order": "hunter2",
                "calls": "hunter2",
                "mixed": "hunter2",
            }
        )
    assert "hunter2" not in explain(caught.value, Tool)


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]


class Pet(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


def test_a_wrong_tag_names_the_right_ones_and_not_what_was_sent() -> None:
    with pytest.raises(ValidationError) as caught:
        Pet.model_validate({"pet": {"kind": "hunter2"}})
    assert explain(caught.value, Pet) == "`pet` must have 'kind' one of 'cat', 'dog'."
    with pytest.raises(ValidationError) as caught:
        Pet.model_validate({"pet": {"kind": "cat", "lives": "x"}})
    assert explain(caught.value, Pet).startswith("`pet.lives` should be a valid integer")


def test_many_faults_are_counted_and_names_made_safe() -> None:
    with pytest.raises(ValidationError) as caught:
        Tool.model_validate({"title": "t"} | {f"\x1b{index}{'x' * 900}": 1 for index in range(20)})
    said = explain(caught.value, Tool)
    assert said.endswith("And 12 more.")
    assert "\x1b" not in said
    assert len(said) < 4_000


@pytest.mark.parametrize("name", ["sessionId", "limit"])
def test_null_is_taken_although_the_schema_does_not_offer_it(name: str) -> None:
    if name == "sessionId":
        assert Tool.model_validate({"title": "t", "sessionId": None}).session_id is None
    else:
        with pytest.raises(ValidationError):
            Tool.model_validate({"title": "t", "limit": None})
