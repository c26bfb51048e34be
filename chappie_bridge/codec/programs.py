"""Whose habits are whose: how each agent program names itself, its session, its directory, and how it
marks what the person did not type.  Pure tables, taken from requests that the programs really sent
(`tests/fixtures/hosts`); what was not seen is not here.
"""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from chappie_bridge.codec.loose import Record, parsed, record, string
from chappie_bridge.codec.turn import OfferedTool, Program, Subagent
from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.ids import MAX_ID, SessionId

Headers = Mapping[str, str]
"""By lower-case name."""

# --- which program ------------------------------------------------------------------------------

_HOSTS: dict[str, Program] = {
    "pi": "pi",
    "codex": "codex",
    "opencode": "opencode",
    "claude": "claude",
    "qwen": "qwen",
    "cline": "cline",
    "aider": "aider",
    "mini": "mini",
}
_AGENTS: tuple[tuple[re.Pattern[str], Program], ...] = (
    (re.compile(r"pi/(\S+)"), "pi"),
    (re.compile(r"codex[\w-]*/(\S+)"), "codex"),
    (re.compile(r"opencode/(\S+)"), "opencode"),
    (re.compile(r"claude-cli/(\S+)"), "claude"),
    (re.compile(r"QwenCode/(\S+)"), "qwen"),
)
_ANY_AGENT = re.compile(r"[^/\s]+/(\S+)")
"""Codex behind its app server has the name of the program that drives it."""

_SYSTEMS: tuple[tuple[str, Program], ...] = (
    ("You are Cline,", "cline"),
    ("Act as an expert software developer.", "aider"),
    ("You are a helpful assistant that can interact with a computer.", "mini"),
)
"""For programs whose user agent is only that of their library."""


class Who(NamedTuple):
    program: Program
    version: str | None


def identify(headers: Headers, system: str) -> Who:
    """`x-chappie-host` (our own configuration sets it), else the user agent, else the system text."""
    agent, named = headers.get("user-agent", ""), None
    for form, program in _AGENTS:
        if found := form.match(agent):
            named = Who(program, found[1])
    if "x-codex-turn-metadata" in headers and (found := _ANY_AGENT.match(agent)):
        named = Who("codex", found[1])
    if told := _HOSTS.get(headers.get("x-chappie-host", "").lower()):
        return Who(told, named.version if named and named.program == told else None)
    if named:
        return named
    for start, program in _SYSTEMS:
        if system.startswith(start):
            return Who(program, None)
    return Who("other", None)


# --- which session ------------------------------------------------------------------------------

_SESSION_HEADERS = (
    "thread-id",
    "session-id",
    "session_id",
    "x-session-id",
    "x-claude-code-session-id",
    "x-session-affinity",
    "x-chappie-session-id",
    "x-chappie-session",
)
_CACHE_KEY_IS_SESSION: frozenset[Program] = frozenset(("pi", "codex", "opencode"))
"""Elsewhere `prompt_cache_key` may be one constant for every session of an application."""


def codex_metadata(headers: Headers, body: Record) -> Record:
    """What Codex says about a request: a JSON header, and fields of the body that repeat it."""
    client = record(body.get("client_metadata"))
    told = headers.get("x-codex-turn-metadata") or string(client.get("x-codex-turn-metadata"))
    return {**client, **record(parsed(told))}


def subagent(who: Program, headers: Headers, system: str) -> Subagent | None:
    """Which sub-agent of the session asks; None for the person's own turns.

    :raises BadArguments: an id longer than MAX_ID, with a slash or with control characters.
    """
    if who == "codex":
        thread, root = headers.get("thread-id"), headers.get("session-id")
        kind, parent = headers.get("x-openai-subagent"), headers.get("x-codex-parent-thread-id")
        if not thread or thread == root or not (kind or parent):
            return None
        return Subagent(_checked(thread), kind or "subagent", parent if parent != root else None)
    if who == "opencode" and headers.get("x-parent-session-id"):
        own = headers.get("x-session-id")
        return Subagent(_checked(own) if own else None, headers.get("x-chappie-agent") or "task")
    if who == "claude":
        own = headers.get("x-claude-code-agent-id")
        if own or "cc_is_subagent=true" in system.partition("\n")[0]:
            return Subagent(_checked(own) if own else None, "agent")
    return None


def session_id(who: Program, headers: Headers, body: Record, agent: Subagent | None) -> SessionId | None:
    """The program's own id of its session (a sub-agent's: of the session it works for); None where it
    gives none.

    :raises BadArguments: as `subagent`.
    """
    names: tuple[str, ...] = _SESSION_HEADERS
    if agent:
        names = {"codex": ("session-id",), "opencode": ("x-parent-session-id",)}.get(who, names)
    for name in names:
        if found := headers.get(name):
            return _checked(found)
    told = codex_metadata(headers, body) if who == "codex" else _claude_user(body)
    key = string(body.get("prompt_cache_key")) if who in _CACHE_KEY_IS_SESSION else ""
    found = string(told.get("thread_id")) or string(told.get("session_id")) or key
    return _checked(found) if found else None


