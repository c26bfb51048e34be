"""Text that others send, made fit for UTF-8, SQLite and a reader's eyes.  Pure: changes nothing in place."""

import re

from pydantic import JsonValue

REPLACEMENT = "\ufffd"

_ESCAPED_SURROGATE = re.compile(
    rb"\\u(?:[dD][89abAB][0-9a-fA-F]{2}(\\u[dD][c-fC-F][0-9a-fA-F]{2})|[dD][89a-fA-F][0-9a-fA-F]{2})"
)

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1: terminal control
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction marks, overrides and isolates
    "\u200b\u2028\u2029\u2060-\u2064\ufeff"  # invisible, or a line break
    "\U000e0000-\U000e007f]"  # tags: text that only a model reads
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def clean(value: JsonValue) -> tuple[JsonValue, int]:
    """`value` without lone surrogates, and how many U+FFFD took their place.

    Keys are cleaned like text; two keys that become equal are kept apart by further U+FFFD.  Two halves
    that make a legal pair become the one character and are not counted.  The same object comes back when
    nothing was wrong.  Any depth of nesting.
    """
    if not _is_dirty(value):
        return value, 0
    count = 0

    def fix(text: str) -> str:
        nonlocal count
        fixed, replaced = clean_text(text)
        count += replaced
        return fixed

    root: list[JsonValue] = [None]
    todo: list[tuple[JsonValue, list[JsonValue] | dict[str, JsonValue], int | str]] = [(value, root, 0)]
    while todo:
        source, target, place = todo.pop()
        fresh: JsonValue
        if isinstance(source, str):
            fresh = fix(source)
        elif isinstance(source, list):
            items: list[JsonValue] = [None] * len(source)
            fresh = items
            todo.extend((item, items, index) for index, item in enumerate(source))
        elif isinstance(source, dict):
            entries: dict[str, JsonValue] = {}
            fresh = entries
            for key, item in source.items():
                name = fix(key)
                while name in entries:
                    name += REPLACEMENT
                entries[name] = None
                todo.append((item, entries, name))
        else:
            fresh = source
        target[place] = fresh  # type: ignore[index]  # a list is paired with an int, a dict with a str
    return root[0], count


def clean_text(text: str) -> tuple[str, int]:
    """`clean` for one text."""
    if not _is_dirty(text):
        return text, 0
    # UTF-16 is where halves meet: its decoder joins legal pairs and replaces each lone half by one U+FFFD.
    fixed = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return fixed, fixed.count(REPLACEMENT) - text.count(REPLACEMENT)


def clean_json_bytes(body: bytes) -> tuple[bytes, int]:
    r"""A JSON text in which each `\ud83d` that stands alone is `\ufffd`, and how many there were.

    For a strict parser that would refuse the whole request.  Legal pairs, escaped backslashes
    (`\\ud83d`) and invalid UTF-8 stay as they are.  The same object comes back when nothing was wrong.
    """
    if b"\\ud" not in body and b"\\uD" not in body:
        return body, 0
    count = 0

    def fix(found: re.Match[bytes]) -> bytes:
        nonlocal count
        before = start = found.start()
        while before and body[before - 1] == 0x5C:
            before -= 1
        escaped, low = (start - before) % 2 == 1, found[1]
        if escaped == (low is None):
            return found[0]
        count += 1
        return found[0][:6] + b"\\ufffd" if low else b"\\ufffd"

    fixed = _ESCAPED_SURROGATE.sub(fix, body)
    return (fixed, count) if count else (body, 0)


def display(text: str, limit: int) -> str:
    r"""`text` safe to show to a person or a model: one line of at most `limit` (>= 1) characters.

    For names and paths.  What steers a terminal, the direction of writing or only the machine is written
    as an escape (`\x1b`, `\u202e`); a longer text ends with an ellipsis.
    """
    shown = _UNSAFE.sub(_escape, clean_text(text[: limit + 1])[0])
    return shown if len(shown) <= limit and len(text) <= limit else shown[: limit - 1] + "…"


def _escape(found: re.Match[str]) -> str:
    char, code = found[0], ord(found[0])
    if short := _SHORT.get(char):
        return short
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _is_dirty(value: JsonValue) -> bool:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            if not _encodes(item):
                return True
        elif isinstance(item, list):
            todo.extend(item)
        elif isinstance(item, dict):
            todo.extend(item)
            todo.extend(item.values())
    return False


def _encodes(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
