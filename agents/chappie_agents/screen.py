"""What a person at the agent may see of a session.  Shows nothing itself."""

from collections.abc import Sequence
from typing import Protocol

from chappie_agents.policy import Approval
from chappie_bridge.wire.blocks import Content
from chappie_bridge.wire.messages import Finished
from chappie_bridge.wire.values import Origin, ToolCall, ToolResult


class Screen(Protocol):
    """Told in one step of the loop: no method may block or raise."""

    def batch(self, origin: Origin, calls: Sequence[ToolCall]) -> None:
        """These calls begin."""
        ...

    def result(self, result: ToolResult) -> None: ...

    def ended(self, finished: Finished) -> None:
        """An operation is over, or was refused whole."""
        ...

    def chat(self, origin: Origin, text: str, *, final: bool) -> None: ...

    def typed(self, content: Content) -> None:
        """Somebody typed input elsewhere, at a shell."""
        ...

    def notice(self, text: str) -> None: ...

    def asked(self, approval: Approval) -> None:
        """The owner must say yes or no."""
        ...


class Blank:
    """A screen that nobody looks at."""

    def batch(self, origin: Origin, calls: Sequence[ToolCall]) -> None: ...
    def result(self, result: ToolResult) -> None: ...
    def ended(self, finished: Finished) -> None: ...
    def chat(self, origin: Origin, text: str, *, final: bool) -> None: ...
    def typed(self, content: Content) -> None: ...
    def notice(self, text: str) -> None: ...
    def asked(self, approval: Approval) -> None: ...
