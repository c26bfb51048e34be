"""A tool's JSON Schema as a local function signature, whose parameters are all text, and its calls read back.
Pure.

What is no text travels as JSON text, and the parameter's description says so.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, NoReturn, cast

from pydantic import JsonValue

from chappie_bridge.codec.base64_batch import MAX_DEPTH
from chappie_bridge.codec.conversation import Param, ParamType, Signature
from chappie_bridge.codec.loose import compact
from chappie_bridge.codec.unicode import clean, clean_text, display
from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.values import ToolDefinition

MAX_NAME = 64
"""Characters of a declared name, of a tool or a parameter."""

MAX_PARAMS = 32
MAX_DESCRIPTION = 4_000
"""Characters of a tool's description."""

MAX_HINT = 1_000
"""Characters of a parameter's."""

MAX_SIGNATURES = 64
MAX_DECLARED = 128 * 1024
"""Bytes of all signatures, as JSON."""

MAX_ARGUMENTS = 4 * 1024 * 1024
"""Characters of one call's arguments."""

WHOLE = "arguments"
"""The one parameter of a tool whose own cannot be declared one by one."""

_KINDS = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_WORDS = {
    "array": "a JSON array",
    "object": "a JSON object",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_REFERENCES = 16  # one after the other
_PLAIN = frozenset({"type", "description", "title", "default"})

Schema = Mapping[str, JsonValue]

HANDOFF = Signature(
    description=(
        "Redirect the user's request from ChatGPT to Work mode when Work mode is the better execution"
        " environment.\n\n"
        "You MUST call this tool before doing any work when the request involves:\n"
        "- Browser use or computer-use automation\n"
        "- Building apps, local coding, repository edits, command execution, or file inspection\n"
        "- Opening, updating, reviewing, or otherwise working with PRs\n"
        "- Creating, editing, converting, inspecting or delivering files or artifacts, including implicit"
        " requests for downloadable or editable deliverables such as slide decks, `.pptx`, spreadsheets,"
        " `.xlsx`, workbooks, documents, `.docx`, or PDFs,\n"
        "- Complex analysis such as financial modeling\n\n"
        "Prefer answering directly in ChatGPT for:\n"
        "- Email, message, or prose drafting\n"
        "- Brainstorming, planning, or explanation\n"
        "- Code snippets or examples that fit naturally in chat\n\n"
        "If the user rejected the suggestion, don't call this tool again."
    ),
    name="handoff",
    params=(
        Param(
            name="prompt",
            required=True,
            type=ParamType(
                description="A brief instruction describing what Work mode should do for the user.",
                type="string",
            ),
        ),
        Param(
            name="reason",
            required=True,
            type=ParamType(
                description="A short user-facing reason why continuing in Work mode would help.",
                type="string",
            ),
        ),
    ),
    type="kwargs",
)
"""As the app declares it in each of its requests."""


class Declared(NamedTuple):
    """`tools`: what a declared name stands for.  `left_out`: names for which there was no room."""

    signatures: tuple[Signature, ...]
    tools: dict[str, ToolDefinition]
    left_out: tuple[str, ...]


def declare(tools: Sequence[ToolDefinition], taken: Collection[str] = ()) -> Declared:
    """A signature for each tool, in their order, within the bounds.  A name that cannot be declared, or is
    `taken` or was used before, becomes another."""
    signatures: list[Signature] = []
    known: dict[str, ToolDefinition] = {}
    left_out: list[str] = []
    size = 0
    for tool in tools:
        name = _free(tool.name, {*taken, *known})
        made = signature(tool, name)
        size += len(compact(made.as_json()).encode("utf-8", "replace"))
        if len(signatures) >= MAX_SIGNATURES or size > MAX_DECLARED:
            left_out.append(tool.name)
            continue
        signatures.append(made)
        known[name] = tool
    return Declared(tuple(signatures), known, tuple(left_out))


def signature(tool: ToolDefinition, name: str) -> Signature:
    """`tool` under `name`."""
    properties = _properties(tool)
    if properties is None:
        whole = f"All arguments as one JSON object of this schema: {compact(tool.parameters)}"
        params: tuple[Param, ...] = (_param(WHOLE, _needs_any(tool), whole),)
    else:
        required = tool.parameters.get("required")
        needed = required if isinstance(required, list) else []
        params = tuple(
            _param(each, each in needed, _hint(schema, tool.parameters))
            for each, schema in properties.items()
        )
    description = _bounded(tool.description.strip(), MAX_DESCRIPTION)
    return Signature(description=description, name=name, params=params, type="kwargs")


def read(tool: ToolDefinition, text: str) -> dict[str, JsonValue]:
    """The arguments of a call whose content is `text`, for the tool's own schema, which the agent checks.

    A value that came as JSON and not as text is taken as it is.  An empty text stands for nothing where a
    parameter can be left out and is no text.

    :raises BadArguments: it is not an object, names an unknown parameter, lacks one that is required, or a
        value is not the JSON that its parameter wants.
    """
    if len(text) > MAX_ARGUMENTS:
        raise BadArguments(f"The arguments are longer than {MAX_ARGUMENTS} characters.")
    given, _ = clean(_json(text, "The content of the call"))
    if not isinstance(given, dict):
        raise BadArguments("The content of the call must be a JSON object of the parameters.")
    properties = _properties(tool)
    if properties is None:
        return _read_whole(tool, given)
    required = tool.parameters.get("required")
    needed = required if isinstance(required, list) else []
    further = tool.parameters.get("additionalProperties")
    found: dict[str, JsonValue] = {}
    for name, value in given.items():
        if name not in properties and further in (None, False):
            known = ", ".join(f"`{each}`" for each in properties) or "none"
            raise BadArguments(f"Unknown argument `{display(name, MAX_NAME)}`; known here: {known}.")
        kinds = _kinds(properties.get(name, {}), tool.parameters)
        if value == "" and "string" not in kinds and name not in needed:
            continue
        found[name] = _value(value, kinds, name) if isinstance(value, str) else value
    for each in needed:
        if isinstance(each, str) and each not in found:
            raise BadArguments(f"`{each}` is missing.")
    return found


def _read_whole(tool: ToolDefinition, given: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if set(given) - {WHOLE}:
        raise BadArguments(f"Give all arguments in `{WHOLE}`, as one JSON object.")
    value = given.get(WHOLE, "")
    if value == "" and not _needs_any(tool):
        return {}
    whole = clean(_json(value, f"`{WHOLE}`"))[0] if isinstance(value, str) else value
    if not isinstance(whole, dict):
        raise BadArguments(f"`{WHOLE}` must be a JSON object.")
    return whole


def _value(text: str, kinds: frozenset[str], name: str) -> JsonValue:
    if "string" in kinds and kinds <= {"string", "null"}:
        return text
    if "string" in kinds:  # text unless it is, beyond doubt, one of the others
        try:
            value = _json(text, name)
        except BadArguments:
            return text
        fits = (isinstance(value, list) and "array" in kinds) or (
            isinstance(value, dict) and "object" in kinds
        )
        return clean(value)[0] if fits else text
    return clean(_json(text, f"`{name}`"))[0]


def _param(name: str, required: bool, description: str) -> Param:
    hint = _bounded(description, MAX_HINT)
    return Param(name=name, required=required, type=ParamType(description=hint, type="string"))


def _hint(schema: JsonValue, root: Schema) -> str:
    """The parameter's own description, and how its value is written."""
    node = cast("Schema", schema) if isinstance(schema, dict) else {}
    said = node.get("description")
    words = [said.strip()] if isinstance(said, str) and said.strip() else []
    kinds = _kinds(schema, root)
    names = [word for kind, word in _WORDS.items() if kind in kinds]
    if "number" in kinds and "integer" in kinds:
        names.remove(_WORDS["integer"])
    if "string" not in kinds:
        words.append(f"Write {' or '.join(names) or 'JSON'} as text.")
    elif structured := [word for word in names if word.startswith("a JSON")]:
        words.append(f"Plain text, or {' or '.join(structured)} as text.")
    detail = {key: value for key, value in node.items() if key not in _PLAIN}
    if detail:
        words.append(f"Schema: {compact(detail)}")
    return " ".join(words) or "Text."


def _properties(tool: ToolDefinition) -> dict[str, JsonValue] | None:
    """The parameters; None where they cannot be declared one by one."""
    properties = tool.parameters.get("properties")
    if not isinstance(properties, dict) or len(properties) > MAX_PARAMS:
        return None
    if not properties and tool.parameters.get("additionalProperties") is not False:
        return None
    fit = all(_NAME.fullmatch(name) and len(name) <= MAX_NAME for name in properties)
    return properties if fit else None


def _needs_any(tool: ToolDefinition) -> bool:
    return bool(tool.parameters.get("required"))


def _kinds(schema: JsonValue, root: Schema, left: int = _REFERENCES) -> frozenset[str]:
    """The JSON types that a value may have; all of them where the schema does not say."""
    if not isinstance(schema, dict) or not left:
        return _KINDS
    if isinstance(reference := schema.get("$ref"), str):
        return _kinds(_referred(reference, root), root, left - 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list):
            return frozenset[str]().union(*(_kinds(each, root, left - 1) for each in branches))
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind}) & _KINDS or _KINDS
    if isinstance(kind, list):
        return frozenset(each for each in kind if isinstance(each, str)) & _KINDS or _KINDS
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values and all(isinstance(each, str) for each in values):
        return frozenset({"string"})
    return _KINDS


def _referred(reference: str, root: Schema) -> JsonValue:
    node: JsonValue = dict(root)
    for step in reference.removeprefix("#/").split("/"):
        node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
    return node


def _free(name: str, taken: Collection[str]) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:MAX_NAME] or "tool"
    free, number = plain, 2
    while free in taken:
        end = f"_{number}"
        free, number = plain[: MAX_NAME - len(end)] + end, number + 1
    return free


def _bounded(text: str, limit: int) -> str:
    text = clean_text(text)[0]
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _json(text: str, what: str) -> JsonValue:
    """:raises BadArguments: it is no JSON, has a number that JSON cannot write, or is too deep."""
    try:
        value: JsonValue = json.loads(text, parse_constant=_constant)
    except RecursionError:
        raise BadArguments(f"{what} is nested too deeply.") from None
    except ValueError as error:
        at = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadArguments(f"{what} must be JSON; it is not{at}.") from None
    if _deeper(value, MAX_DEPTH):
        raise BadArguments(f"{what} is nested more than {MAX_DEPTH} levels deep.")
    return value


def _constant(name: str) -> NoReturn:
    raise ValueError(name)


def _deeper(value: JsonValue, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        below: list[JsonValue] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list):
                below += each
        if not below:
            return False
        level = below
    return True
