"""What the owner of this device allows: roots, rules per tool, and whom to ask.  Opens no file itself.

A root holds for paths that tools are given.  It is no sandbox for `bash`: a command reaches whatever
the user who runs the agent reaches, and no list of forbidden commands would change that.
"""

import os
import re
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePath, PureWindowsPath
from typing import NewType, TypeVar

import anyio

from chappie_bridge.wire.errors import BadArguments, Denied, Overloaded, RequestClosed
from chappie_bridge.wire.ids import ConversationId, Mint, SessionId
from chappie_bridge.wire.values import MAX_APPROVALS

MAX_REMEMBERED = 1024
"""Answers kept in memory, the oldest forgotten first."""

MAX_WHAT = 2000
"""Characters of a command or path shown in a question."""

ApprovalId = NewType("ApprovalId", str)
"""One question to the owner of the device."""

_mint = Mint()
_K = TypeVar("_K", bound=Hashable)


class Decision(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Scope(StrEnum):
    """How far an answer reaches."""

    ONCE = "once"
    CONVERSATION = "conversation"
    DIRECTORY = "directory"


@dataclass(frozen=True)
class Rule:
    """`tool` is a tool's name or `*`; `root` limits the rule to one directory tree."""

    tool: str
    decision: Decision
    root: Path | None = None


@dataclass(frozen=True)
class Approval:
    """A question to the owner: may `tool` do `what` at `path`?  `path` is resolved."""

    tool: str
    path: Path
    writing: bool
    what: str
    directory: Path
    session: SessionId
    conversation: ConversationId | None = None
    id: ApprovalId = field(default_factory=lambda: ApprovalId(_mint.text("ap_", 16)))


@dataclass(frozen=True)
class Answer:
    """`by` says where it was given (terminal, dashboard), for the one who answers second."""

    allowed: bool
    scope: Scope = Scope.ONCE
    by: str = ""


def _components(path: PurePath) -> tuple[str, ...] | None:
    """What two paths are compared by; None for a path that is not absolute or still holds `..`."""
    if isinstance(path, PureWindowsPath):
        text = re.sub(r"(?i)^\\\\\?\\unc\\", r"\\\\", str(path))
        path = PureWindowsPath(text.removeprefix("\\\\?\\"))
    if not path.is_absolute() or ".." in path.parts:
        return None
    if isinstance(path, PureWindowsPath):
        # Windows itself ignores case and dots or spaces at the end of a name.
        return (path.anchor.casefold(), *(part.casefold().rstrip(". ") for part in path.parts[1:]))
    return ("/", *path.parts[1:])


def inside(root: PurePath, path: PurePath) -> bool:
    """Is `path` the directory `root` or below it?  By components, in the flavour of the two paths.

    Pure: both must be resolved already; a relative path or one with `..` is inside nothing.
    """
    outer, inner = _components(root), _components(path)
    return outer is not None and inner is not None and inner[: len(outer)] == outer


def _climbs(component: str) -> bool:
    decoded = component.lower().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/")
    return decoded != component.lower() and ".." in decoded.split("/")


def absolute(path: str, cwd: Path) -> Path:
    """`path` with `~/` and `cwd` filled in and every link resolved, as far as it exists.

    Percent signs are plain characters; a component that only decodes to `..` is nobody's file name and
    is refused.  Raises `BadArguments`, `Denied`.
    """
    if not path or "\0" in path:
        raise BadArguments("A path must not be empty or contain a NUL character.")
    if any(_climbs(component) for component in path.split("/")):
        raise Denied(f"The path {path!r} contains an encoded `..`; paths are taken literally.")
    if path == "~" or path.startswith("~/"):
        path = str(Path.home() / path[1:].lstrip("/"))
    return Path("/" + os.path.realpath(cwd / path).lstrip("/"))


def _resolved(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(Path(os.path.realpath(path)) for path in paths)


@dataclass(frozen=True)
class Policy:
    """The first rule that fits decides; without one a path is allowed, if it lies inside a root.

    `roots`: where tools may read and write; empty means everywhere, and `describe` says so.
    `readable`: directories outside the roots that may be read (the spool, the user's skills).
    `approve`: asks the owner; `Approvals.ask` fits.  Without it, `ask` is a refusal.
    """

    rules: tuple[Rule, ...] = ()
    roots: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    approve: Callable[[Approval], Awaitable[bool]] | None = None

    def __post_init__(self) -> None:
        # A root is what its name led to when the owner set it, whatever becomes of its links.
        object.__setattr__(self, "roots", _resolved(self.roots))
        object.__setattr__(self, "readable", _resolved(self.readable))
        rules = tuple(
            rule if rule.root is None else Rule(rule.tool, rule.decision, Path(os.path.realpath(rule.root)))
            for rule in self.rules
        )
        object.__setattr__(self, "rules", rules)

    def _within(self, path: Path, writing: bool) -> bool:
        reachable = self.roots if writing else (*self.roots, *self.readable)
        return not self.roots or any(inside(root, path) for root in reachable)

    def resolve(self, path: str, cwd: Path, tool: str, writing: bool) -> tuple[Path, Decision]:
        """The real path, links of its deepest existing parent followed, and what applies to it.

        Open it with `chappie_agents.resolved`, which refuses links that appeared since.
        Raises `BadArguments`, `Denied` for a path that cannot be meant.
        """
        found = absolute(path, cwd)
        if not self._within(found, writing):
            return found, Decision.DENY
        for rule in self.rules:
            if rule.tool in (tool, "*") and (rule.root is None or inside(rule.root, found)):
                return found, rule.decision
        return found, Decision.ALLOW

    async def permit(
        self,
        path: str,
        *,
        cwd: Path,
        tool: str,
        writing: bool,
        session: SessionId,
        conversation: ConversationId | None = None,
        what: str = "",
    ) -> Path:
        """The real path, once it is allowed; waits for the owner where a rule says `ask`.

        The wait ends with an answer or with the cancellation of the call: silence is not a No.
        Raises `Denied`, `BadArguments`, `Overloaded`.
        """
        found, decision = self.resolve(path, cwd, tool, writing)
        if decision is Decision.ALLOW:
            return found
        if decision is Decision.DENY:
            if not self._within(found, writing):
                listed = ", ".join(str(root) for root in self.roots)
                raise Denied(
                    f"{str(found)!r} is outside the directories that this device opens to tools: {listed}.",
                    hint="Work inside these directories, or ask the owner of the device to add one.",
                )
            raise Denied(f"The owner of this device does not allow `{tool}` at {str(found)!r}.")
        if self.approve is None:
            raise Denied(
                f"`{tool}` needs the owner's approval on this device, and nobody is there to ask.",
                hint="Start the agent on a terminal or open the dashboard, or let the owner set a rule.",
            )
        approval = Approval(
            tool=tool,
            path=found,
            writing=writing,
            what=(what or str(found))[:MAX_WHAT],
            directory=cwd,
            session=session,
            conversation=conversation,
        )
        if not await self.approve(approval):
            raise Denied(f"The owner of this device was asked and did not allow `{tool}` here.")
        return found

    def describe(self) -> str:
        """The policy in words, for logs, `doctor` and the owner."""
        if self.roots:
            lines = ["roots: " + ", ".join(str(root) for root in self.roots)]
            lines += ["readable too: " + ", ".join(map(str, self.readable))] if self.readable else []
            lines.append("`bash` starts inside a root but is not confined by it")
        else:
            lines = ["no root set: tools reach every file that this user can reach"]
        for rule in self.rules:
            where = f" under {rule.root}" if rule.root else ""
            lines.append(f"{rule.decision}: {'every tool' if rule.tool == '*' else rule.tool}{where}")
        if any(rule.decision is Decision.ASK for rule in self.rules) and self.approve is None:
            lines.append("nobody to ask: `ask` is a refusal")
        return "\n".join(lines)


class _Waiting:
    def __init__(self, approval: Approval) -> None:
        self.approval = approval
        self.answered = anyio.Event()
        self.answer: Answer | None = None

    def settle(self, answer: Answer) -> None:
        self.answer = answer
        self.answered.set()


class Approvals:
    """The questions that wait for the owner, and the answers that reach further than one call.

    The first answer wins; whoever answers second gets the first answer back.  An answer for the
    conversation or the directory also settles the other waiting questions that it covers.
    """

    def __init__(
        self, asked: Callable[[Approval], None] = lambda _: None, changed: Callable[[], None] = lambda: None
    ) -> None:
        """`asked` is told of every new question, `changed` when one comes or goes."""
        self._asked, self._changed = asked, changed
        self._waiting: dict[ApprovalId, _Waiting] = {}
        self._remembered: dict[Hashable, Answer] = {}
        self._answered: dict[ApprovalId, Answer] = {}

    @property
    def pending(self) -> tuple[Approval, ...]:
        """Oldest first."""
        return tuple(waiting.approval for waiting in self._waiting.values())

    async def ask(self, approval: Approval) -> bool:
        """Waits for the owner unless an earlier answer covers this.  Raises `Overloaded`."""
        known = self._known(approval)
        if known is not None:
            return known.allowed
        if len(self._waiting) >= MAX_APPROVALS:
            raise Overloaded("Too many questions already wait for the owner of this device.")
        waiting = self._waiting[approval.id] = _Waiting(approval)
        try:
            self._changed()
            self._asked(approval)
            await waiting.answered.wait()
        finally:
            self._waiting.pop(approval.id, None)
            self._changed()
        return waiting.answer is not None and waiting.answer.allowed

    def answer(self, approval_id: ApprovalId, answer: Answer) -> Answer:
        """The answer that counts: this one, or the earlier one.

        Raises `RequestClosed` for a question that was never asked or was withdrawn.
        """
        if approval_id in self._answered:
            return self._answered[approval_id]
        waiting = self._waiting.get(approval_id)
        if waiting is None:
            raise RequestClosed("This question is not waiting for an answer: its call ended.")
        self._settle(waiting, answer)
        key = _reach(waiting.approval, answer.scope)
        if key is not None:
            _remember(self._remembered, key, answer)
            for other in tuple(self._waiting.values()):
                if _reach(other.approval, answer.scope) == key:
                    self._settle(other, answer)
        return answer

    def _settle(self, waiting: _Waiting, answer: Answer) -> None:
        self._waiting.pop(waiting.approval.id, None)
        _remember(self._answered, waiting.approval.id, answer)
        waiting.settle(answer)

    def _known(self, approval: Approval) -> Answer | None:
        for scope in (Scope.CONVERSATION, Scope.DIRECTORY):
            key = _reach(approval, scope)
            if key is not None and key in self._remembered:
                return self._remembered[key]
        return None


def _reach(approval: Approval, scope: Scope) -> Hashable | None:
    """What an answer of this scope holds for; None: for nothing but its own question.  Leave to read is
    none to write."""
    if scope is Scope.CONVERSATION and approval.conversation is not None:
        return (scope, approval.conversation, approval.tool, approval.writing)
    if scope is Scope.DIRECTORY:
        return (scope, approval.directory, approval.tool, approval.writing)
    return None


def _remember(known: dict[_K, Answer], key: _K, answer: Answer) -> None:
    while len(known) >= MAX_REMEMBERED:
        del known[next(iter(known))]
    known[key] = answer
