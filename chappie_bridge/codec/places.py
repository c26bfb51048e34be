"""Places in a JSON value by JSON Pointer, and what a delta's operations do there.  Pure; works in place."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import JsonValue

MAX_STEPS = 64
"""Steps of a path."""

MISSING = object()
"""What is at a place where nothing is."""

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


class Drift(Exception):
    """The stream is not what it should be."""


class Place(NamedTuple):
    """A member of an object (`key` is text), a place in a list (a number), or a root."""

    container: Any
    key: Any

    def get(self) -> Any:
        if isinstance(self.container, list):
            return self.container[self.key] if self.key < len(self.container) else MISSING
        return self.container.get(self.key, MISSING)

    def put(self, value: JsonValue) -> None:
        self.container[self.key] = value

    def below(self, step: str) -> "Place":
        inner = self.get()
        if isinstance(inner, dict):
            return Place(inner, step.replace("~1", "/").replace("~0", "~"))
        if isinstance(inner, list) and step == "-":
            return Place(inner, len(inner))
        if isinstance(inner, list) and _INDEX.fullmatch(step):
            return Place(inner, int(step))
        raise Drift(f"a path leads to {step[:80]!r}, which is not there")


def find(roots: Mapping[int, JsonValue], root: int, path: str) -> Place:
    """The place at `path` in a root, which is there.  :raises Drift: it is no path, or leads nowhere."""
    place = Place(roots, root)
    if path == "":
        return place
    if not path.startswith("/") or path.count("/") > MAX_STEPS:
        raise Drift(f"{path[:80]!r} is no path")
    for step in path[1:].split("/"):
        place = place.below(step)
    return place


def change(place: Place, op: str, value: JsonValue) -> None:
    """One operation of a delta.  :raises Drift: it does not fit what is there."""
    now = place.get()
    if op == "add" and isinstance(place.container, list):
        if place.key > len(place.container):
            raise Drift("`add` behind the end of a list")
        place.container.insert(place.key, value)
    elif op == "add" or (op == "replace" and not isinstance(place.container, list)):
        place.put(value)
    elif now is MISSING:
        raise Drift(f"`{op[:20]}` where nothing is")
    elif op == "replace":
        place.put(value)
    elif op == "remove":
        del place.container[place.key]
    elif op == "append" and isinstance(now, list):
        now.extend(value if isinstance(value, list) else [value])
    elif op == "append" and isinstance(now, dict) and isinstance(value, dict):
        now.update(value)
    elif op == "truncate" and isinstance(now, str | list) and type(value) is int and value >= 0:
        place.put(_cut(now, value))
    else:
        raise Drift(f"`{op[:20]}` does not fit what is there")


def _cut(now: str | list[JsonValue], length: int) -> JsonValue:
    """Lengths of text are the senders': units of UTF-16."""
    if isinstance(now, list) or now.isascii():
        return now[:length]
    return now.encode("utf-16-le", "surrogatepass")[: 2 * length].decode("utf-16-le", "surrogatepass")


def copied(value: JsonValue) -> JsonValue:
    """Another value that is equal; of any depth."""
    root: list[Any] = [value]
    todo: list[Any] = [root]
    while todo:
        container = todo.pop()
        for key, item in list(container.items() if isinstance(container, dict) else enumerate(container)):
            if isinstance(item, dict | list):
                container[key] = item.copy()
                todo.append(container[key])
    whole: JsonValue = root[0]
    return whole
