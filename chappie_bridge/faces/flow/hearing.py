"""What a stream, or a stored conversation, says: text as it grows, calls that are ours, the end.  Pure; never
raises on what the other side sends."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from pydantic import JsonValue

from chappie_bridge.codec.delta import Began, Broken, Control, Decoder, Event, Grew, Snapshot
from chappie_bridge.codec.loose import Record, parsed, record, series, string
from chappie_bridge.codec.unicode import clean_text

LOCAL = "local."
HANDOFF = "handoff"
"""The one tool that is also addressed without `local.`."""

MAX_KNOWN = 100_000
"""Messages of one conversation that are remembered as heard."""

_TEXT = ("/message/content/text", "/message/content/parts/")


class LocalCall(NamedTuple):
    """A message addressed to a tool of ours: its id, the tool, its content."""

    id: str
    tool: str
    text: str


class Said(NamedTuple):
    """More text of a message.  `channel`: `final`, `commentary` (the tool trail) or `analysis`."""

    channel: str
    message: str
    recipient: str
    text: str


class Found(NamedTuple):
    """What an end leaves.  `parent`: the assistant's last message; `foreign`: a local recipient that is not
    ours."""

    calls: tuple[LocalCall, ...] = ()
    answered: bool = False
    parent: str | None = None
    foreign: str = ""
    said: tuple[Said, ...] = ()


class Hearing:
    """All streams of a conversation, one after the other.  `tools`: names that are ours."""

    def __init__(self, tools: Collection[str]) -> None:
        self.conversation: str | None = None
        self.fault = ""
        """Why the stream cannot be understood."""
        self._tools = tools
        self._known: set[str] = set()
        self.begin("")

    def begin(self, sent: str) -> None:
        """A new stream, that answers the message `sent`."""
        self._decoder = Decoder()
        self._sent = sent
        self._answering = False
        self._complete = False
        self.fault = ""
        self._channels: dict[int, str] = {}
        self._whole: dict[str, Record] = {}
        self._shown: dict[str, int] = {}
        """Characters shown of each message."""

    def feed(self, data: bytes) -> list[Said]:
        """What more there is to show."""
        return [said for event in self._decoder.feed(data) if (said := self._one(event)) is not None]

    def end(self) -> Found:
        """The stream is over."""
        proper = self._complete or self._decoder.ended
        messages = [record(record(self._decoder.root(at)).get("message")) for at in self._channels]
        return self._found([*messages, *self._whole.values()], texts=proper, ends=proper)

    def read(self, conversation: JsonValue) -> Found:
        """A conversation as it is stored: what follows the message that was sent."""
        stored = record(conversation)
        mapping = record(stored.get("mapping"))
        chain: list[Record] = []
        at = string(stored.get("current_node"))
        while at and at != self._sent and len(chain) < len(mapping):
            node = record(mapping.get(at))
            chain.append(record(node.get("message")))
            at = string(node.get("parent"))
        if at != self._sent:
            return Found()  # not a continuation of what was said: nothing of it is run
        chain.reverse()
        said = [each for message in chain if (each := self._more(message)) is not None]
        return self._found(chain, texts=False, ends=True)._replace(said=tuple(said))

    def _found(self, messages: list[Record], *, texts: bool, ends: bool) -> Found:
        """`texts`: a call is whole when its text is JSON, whatever its status; `ends`: `end_turn` counts."""
        calls: list[LocalCall] = []
        answered, parent, foreign = False, None, ""
        for message in messages:
            name, recipient = string(message.get("id")), string(message.get("recipient"))
            if string(record(message.get("author")).get("role")) != "assistant" or not name:
                continue
            finished = message.get("status") == "finished_successfully"
            if recipient.startswith(LOCAL) or recipient == HANDOFF:
                tool, text = recipient.removeprefix(LOCAL), _text(message)
                code = string(record(message.get("content")).get("content_type")) == "code"
                if not code or not (finished or (texts and isinstance(parsed(text), dict))):
                    continue
                if tool not in self._tools:
                    foreign = recipient
                elif name not in self._known:
                    calls.append(LocalCall(name, tool, text))
            elif not finished:
                continue
            else:
                answered = answered or (ends and message.get("end_turn") is True)
            parent = name
            self._remember(name)
        return Found(tuple(calls), answered, parent, foreign)

    def _one(self, event: Event) -> Said | None:
        match event:
            case Began(channel=channel, value=value):
                return self._began(channel, record(value))
            case Grew(channel=channel, path=path, text=text) if path.startswith(_TEXT):
                message = record(record(self._decoder.value(channel)).get("message"))
                return self._said(message, text) if channel in self._channels else None
            case Control(kind=kind, body=body):
                self._complete = self._complete or kind == "message_stream_complete"
                self._named(body)
            case Snapshot(value=value):
                return self._snapshot(value)
            case Broken(reason=reason, event=number):
                self.fault = f"The stream cannot be read: {reason} (event {number}). Nothing of it was run."
            case _:
                pass
        return None

    def _began(self, channel: int, value: Record) -> Said | None:
        self._named(value)
        self._channels.pop(channel, None)
        message = record(value.get("message"))
        name = string(message.get("id"))
        if error := string(value.get("error")):
            self.fault = f"The other side reports: {clean_text(error[:300])[0]}"
        if name == self._sent:
            self._answering = True
            return None
        if not name or name in self._known:
            return None
        # Before what was sent is repeated, whole messages are earlier ones: they are not of this turn.
        if not self._answering and message.get("status") == "finished_successfully":
            return None
        self._channels[channel] = name
        text = _text(message)
        return self._said(message, text) if text else None

    def _snapshot(self, value: Record) -> Said | None:
        self._named(value)
        if error := string(value.get("error")):
            self.fault = f"The other side reports: {clean_text(error[:300])[0]}"
        message = record(value.get("message"))
        name = string(message.get("id"))
        if name == self._sent:
            self._answering = True
            return None
        earlier = not self._answering and message.get("status") == "finished_successfully"
        if not name or name in self._known or (earlier and name not in self._whole):
            return None
        self._whole[name] = message
        return self._more(message)

    def _more(self, message: Record) -> Said | None:
        """What was not shown of a message that is here as a whole."""
        text = _text(message)
        shown = self._shown.get(string(message.get("id")), 0)
        return self._said(message, text[shown:]) if len(text) > shown else None

    def _said(self, message: Record, text: str) -> Said | None:
        role = string(record(message.get("author")).get("role"))
        name, recipient = string(message.get("id")), string(message.get("recipient")) or "all"
        if role not in ("assistant", "tool") or not text:
            return None
        self._shown[name] = self._shown.get(name, 0) + len(text)
        channel = string(message.get("channel")) or "final"
        if (role == "tool" or recipient != "all") and channel == "final":
            channel = "commentary"
        return Said(channel, name, recipient, text)

    def _named(self, value: Record) -> None:
        self.conversation = string(value.get("conversation_id")) or self.conversation

    def _remember(self, name: str) -> None:
        if len(self._known) < MAX_KNOWN:
            self._known.add(name)


def last_assistant(conversation: JsonValue) -> str | None:
    """The assistant's last message of a conversation as it is stored."""
    stored = record(conversation)
    mapping = record(stored.get("mapping"))
    at = string(stored.get("current_node"))
    for _ in range(len(mapping)):
        node = record(mapping.get(at))
        if string(record(record(node.get("message")).get("author")).get("role")) == "assistant":
            return at
        at = string(node.get("parent"))
    return None


def _text(message: Record) -> str:
    content = record(message.get("content"))
    return string(content.get("text")) or "".join(_strings(content.get("parts")))


def _strings(parts: JsonValue) -> Iterator[str]:
    return (part for part in series(parts) if isinstance(part, str))
