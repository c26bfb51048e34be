"""The JSON Schema of the union, for people who write another end.  `schema.json` is its output."""

import json
from functools import reduce
from operator import or_
from typing import Any

from pydantic import TypeAdapter

from .link import Hello, Welcome
from .table import MESSAGES


def render() -> str:
    """The text of schema.json.  A test holds the committed file equal to it."""
    union: Any = reduce(or_, [*(row.model for row in MESSAGES.values()), Hello, Welcome])
    schema = TypeAdapter(union).json_schema()
    return json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
