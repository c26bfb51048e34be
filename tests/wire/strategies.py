"""Any message of the union, generated from the models themselves."""

from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue

from chappie_bridge.wire.messages import Message
from chappie_bridge.wire.table import MESSAGES

words = st.text(st.characters(codec="utf-8"), max_size=8)
"""Any text that has a UTF-8 form: the codecs let no lone surrogate through."""

whole = st.integers(min_value=0, max_value=30)
"""Fits every bound that a number of the union has."""

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


@cache
def messages(kind: str) -> st.SearchStrategy[Message]:
    return models(MESSAGES[kind].model)


@cache
def models(model: type[BaseModel]) -> st.SearchStrategy[Any]:
    fields = {}
    for name, field in model.model_fields.items():
        values = of(field.annotation)
        if any(hasattr(limit, "gt") or (hasattr(limit, "ge") and limit.ge == 1) for limit in field.metadata):
            values = values.filter(lambda number: number != 0)
        if any(getattr(limit, "min_length", 0) for limit in field.metadata):
            values = values.filter(bool)
        fields[name] = values
    return st.fixed_dictionaries(fields).map(lambda values: model(**values))


def of(kind: Any) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is JsonValue:
        return json_values
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of([of(one) for one in arguments])
    if origin is Annotated:
        return of(arguments[0])
    if origin is tuple:
        return st.lists(of(arguments[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(words, of(arguments[1]), max_size=2)
    if hasattr(kind, "__supertype__"):
        return of(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return models(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return st.sampled_from(kind)
    return {
        str: words,
        bool: st.booleans(),
        int: whole,
        float: whole.map(float),
        NoneType: st.none(),
    }[kind]
