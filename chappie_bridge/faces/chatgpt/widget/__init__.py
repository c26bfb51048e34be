"""The page on which a person answers a question, as an MCP resource.  Knows nothing of questions."""

import hashlib
import re
from functools import cache
from importlib.resources import files

import mcp_types as types
from pydantic import JsonValue

MIME_TYPE = "text/html;profile=mcp-app"
"""Only under this type does a host give the page its bridge."""

_ADDRESS = re.compile(r"ui://chappie/question-[0-9a-z]{1,64}\.html")

_META: dict[str, JsonValue] = {
    "ui": {"prefersBorder": True, "csp": {"connectDomains": [], "resourceDomains": []}},
    "openai/widgetPrefersBorder": True,
    "openai/widgetCSP": {"connect_domains": [], "resource_domains": []},
    "openai/widgetDescription": (
        "Shows the question with its options and takes the user's answer. Do not repeat the question in text."
    ),
}


@cache
def page() -> str:
    """The whole page: it loads nothing further."""
    return files(__name__).joinpath("question.html").read_text(encoding="utf-8")


@cache
def address() -> str:
    """Hosts keep a page by its address, so each version of it has its own."""
    return f"ui://chappie/question-{hashlib.sha256(page().encode()).hexdigest()[:12]}.html"


def listed() -> types.Resource:
    return types.Resource.model_validate(
        {
            "uri": address(),
            "name": "question",
            "title": "Question",
            "description": "Where the user answers a question of `ask`.",
            "mimeType": MIME_TYPE,
            "_meta": _META,
        }
    )


def read(uri: str) -> types.ReadResourceResult | None:
    """The page; also under the address of an older version, which a host that keeps old tool lists asks for.
    None: `uri` is something else."""
    if not _ADDRESS.fullmatch(uri):
        return None
    contents: dict[str, JsonValue] = {"uri": uri, "mimeType": MIME_TYPE, "text": page(), "_meta": _META}
    return types.ReadResourceResult.model_validate({"contents": [contents]})
