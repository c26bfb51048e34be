"""Claude Code's project files: `~/.claude/projects/<directory>/<session id>.jsonl`, and those of its
sub-agents beside it, `<session id>/subagents/agent-<agent id>.jsonl`.  Pure but for `find`."""

import os
from pathlib import Path

from chappie_agents.hosts.model.native.lines import Line, Pen, content, spoken, time
from chappie_bridge.codec.loose import Record, blocks_of, record, string
from chappie_bridge.codec.programs import read_user
from chappie_bridge.wire.blocks import Block, Text


def find(home: Path, session: str) -> Path | None:
    """`session` of a sub-agent is `<session id>/…<agent id>`.  Blocks."""
    base = Path(os.environ.get("CLAUDE_CONFIG_DIR") or home / ".claude")
    above, _, agent = session.partition("/")
    file = f"{above}/subagents/agent-{agent.rpartition('/')[2]}.jsonl" if agent else f"{session}.jsonl"
    return next(iter((base / "projects").glob(f"*/{file}")), None)


def read(told: Record) -> Line | None:
    """One line; None for what is no part of a conversation, and for a sub-agent's."""
    return None if told.get("isSidechain") is True else read_below(told)


def read_below(told: Record) -> Line | None:
    """One line of a sub-agent's own file."""
    kind, name = told.get("type"), string(told.get("uuid"))
    parent = string(told.get("parentUuid")) or string(told.get("logicalParentUuid")) or None
    if not name:
        return None
    pen = Pen(name, time(told.get("timestamp")))
    message = record(told.get("message"))
    begins = False
    if kind == "user" and told.get("isCompactSummary") is True:
        pen.write("summary", spoken(message.get("content")))
    elif kind == "user" and told.get("isMeta") is not True:
        begins = _user(pen, message)
    elif kind == "assistant":
        _assistant(pen, message)
    return Line(tuple(pen.entries), name, parent, turns=begins)


def _user(pen: Pen, message: Record) -> bool:
    """True: the person typed."""
    said: list[Block] = []
    for part in blocks_of(message.get("content")):
        given = record(part)
        if given.get("type") == "tool_result":
            pen.result(
                string(given.get("tool_use_id")),
                content(given.get("content")),
                failed=given.get("is_error") is True,
            )
            continue
        for known in spoken([part]):
            reading = read_user("claude", known.text) if isinstance(known, Text) else None
            if reading is None:
                said.append(known)
            elif reading.kind == "said":
                said.append(Text(text=reading.text))
            elif reading.kind == "abort":
                pen.stopped()
    if said:
        pen.write("user", tuple(said))
    return bool(said)


def _assistant(pen: Pen, message: Record) -> None:
    said = spoken(message.get("content"))
    if said:
        pen.write("assistant", said)
    for part in blocks_of(message.get("content")):
        call = record(part)
        if call.get("type") == "tool_use":
            pen.call(string(call.get("id")), string(call.get("name")), call.get("input"))
