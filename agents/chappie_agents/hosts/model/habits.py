"""What a session knows of its program beside its requests: what the person must do, where its instruction
file is, how it is woken.  Reads files of the program; changes none."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from chappie_agents.answers import Surroundings
from chappie_agents.hosts.model.session import ProgramSession
from chappie_bridge.wire.ids import CallId
from chappie_bridge.wire.values import ToolResult

log = logging.getLogger("chappie.model")

_INSTRUCTIONS = {
    "pi": (".pi/agent/AGENTS.md",),
    "codex": (".codex/AGENTS.md",),
    "opencode": (".config/opencode/AGENTS.md",),
    "claude": (".claude/CLAUDE.md",),
    "qwen": (".qwen/QWEN.md",),
}
"""Where a program keeps its user's own instructions, below the home directory."""

_NAMES = {"pi": "Pi", "codex": "Codex", "opencode": "OpenCode", "claude": "Claude Code", "qwen": "Qwen Code"}

Waker = Callable[[ProgramSession, str], Awaitable[bool]]


class Plain:
    """Implements `session.Habits` for a program whose transcript nobody reads."""

    def __init__(self, program: str, wake: Waker | None, *, home: Path | None = None) -> None:
        """`wake` makes an idle program begin a turn, where it can be.  `home`: the user's directory."""
        self._program, self._waker, self._home = program, wake, home or Path.home()

    def how_to_listen(self) -> str:
        name = _NAMES.get(self._program, "the program")
        return (
            f"Nobody waits in {name}: its turn is over, or another model is selected. Ask the person to "
            "select the model `chappie` there and to send a message, such as “continue”."
        )

    async def wake(self, session: ProgramSession, text: str) -> bool:
        return self._waker is not None and await self._waker(session, text)

    def surroundings(self) -> Surroundings:
        for place in _INSTRUCTIONS.get(self._program, ()):
            if (self._home / place).is_file():
                return Surroundings(global_agents=str(self._home / place))
        return Surroundings()

    async def follow(self, session: ProgramSession) -> None:
        """Nothing is known of its transcript."""

    async def evidence(self) -> str:
        return ""

    async def recorded(self, calls: Sequence[CallId]) -> dict[CallId, ToolResult]:
        return {}