def turn_id(who: Program, headers: Headers, body: Record) -> str | None:
    return string(codex_metadata(headers, body).get("turn_id")) or None if who == "codex" else None


def _claude_user(body: Record) -> Record:
    return record(parsed(string(record(body.get("metadata")).get("user_id"))))


def _checked(found: str) -> SessionId:
    if len(found) > MAX_ID or "/" in found or not found.isprintable():
        raise BadArguments("The request names a session id that cannot be one.")
    return SessionId(found)


# --- which directory ----------------------------------------------------------------------------

_DIRECTORIES: dict[Program, re.Pattern[str]] = {
    "pi": re.compile(r"<cwd>\n?(.+?)\n?</cwd>"),
    "codex": re.compile(r"<environment_context>\s*<cwd>(.+?)</cwd>"),
    "opencode": re.compile(r"<env>\s*Working directory: (.+)"),
    "claude": re.compile(r"^ - Primary working directory: (.+)$", re.MULTILINE),
    "qwen": re.compile(r"I'm currently working in the directory: (.+)"),
}


def directory(who: Program, headers: Headers, body: Record, prose: list[str]) -> str | None:
    """Where the program works: our own header, else its live value, else what its prose says last.

    `prose` is the system text and what the program adds to the history, oldest first.
    """
    for name in ("x-chappie-cwd", "x-chappie-ext-cwd"):
        if found := headers.get(name):
            return found
    if who == "claude":
        safeguards = body.get("safeguards")
        for guard in safeguards if isinstance(safeguards, list) else []:
            if live := string(record(record(guard).get("classifier_context")).get("live_cwd")):
                return live
    form = _DIRECTORIES.get(who)
    for text in reversed(prose if form else []):
        if form and (matches := form.findall(text)):
            return string(matches[-1]).strip()
    return None


# --- what stands in the person's place but is not from the person -------------------------------

Kind = Literal["said", "note", "abort", "summary"]


class Reading(NamedTuple):
    """What a user text is.  `label` says which note it is."""

    kind: Kind
    text: str
    label: str = ""


# Greedy on purpose: a project's file that quotes the closing tag must not end a note early and have the
# rest of it taken for the person's words.
def _wrapped(tag: str) -> re.Pattern[str]:
    return re.compile(rf"\s*<{tag}>.*</{tag}>\s*", re.DOTALL)


_ANYONE = ((_wrapped("system-reminder"), "reminder"),)
_NOTES: dict[Program, tuple[tuple[re.Pattern[str], str], ...]] = {
    "codex": (
        (re.compile(r"# AGENTS\.md instructions for .*", re.DOTALL), "instructions"),
        (_wrapped("environment_context"), "environment"),
        (_wrapped("user_shell_command"), "shell"),
        (_wrapped("subagent_notification"), "subagent"),
    ),
    "claude": (
        (_wrapped("local-command-caveat"), "command"),
        (_wrapped("local-command-stdout"), "command"),
        (re.compile(r"\s*<command-name>.*</command-args>\s*", re.DOTALL), "command"),
    ),
}
_ABORTS: dict[Program, re.Pattern[str]] = {
    "codex": _wrapped("turn_aborted"),
    "claude": re.compile(r"\[Request interrupted by user(?: for tool use)?\]\s*"),
}
_SUMMARIES: dict[Program, str] = {
    "pi": "The conversation history before this point was compacted into the following summary:",
    "codex": "Another language model started to solve this problem and produced a summary",
    "claude": "This session is being continued from a previous conversation",
}
COMPACTED_QUESTION = "What did we do so far?"
"""OpenCode's user text before its summary, which it keeps as an assistant's message."""

_STEERED = "The user sent a new message while you were working:\n"
_STEERED_END = "\n\nThis is how Claude Code surfaces messages the user sends mid-turn"


def read_user(who: Program, text: str) -> Reading:
    """What a text in the user's place is, without the wrapping that a program put around it."""
    for form, label in (*_ANYONE, *_NOTES.get(who, ())):
        if form.fullmatch(text):
            return Reading("note", text, label)
    if (abort := _ABORTS.get(who)) and abort.fullmatch(text):
        return Reading("abort", text)
    if (start := _SUMMARIES.get(who)) and text.startswith(start):
        return Reading("summary", text)
    if who == "claude" and text.startswith(_STEERED):
        inner = text.removeprefix(_STEERED)
        return Reading("said", inner.rpartition(_STEERED_END)[0] or inner)
    return Reading("said", text)


