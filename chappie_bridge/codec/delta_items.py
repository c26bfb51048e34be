"""The delta stream as items of a WebSocket: repeats dropped, put in order, then decoded.  Pure; never raises
on input."""

from collections import OrderedDict

from pydantic import JsonValue

from chappie_bridge.codec.delta import Broken, Decoder, Event
from chappie_bridge.codec.loose import parsed, record, string

MAX_WAITING = 1024
"""Items that came before the one they follow."""

MAX_SEEN = 65_536
"""Ids remembered, to know a repeat by."""


class Items:
    """The frames of one topic.  An item that names no predecessor begins; so does the first that is seen,
    whatever it names (joined late, so that the encoding may not be named either)."""

    def __init__(self) -> None:
        self._decoder = Decoder(assume=True)
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, tuple[str, str]] = {}
        self._last: str | None = None
        self._frames = 0
        self._broken = False

    @property
    def decoder(self) -> Decoder:
        return self._decoder

    def feed(self, frame: str | bytes) -> list[Event]:
        """What one frame of the socket brings; frames of other kinds bring nothing."""
        if self._broken:
            return []
        self._frames += 1
        text = frame.decode("utf-8", "replace") if isinstance(frame, bytes) else frame
        item = _item(parsed(text))
        if item is None:
            return []
        name, encoded = string(item.get("stream_item_id")), string(item.get("encoded_item"))
        parent = item.get("parent_stream_item_id")
        if not name or name in self._seen:
            return []
        self._remember(name)
        if self._last is not None and isinstance(parent, str) and parent != self._last:
            self._waiting[parent] = name, encoded
            if len(self._waiting) > MAX_WAITING:
                self._broken = True
                return [Broken("too many items wait for one that does not come", self._frames)]
            return []
        events = self._decode(name, encoded)
        while self._last in self._waiting:
            events += self._decode(*self._waiting.pop(self._last))
        return events

    def _decode(self, name: str, encoded: str) -> list[Event]:
        self._last = name
        return self._decoder.feed(encoded.encode("utf-8", "surrogatepass"))

    def _remember(self, name: str) -> None:
        self._seen[name] = None
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)


def _item(frame: JsonValue) -> dict[str, JsonValue] | None:
    payload = record(record(frame).get("payload"))
    item = record(payload.get("payload"))
    fits = (
        record(frame).get("type") == "message"
        and payload.get("type") == "conversation-turn-stream"
        and item.get("type") == "stream-item"
    )
    return dict(item) if fits else None
