"""The `calls` array of a batch, plain or as Base64 of UTF-8 JSON (SPEC §1).  Pure; never more lenient for
the one form than for the other.

Positions count from 0 and are data for the program too: `{"position": n, "of": …}` where `of` is
`base64` (character of the given text), `bytes` (byte of the decoded bytes) or `json` (character of the
decoded text).
"""

import base64
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, NoReturn, cast

from pydantic import JsonValue

from chappie_bridge.codec.unicode import clean, display
from chappie_bridge.wire.errors import BadArguments, BadBase64
from chappie_bridge.wire.values import NewCall

MAX_CALLS = 64
"""Calls of one batch."""

MAX_NAME = 128
"""Characters of a tool's name: what MCP allows, so that a host's prefixed names fit."""

MAX_DEPTH = 100
"""Levels of nesting of one call's arguments; parsers on the way give up at 200 and more."""

_SPACE = b" \t\r\n\f\v"
_STANDARD, _URL_SAFE = b"+/", b"-_"
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_ALPHABET = _LETTERS + _STANDARD + _URL_SAFE
_TO_STANDARD = bytes.maketrans(_URL_SAFE, _STANDARD)
_VALUE = {code: value for value, code in enumerate(_LETTERS + _STANDARD)}
_SPARE_BITS = {2: 0b1111, 3: 0b11}
"""Bits of the last character that carry no data, by length modulo 4."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)


class Decoded(NamedTuple):
    calls: tuple[NewCall, ...]
    replaced: int
    """Lone surrogates that became U+FFFD; above 0 the result deserves a note."""


def decode(text: str) -> Decoded:
    """The calls of a `base64` argument.

    :raises BadBase64: `text` is not Base64 of a JSON array; `data` says where (see above).
    :raises BadArguments: the array is not one of calls, as in `check_calls`.
    """
    source = _utf8(_bytes(text))
    value, replaced = clean(_json(source))
    if isinstance(value, dict) and "calls" in value:
        _refuse("holds an object with `calls`: encode the array only", _start(source), "json")
    if not isinstance(value, list):
        _refuse("holds JSON that is not an array: encode the `calls` array only", _start(source), "json")
    return Decoded(check_calls(value), replaced)


def encode(calls: Sequence[NewCall]) -> str:
    """Standard alphabet, padded.  Lone surrogates become U+FFFD.

    :raises ValueError: a number is not finite.
    """
    value, _ = clean([{"name": call.name, "arguments": call.arguments} for call in calls])
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(text.encode()).decode("ascii")


def check_calls(value: JsonValue) -> tuple[NewCall, ...]:
    """`value` as 1 to 64 calls, each an object with exactly `name` and `arguments`.

    :raises BadArguments: names the first fault by its path, `calls[49].arguments`.
    """
    if not isinstance(value, list):
        raise BadArguments("`calls` must be an array of calls.")
    if not 1 <= len(value) <= MAX_CALLS:
        raise BadArguments(f"`calls` must hold 1 to {MAX_CALLS} calls; it holds {len(value)}.")
    return tuple(_call(item, f"calls[{index}]") for index, item in enumerate(value))


def _call(item: JsonValue, path: str) -> NewCall:
    if not isinstance(item, dict):
        raise BadArguments(f"`{path}` must be an object with `name` and `arguments`.")
    for key in ("name", "arguments"):
        if key not in item:
            raise BadArguments(f"`{path}.{key}` is missing.")
    for key in item:
        if key not in ("name", "arguments"):
            raise BadArguments(f"`{path}.{display(key, 64)}` is unknown: a call has `name` and `arguments`.")
    name, arguments = item["name"], item["arguments"]
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
        raise BadArguments(f"`{path}.name` must be text of 1 to {MAX_NAME} characters.")
    if not isinstance(arguments, dict):
        raise BadArguments(f"`{path}.arguments` must be an object.")
    _check_values(arguments, f"{path}.arguments")
    return NewCall(name=name, arguments=arguments)


def _check_values(arguments: dict[str, JsonValue], path: str) -> None:
    level: list[JsonValue] = [arguments]
    for _ in range(MAX_DEPTH):
        below: list[JsonValue] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise BadArguments(f"`{path}` holds a number that JSON cannot write.")
        if not below:
            return
        level = below
    raise BadArguments(f"`{path}` is nested more than {MAX_DEPTH} levels deep.")


def _refuse(what: str, position: int, of: Literal["base64", "bytes", "json"]) -> NoReturn:
    where = {
        "base64": f"character {position}",
        "bytes": f"byte {position} of what it decodes to",
        "json": f"character {position} of what it decodes to",
    }[of]
    raise BadBase64(
        f"`base64` {what} ({where}, counted from 0).",
        hint="Encode the `calls` array only, as UTF-8 JSON in Base64, or send it as plain `calls`.",
        data={"position": position, "of": of},
    )


def _bytes(text: str) -> bytes:
    try:
        compact = text.encode("ascii").translate(None, _SPACE)
    except UnicodeEncodeError as error:
        _refuse("holds a character outside the Base64 alphabet", error.start, "base64")
    if stray := compact.translate(None, _ALPHABET + b"="):
        _refuse("holds a character outside the Base64 alphabet", text.index(chr(stray[0])), "base64")
    body = compact.rstrip(b"=")
    padding, rest = len(compact) - len(body), len(body) % 4
    if b"=" in body:
        _refuse("has padding before its end", text.index("="), "base64")
    marks = body.translate(None, _LETTERS)
    first_alphabet = _STANDARD if marks.startswith((b"+", b"/")) else _URL_SAFE
    if others := marks.translate(None, first_alphabet):
        _refuse("mixes the standard and the URL-safe alphabet", text.index(chr(others[0])), "base64")
    last = len(text.rstrip(_SPACE.decode() + "=")) - 1
    if rest == 1:
        _refuse("ends in the middle: one character is left over", last, "base64")
    if padding not in (0, -rest % 4):
        _refuse("has the wrong padding", text.index("="), "base64")
    body = body.translate(_TO_STANDARD)
    if rest and _VALUE[body[-1]] & _SPARE_BITS[rest]:
        _refuse("has spare bits that are not zero in its last character", last, "base64")
    return base64.b64decode(body + b"=" * (-rest % 4))


def _utf8(data: bytes) -> str:
    if data.startswith(b"\xef\xbb\xbf"):
        _refuse("decodes to bytes that begin with a byte order mark: leave it out", 0, "bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        _refuse("decodes to bytes that are not UTF-8", error.start, "bytes")


class _NotStrictError(ValueError):
    """What Python's parser lets pass and JSON does not; where it stands is looked for afterwards."""


