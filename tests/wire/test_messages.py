"""The union, its table and its published schema are one thing."""

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

import chappie_bridge.wire
from chappie_bridge.wire import blocks, errors, link, messages, requests, schema, values
from chappie_bridge.wire.messages import Message, Request
from chappie_bridge.wire.table import MESSAGES


def concrete(model: type[Message]) -> list[type[Message]]:
    found = [model] if "type" in model.model_fields else []
    return found + [one for child in model.__subclasses__() for one in concrete(child)]


def test_union_and_table_have_the_same_members() -> None:
    ours = [model for model in concrete(Message) if model.__module__.startswith("chappie_bridge.wire.")]
    assert {row.model for row in MESSAGES.values()} == set(ours)
    assert len(ours) == len(MESSAGES)


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_row_says_what_is_true(kind: str) -> None:
    row = MESSAGES[kind]
    assert row.model.model_fields["type"].default == kind
    assert row.since >= 1
    if row.order is not None:
        assert row.order in row.model.model_fields
    if row.reply is not None and row.model not in (
        messages.RunBatch,
        messages.PostChat,
    ):  # matched by operation
        assert issubclass(row.model, Request)
        assert issubclass(MESSAGES[row.reply].model, Request)
    if row.sender == "caller" and row.reply is not None:
        assert MESSAGES[row.reply].sender in ("reply", "both")


def test_the_published_schema_is_the_schema_of_the_code() -> None:
    published = Path(chappie_bridge.wire.__path__[0]) / "schema.json"
    assert published.read_text(encoding="utf-8") == schema.render()
    names = set(json.loads(schema.render())["$defs"])
    assert {row.model.__name__ for row in MESSAGES.values()} <= names


def all_models() -> list[type[BaseModel]]:
    return [
        value
        for module in (blocks, errors, link, messages, requests, values)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__
    ]


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.__name__)
def test_every_value_is_frozen_and_ignores_what_it_does_not_know(model: type[BaseModel]) -> None:
    assert model.model_config["frozen"] is True
    assert model.model_config["extra"] == "ignore"


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.__name__)
def test_what_is_left_out_when_empty_can_be_left_out(model: type[BaseModel]) -> None:
    """`encode` leaves nulls out, so a field that may be null must have null as its default."""
    for name, field in model.model_fields.items():
        if type(None) in getattr(field.annotation, "__args__", ()):
            assert not field.is_required(), name