class Media(NamedTuple):
    """How a program sends the images of results in Chat Completions: as a user message that begins
    with `heading`, after results whose text matches `mark`."""

    heading: str
    mark: re.Pattern[str]


MEDIA: dict[Program, Media] = {
    "pi": Media("Attached image(s) from tool result:", re.compile(r"Read image file \[image/")),
    "opencode": Media("Attached media from tool result:", re.compile(r"Image read successfully")),
}

# --- results ------------------------------------------------------------------------------------

_SHELLS: dict[Program, frozenset[str]] = {
    "pi": frozenset({"bash", "powershell"}),
    "opencode": frozenset({"bash"}),
    "qwen": frozenset({"run_shell_command"}),
}
"""Tools whose own text a program ends with its report; another tool's text may be a file's."""

_SHELL_ABORTED: dict[Program, re.Pattern[str]] = {
    "pi": re.compile(r"(?:^|\n)Command aborted\Z"),
    "opencode": re.compile(r"<shell_metadata>\nUser aborted the command\n</shell_metadata>\s*\Z"),
}
_ABORTED: dict[Program, re.Pattern[str]] = {
    "codex": re.compile(r"(?:Wall time: [\d.]+ seconds\n)?aborted by user\Z"),
    "claude": re.compile(r"The user doesn't want to proceed with this tool use\."),
}
_SHELL_FAILED: dict[Program, re.Pattern[str]] = {
    "pi": re.compile(r"(?:^|\n)Command exited with code -?[1-9]\d*\Z"),
    "qwen": re.compile(r"\nExit Code: -?[1-9]\d*\nSignal: [^\n]*\nProcess Group PGID: \d+\s*\Z"),
}
_FAILED: dict[Program, re.Pattern[str]] = {
    "pi": re.compile(r'Validation failed for tool "|Tool \S+ not found\Z'),
    "codex": re.compile(
        r"Chunk ID: \w+\nWall time: [\d.]+ seconds\nProcess exited with code -?[1-9]\d*\n"
        r"|Exit code: -?[1-9]\d*\nWall time: |unsupported call: |failed to parse function arguments: "
        r"|unable to locate image at "
    ),
    "opencode": re.compile(
        r"The \w+ tool was called with invalid arguments: |The arguments provided to the tool are invalid: "
    ),
}
"""Texts by which a program reports a failed call where its protocol has no field for it: at the beginning
of a result, or (a shell's) at its end."""

_END = 200
"""Characters at the end of a shell's text in which its report stands; results can be long."""


def is_aborted(who: Program, tool: str, text: str) -> bool:
    """The result of `tool` says that the person stopped it."""
    return _says(who, tool, text, _ABORTED, _SHELL_ABORTED)


def is_failed(who: Program, tool: str, text: str) -> bool:
    """The result of `tool` says, in the program's own fixed words, that the call failed."""
    return _says(who, tool, text, _FAILED, _SHELL_FAILED)


def _says(
    who: Program,
    tool: str,
    text: str,
    forms: dict[Program, re.Pattern[str]],
    shells: dict[Program, re.Pattern[str]],
) -> bool:
    if (form := forms.get(who)) and form.match(text):
        return True
    form = shells.get(who)
    return bool(form and tool in _SHELLS.get(who, ()) and form.search(text[-_END:]))


def real_name(who: Program, name: str, arguments: str) -> str | None:
    """The name that was called, where OpenCode put `invalid` in its place; else None."""
    if who == "opencode" and name == "invalid":
        return string(record(parsed(arguments)).get("tool")) or None
    return None


# --- tools --------------------------------------------------------------------------------------

SPAWNERS: dict[Program, frozenset[str]] = {
    "codex": frozenset(
        {
            "multi_agent_v1",
            "mcp__codex_tui.create_thread",
            "mcp__codex_tui.fork_thread",
            "mcp__codex_tui.send_message_to_thread",
        }
    ),
    "opencode": frozenset({"task"}),
    "claude": frozenset({"Agent", "Workflow"}),
    "qwen": frozenset({"agent"}),
    "cline": frozenset({"spawn_agent", "team_spawn_teammate", "team_run_task"}),
}
"""Tools that start sub-agents or other sessions, by full name or by namespace."""

PLACEHOLDERS: dict[Program, frozenset[str]] = {"claude": frozenset({"DeferredToolPlaceholder"})}
"""Entries of `tools` that must never be called."""


def visible(who: Program, tools: tuple[OfferedTool, ...], *, subagents: bool) -> tuple[OfferedTool, ...]:
    """The tools that ChatGPT sees; without those that start sub-agents unless `subagents`."""
    hidden = frozenset[str]() if subagents else SPAWNERS.get(who, frozenset())
    return tuple(
        tool for tool in tools if tool.full_name not in hidden and (tool.namespace or "") not in hidden
    )
