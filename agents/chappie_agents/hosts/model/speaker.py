"""The open request of a program and what is said into it; keeps what a dropped connection must hear again."""

from collections import deque

from chappie_agents.hosts.model.hold import Hold
from chappie_bridge.codec.tail import Trace, trace
from chappie_bridge.codec.turn import Answer, AnswerCall, Turn

MAX_PROGRESS = 16
"""Progress messages kept for a program that lost the connection before the end of its answer."""


class Speaker:
    """`hold` is open until an answer that ends was given to it and left, or the program closed it."""

    def __init__(self) -> None:
        self.hold: Hold | None = None
        self.trace: Trace | None = None
        """Of the newest main request."""
        self._streams = True
        self._progress: deque[str] = deque(maxlen=MAX_PROGRESS)
        self._unsaid: list[str] = []

    def take(self, turn: Turn, hold: Hold, *, again: bool) -> bool:
        """Speak into this one from now on; what was said before is said again if it is the same request.
        True: it is."""
        here = trace(turn)
        same = again or here == self.trace
        self.drop()
        self.hold, self.trace, self._streams = hold, here, turn.stream
        if not same:
            self._progress.clear()
        self._unsaid.clear()
        for text in self._progress:
            self._say(text)
        return same

    def drop(self) -> None:
        """Nobody reads the one before any more."""
        if self.hold is not None:
            self.hold.replace()
            self.hold = None

    def progress(self, text: str) -> None:
        """Goes out at once where the answer is a stream, else with the end of the answer."""
        self._progress.append(text)
        self._say(text)

    def text(self, text: str) -> None:
        """The end of the turn."""
        if self.hold is not None:
            self.hold.give(Answer(text=self._whole(text)))
            self.hold = None

    def calls(self, calls: tuple[AnswerCall, ...]) -> None:
        if self.hold is not None:
            self.hold.give(Answer(text=self._whole(""), calls=calls))

    def _say(self, text: str) -> None:
        if self.hold is not None and self._streams:
            self.hold.give(Answer(text=text, final=False))
        else:
            self._unsaid.append(text)

    def _whole(self, text: str) -> str:
        told, self._unsaid = self._unsaid, []
        return "\n\n".join([*told, *([text] if text else [])])
