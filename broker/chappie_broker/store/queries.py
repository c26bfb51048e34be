"""Named SQL: reads a file of queries.  Knows no database.

A query begins with `-- name: its_name`; the comment below is its sentence; the rest is its SQL, one
statement with `:name` parameters.  See docs/adr/0003-named-sql.md.
"""

import re
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import NamedTuple


class Query(NamedTuple):
    sentence: str
    sql: str


def parse(text: str) -> Mapping[str, Query]:
    """The queries of `text` by name.

    :raises ValueError: for a name used twice, a query without a sentence or without SQL."""
    queries: dict[str, Query] = {}
    for part in re.split(r"^-- name: ", text, flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        lines = rest.strip().splitlines()
        sentence = " ".join(line[2:].strip() for line in lines if line.startswith("--"))
        sql = "\n".join(line for line in lines if not line.startswith("--")).strip().removesuffix(";")
        if name in queries or not sentence or not sql:
            raise ValueError(f"query {name!r} is there twice, or has no sentence or no SQL")
        queries[name] = Query(sentence, sql)
    return MappingProxyType(queries)


QUERIES = parse(files("chappie_broker.store").joinpath("queries.sql").read_text(encoding="utf-8"))
