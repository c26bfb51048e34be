"""A pydantic model as a flat JSON Schema for tool parameters, and its complaints as sentences.  Pure.

Hosts drop or misread what they do not expect: a root `anyOf`, `null` among types, `$ref`, empty schemas.
"""

import difflib
from typing import cast

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from chappie_bridge.codec.unicode import display

Schema = dict[str, JsonValue]

MAX_FAULTS = 8
"""Sentences of one explanation; the rest is counted."""

MAX_KNOWN = 20
"""Names listed when an unknown one resembles none of them."""

_NAME = 64
_SHAPES = {"model_type": "object", "dict_type": "object", "list_type": "array", "tuple_type": "array"}
_NAMED_SCHEMAS = ("properties", "patternProperties")
_LISTED_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE_SCHEMAS = ("items", "additionalProperties", "propertyNames", "contains", "not")


def flat_schema(model: type[BaseModel]) -> Schema:
    """`model`'s input by alias: an object with `properties`, `required`, no further properties.

    Nested models are inlined, titles dropped, `X | None = None` is a plain X that is not required.
    Bounds, enums, descriptions of fields and defaults other than null stay.

    :raises ValueError: the model refers to itself, which cannot be flat.
    """
    whole: Schema = model.model_json_schema(by_alias=True, mode="validation")
    if "$ref" in whole:  # pydantic writes the root as a reference only where something below needs it
        raise ValueError(f"{model.__name__} refers to itself and cannot be a flat schema")
    definitions = cast("dict[str, Schema]", whole.get("$defs", {}))
    properties = cast("dict[str, Schema]", whole.get("properties", {}))
    return {
        "type": "object",
        "properties": {name: _flat(field, definitions, ()) for name, field in properties.items()},
        "required": whole.get("required", []),
        "additionalProperties": False,
    }


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One short sentence per fault, naming the argument by its path; never the value that was sent.

    An unknown argument is named with the known one it resembles.  At most 8 sentences.
    """
    root = flat_schema(model)
    details = error.errors(include_url=False, include_input=False)
    said = dict.fromkeys(_sentence(detail, root) for detail in details[:MAX_FAULTS])
    more = len(details) - MAX_FAULTS
    return " ".join([*said, f"And {more} more."] if more > 0 else said)


def _flat(schema: JsonValue, definitions: dict[str, Schema], within: tuple[str, ...]) -> JsonValue:
    if not isinstance(schema, dict):
        return schema
    node: Schema = {key: value for key, value in schema.items() if key not in ("title", "discriminator")}
    if reference := node.pop("$ref", None):
        name = str(reference).removeprefix("#/$defs/")
        if name in within:
            raise ValueError(f"{name} refers to itself and cannot be a flat schema")
        target = cast("Schema", _flat(definitions[name], definitions, (*within, name)))
        return {**target, **cast("Schema", _flat(node, definitions, within))}
    for key in _NAMED_SCHEMAS:
        if key in node:
            named = cast("dict[str, Schema]", node[key])
            node[key] = {name: _flat(field, definitions, within) for name, field in named.items()}
    for key in _LISTED_SCHEMAS:
        if key in node:
            node[key] = [_flat(each, definitions, within) for each in cast("list[Schema]", node[key])]
    for key in _SINGLE_SCHEMAS:
        if key in node:
            inner = _flat(node[key], definitions, within)
            node[key] = True if inner == {} else inner
    if "default" in node and node["default"] is None:
        del node["default"]
    return _without_null(node)


def _without_null(node: Schema) -> Schema:
    choices = node.get("anyOf")
    if not isinstance(choices, list):
        return node
    real: list[JsonValue] = [choice for choice in choices if choice != {"type": "null"}]
    if len(real) == 1:
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return {**cast("Schema", real[0]), **rest}
    return {**node, "anyOf": real}


def _sentence(detail: ErrorDetails, root: Schema) -> str:
    kind, steps = detail["type"], detail["loc"]
    if kind == "extra_forbidden":
        path, parent = _walk(steps[:-1], root)
        return _unknown(str(steps[-1]), path, cast("Schema", parent.get("properties", {})))
    path, _ = _walk(steps, root)
    subject = f"`{path}`" if path else "The request"
    if kind == "missing":
        return f"{subject} is missing."
    context = detail.get("ctx", {})
    if kind == "value_error":
        return _end(f"{subject}: {context['error']}")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tags = context.get("expected_tags")
        return f"{subject} must have {context['discriminator']}" + (f" one of {tags}." if tags else ".")
    if shape := _SHAPES.get(kind):
        return f"{subject} should be an {shape}."
    what = detail["msg"]
    if what.startswith("Input should"):
        return _end(subject + what.removeprefix("Input"))
    return _end(f"{subject}: {what[:1].lower()}{what[1:]}")


def _unknown(name: str, path: str, known: Schema) -> str:
    shown = display(name, _NAME)
    said = f"Unknown argument `{path}.{shown}`" if path else f"Unknown argument `{shown}`"
    plain = {_plain(each): each for each in known}
    if close := difflib.get_close_matches(_plain(shown), plain, n=1, cutoff=0.6):
        return f"{said}; did you mean `{plain[close[0]]}`?"
    listed = ", ".join(f"`{each}`" for each in list(known)[:MAX_KNOWN])
    return f"{said}; known here: {listed}." if listed else f"{said}; none is taken here."


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _walk(steps: tuple[int | str, ...], root: Schema) -> tuple[str, Schema]:
    """The path as a person writes it, and the schema at its end.  Which branch of a union was tried is
    no part of the path."""
    path, node = "", root
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
            node = _inner(node, "items")
            continue
        fields = node.get("properties")
        if isinstance(fields, dict) and step in fields:
            node = cast("Schema", fields[step])
        elif branches := node.get("anyOf") or node.get("oneOf"):
            node = _merged(cast("list[Schema]", branches))
            continue
        else:
            node = _inner(node, "additionalProperties")
        shown = display(step, _NAME)
        path += f".{shown}" if path else shown
    return path, node


def _merged(branches: list[Schema]) -> Schema:
    properties: Schema = {}
    for branch in branches:
        properties |= cast("Schema", branch.get("properties", {}))
    return {
        "properties": properties,
        "items": next((each["items"] for each in branches if "items" in each), {}),
    }


def _inner(node: Schema, key: str) -> Schema:
    inner = node.get(key)
    return inner if isinstance(inner, dict) else {}


def _end(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else sentence + "."
