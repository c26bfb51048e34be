"""Pi's session file: `~/.pi/agent/sessions/<directory>/<time>_<session id>.jsonl`.  Pure but for `find`."""

from pathlib import Path

from chappie_agents.hosts.model.native.lines import Line, Pen, content, spoken, time
from chappie_bridge.codec.loose import Record, blocks_of, record, string
from chappie_bridge.codec.programs import is_failed
from chappie_bridge.wire.blocks import Text


def find(home: Path, session: str) -> Path | None:
    """Blocks."""
    return max((home / ".pi/agent/sessions").glob(f"*/*_{session}.jsonl"), default=None)


def read(told: Record) -> Line | None:
    """One line; None for what is no part of a conversation."""
    name, parent = string(told.get("id")), told.get("parentId")
    pen = Pen(name, time(told.get("timestamp")))
    message = record(told.get("message"))
    match told.get("type"):
        case "message":
            _message(pen, message)
        case "compaction" | "branch_summary":
            pen.write("summary", (Text(text=string(told.get("summary"))),))
        case "session" | None:
            return None
        case _:
            pass
    above = string(parent) or None
    return Line(tuple(pen.entries), name, above, turns=True)


def _message(pen: Pen, message: Record) -> None:
    match message.get("role"):
        case "user":
            pen.write("user", spoken(message.get("content")))
        case "assistant":
            said = spoken(message.get("content"))
            if said:
                pen.write("assistant", said)
            for part in blocks_of(message.get("content")):
                call = record(part)
                if call.get("type") == "toolCall":
                    pen.call(string(call.get("id")), string(call.get("name")), call.get("arguments"))
            if message.get("stopReason") == "aborted":
                pen.stopped()
            elif message.get("stopReason") == "error":
                pen.write("notice", (Text(text=string(message.get("errorMessage")) or "The turn failed."),))
        case "toolResult":
            given, spent = content(message.get("content")), message.get("durationMs")
            tool = string(message.get("toolName"))
            text = "".join(part.text for part in given if isinstance(part, Text))
            pen.result(
                string(message.get("toolCallId")),
                given,
                failed=message.get("isError") is True or is_failed("pi", tool, text),
                name=tool,
                spent=spent if isinstance(spent, int) else None,
            )
        case "bashExecution":
            ran = f"$ {string(message.get('command'))}\n{string(message.get('output'))}"
            pen.write("user", (Text(text=ran),))
        case _:
            pass
