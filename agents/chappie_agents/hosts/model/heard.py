"""What a person typed at the program, told from a history that is sent again and again.  Pure."""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

from chappie_agents.hosts.model.turns import compacted
from chappie_bridge.codec.turn import Said, Turn
from chappie_bridge.wire.blocks import Content
from chappie_bridge.wire.ids import InputId, SessionId

MAX_HEARD = 256
"""Texts of a session that are known again."""


class Heard:
    """The texts that were offered, by an id made of their place and content: the same text at the same place
    has the same id, also after a restart."""

    def __init__(self, session: SessionId, known: Mapping[InputId, str]) -> None:
        """`known`: from an earlier process, `all` of then."""
        self._session = session
        self.all = OrderedDict(known)

    def fresh(self, turn: Turn) -> list[tuple[InputId, Content]]:
        """What was typed since the last answer and is not known yet.

        A compaction moves what stays to other places, and may put its summary after the person's last words:
        there a text is known by its content alone."""
        said = list(turn.said)
        moved = compacted(turn) and turn.anchor in ("summary", "answer")
        if not said and moved and (last := turn.last_said) is not None:
            said = [last]
        found: list[tuple[InputId, Content]] = []
        for piece in said:
            mark = _digest(repr(piece.content))
            name = self._name(piece, mark)
            if name in self.all or (moved and mark in self.all.values()):
                continue
            self.all[name] = mark
            if len(self.all) > MAX_HEARD:
                self.all.popitem(last=False)
            found.append((name, piece.content))
        return found

    def _name(self, piece: Said, mark: str) -> InputId:
        return InputId(f"in_{_digest(f'{self._session} {piece.at} {mark}')}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:20]
