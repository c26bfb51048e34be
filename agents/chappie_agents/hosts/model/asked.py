"""What a program asks its model for beside the person's work: shown to ChatGPT as model requests, answered
from a digest when nobody does.  Never grants a permission: classifiers do not come here."""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable

from chappie_agents.hosts.model.hold import Hold
from chappie_bridge.codec.side import digest, local_answer
from chappie_bridge.codec.tail import trace
from chappie_bridge.codec.turn import Answer, Turn
from chappie_bridge.wire.errors import RequestClosed
from chappie_bridge.wire.values import ModelRequest

MAX_ANSWERED = 8
"""Answers kept for a program that lost the connection and asks the same again."""

_TAGGED = re.compile(r"<summary>.*</summary>", re.DOTALL)


class _Open:
    __slots__ = ("fallback", "hold", "program", "request")

    def __init__(self, request: ModelRequest, hold: Hold, program: str, fallback: Answer) -> None:
        self.request, self.hold, self.program, self.fallback = request, hold, program, fallback


class Asked:
    """The open model requests of one session.  `opened` and `ended` tell the broker."""

    def __init__(self, opened: Callable[[ModelRequest], None], ended: Callable[[str], None]) -> None:
        self._opened, self._ended = opened, ended
        self._open: dict[str, _Open] = {}
        self._answered: OrderedDict[str, Answer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def open(self) -> tuple[ModelRequest, ...]:
        return tuple(each.request for each in self._open.values())

    def ask(self, turn: Turn, hold: Hold) -> str:
        """Show a request; the same one again only gets the new connection.  Returns its id."""
        name = _name(turn)
        if (known := self._answered.get(name)) is not None:
            hold.give(known)
        elif (waiting := self._open.get(name)) is not None:
            waiting.hold.replace()
            waiting.hold = hold
        else:
            request = ModelRequest(id=name, kind=turn.side or "text", instructions="", content=turn.ask)
            fallback = local_answer(turn) or digest(turn)
            self._open[name] = _Open(request, hold, turn.program, fallback)
            self._opened(request)
        return name

    def answer(self, name: str, text: str) -> None:
        """:raises RequestClosed: it is not open."""
        waiting = self._open.get(name)
        if waiting is None:
            raise RequestClosed
        if waiting.program == "claude" and waiting.request.kind == "compaction" and not _TAGGED.search(text):
            text = f"<summary>\n{text}\n</summary>"
        self._end(name, Answer(text=text))

    def fall_back(self, name: str) -> None:
        """Nobody answered in time."""
        waiting = self._open.get(name)
        if waiting is not None:
            self._end(name, waiting.fallback)

    def given_up(self, name: str, hold: Hold) -> None:
        """The program does not wait for it any more, unless it came again over another connection."""
        waiting = self._open.get(name)
        if waiting is not None and waiting.hold is hold:
            del self._open[name]
            self._ended(name)

    def _end(self, name: str, answer: Answer) -> None:
        waiting = self._open.pop(name)
        self._answered[name] = answer
        if len(self._answered) > MAX_ANSWERED:
            self._answered.popitem(last=False)
        waiting.hold.give(answer)
        self._ended(name)


def _name(turn: Turn) -> str:
    """The same request has the same id, also after a restart."""
    mark = hashlib.sha256(repr((turn.session_id, trace(turn), turn.ask)).encode("utf-8", "backslashreplace"))
    return f"req_{mark.hexdigest()[:24]}"