def _json(source: str) -> JsonValue:
    try:
        return cast(
            "JsonValue",
            json.loads(source, object_pairs_hook=_entries, parse_constant=_constant, parse_float=_finite),
        )
    except json.JSONDecodeError as error:
        if error.pos >= len(source.rstrip()):
            _refuse("decodes to JSON that ends too early", error.pos, "json")
        _refuse("decodes to text that is not JSON", error.pos, "json")
    except RecursionError:
        _refuse("decodes to JSON that is nested too deeply", _start(source), "json")
    except ValueError:  # ours, or an integer of thousands of digits
        what, position = next(_faults(source))
        _refuse(what, position, "json")


def _entries(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise _NotStrictError
    return entries


def _constant(_: str) -> NoReturn:
    raise _NotStrictError


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _NotStrictError
    return number


def _start(source: str) -> int:
    return len(source) - len(source.lstrip())


def _faults(source: str) -> Iterator[tuple[str, int]]:
    """Repeated keys and numbers out of range of a text that is JSON otherwise up to them."""
    keys: list[set[str]] = []
    key: tuple[str, int] | None = None
    for token in _TOKEN.finditer(source):
        text, position = token[0], token.start()
        if text[0] == '"':
            key = text, position
        elif text == ":" and key and keys:
            name = json.loads(key[0])
            if name in keys[-1]:
                yield "decodes to JSON with a repeated key", key[1]
            keys[-1].add(name)
        elif text in "{[":
            keys.append(set())
        elif text in "}]":
            keys.pop()
        elif text not in (",", "true", "false", "null"):
            try:
                number = json.loads(text)
            except ValueError:
                number = math.inf
            if isinstance(number, float) and not math.isfinite(number):
                yield "decodes to JSON with a number out of range", position
