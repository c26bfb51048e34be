"""What a session of a program is told: its owner's settings, and what it can find out beside the requests.
No logic."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from chappie_agents.answers import Surroundings
from chappie_agents.callers import Callers
from chappie_agents.hosts.model.turns import GRACE
from chappie_agents.policy import Policy
from chappie_bridge.wire.ids import CallId
from chappie_bridge.wire.values import ToolResult

if TYPE_CHECKING:
    from chappie_agents.hosts.model.session import ProgramSession

WAKE = "Continue: ChatGPT has work for this session."
"""What a woken program is told in the person's place; never offered as the person's words."""


class Habits(Protocol):
    """What the session knows of its program beside its requests."""

    def how_to_listen(self) -> str:
        """What the person must do so that the program asks its model again."""
        ...

    async def wake(self, session: "ProgramSession", text: str) -> bool:
        """Make the program begin a turn with `text`.  False: it cannot be."""
        ...

    def surroundings(self) -> Surroundings:
        """Blocks."""
        ...

    async def follow(self, session: "ProgramSession") -> None:
        """Runs beside the session, until cancelled."""
        ...

    async def evidence(self) -> str:
        """What the program's own transcript says last; empty where nothing can be read."""
        ...

    async def recorded(self, calls: Sequence[CallId]) -> dict[CallId, ToolResult]:
        """Results that stand in the program's own transcript."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times in seconds.  `no_word`: a batch without any word for so long says so.  `summary_wait`: how long
    a request for text waits for ChatGPT.  `keep_alive`: between two real events of the protocol while a
    request is held.  `subagents`: tools that start them are shown and may be called.
    `titles`: they are ChatGPT's work, too.  `callers` says which other sessions may do something here,
    `policy` which files `transfer` may reach; what tools may do is the program's own affair."""

    no_word: float = 60.0
    summary_wait: float = 120.0
    keep_alive: float = 10.0
    grace: float = GRACE
    wake_wait: float = 30.0
    subagents: bool = False
    titles: bool = False
    callers: Callers = field(default_factory=Callers)
    policy: Policy = field(default_factory=Policy)
