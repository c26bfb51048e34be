"""What a client was told, a line a fact, so that it survives a kill of the client; and what must follow."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOKEN = re.compile(r"\bc\d+-\d+\b")
"""What one call appends to the file of effects, and prints: conversation and number."""

OPEN = frozenset({"queued", "running", "asking", "cancelling"})


def conversation_of(token: str) -> str:
    return token.partition("-")[0]


class Journal:
    """Appends; each line is with the kernel before the next thing happens."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, fact: str, **what: Any) -> None:
        os.write(self._descriptor, json.dumps({"fact": fact, **what}).encode() + b"\n")


@dataclass
class Asked:
    """One call with one effect.  `keyed`: the client may ask again until it is told."""

    token: str
    keyed: bool
    told: list[tuple[str, str]] = field(default_factory=list)
    """Operation and status of each answer to the request itself."""
    never: bool = False
    """An answer said that nothing of it ran."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Code and `executed` of each error."""
    abandoned: bool = False
    """The client died while it waited for the answer, and had no key to ask again."""


class Account:
    """Everything that the clients of a directory were told."""

    def __init__(self, path: Path) -> None:
        self.asked: dict[str, Asked] = {}
        self.ends: dict[str, str] = {}
        """Operation -> the last status that was told of it."""
        self.shown: Counter[str] = Counter()
        """Token -> how often an answer showed its output."""
        self.wrong: list[str] = []
        self._notes: dict[str, str] = {}
        """Operations whose end came with another answer -> conversation."""
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for line in text.splitlines():
            self._take(json.loads(line))

    def _take(self, fact: dict[str, Any]) -> None:
        token = fact.get("token", "")
        match fact["fact"]:
            case "asks":
                self.asked.setdefault(token, Asked(token, fact["keyed"]))
            case "abandons":
                self.asked[token].abandoned = True
            case "refused":
                self.asked[token].refused.append((fact["code"], fact["executed"]))
            case "answered":
                if token in self.asked:
                    self.asked[token].told.append((fact["operation"], fact["status"]))
                    self.asked[token].never |= fact["status"] == "failed" and fact["executed"] == "no"
                self._ended(fact["operation"], fact["status"])
                self._see(fact["conversation"], fact["texts"])
                for operation, status in fact["notes"]:
                    self._notes[operation] = fact["conversation"]
                    self._ended(operation, status)

    def _ended(self, operation: str, status: str) -> None:
        before = self.ends.get(operation)
        if before not in (None, "interrupted", *OPEN) and status != before:
            self.wrong.append(f"{operation} was {before} and is now {status}")
        if before is None or status not in OPEN:
            self.ends[operation] = status

    def _see(self, conversation: str, texts: Iterable[str]) -> None:
        for token in TOKEN.findall("\n".join(texts)):
            self.shown[token] += 1
            if conversation_of(token) != conversation:
                self.wrong.append(f"{conversation} was shown {token}")

    @property
    def unfinished(self) -> list[str]:
        """Operations that were told as open, and whose end was not told."""
        return [operation for operation, status in self.ends.items() if status in OPEN]

    def _reported(self, asked: Asked) -> bool:
        return self.shown[asked.token] > 0 or any(self.ends[name] not in OPEN for name, _ in asked.told)

    def faults(self, effects: Iterable[str]) -> list[str]:
        """Every promise that was broken, in words."""
        ran, wrong = Counter(effects), list(self.wrong)
        wrong += [f"{token} ran {count} times" for token, count in ran.items() if count > 1]
        wrong += [f"nobody asked for {token}, which ran" for token in ran if token not in self.asked]
        wrong += [f"the end of {operation} was never told" for operation in self.unfinished]
        named = {operation for asked in self.asked.values() for operation, _ in asked.told}
        doubts = Counter(
            conversation
            for operation, conversation in self._notes.items()
            if operation not in named and self.ends[operation] == "interrupted"
        )
        for token, asked in self.asked.items():
            ends = {self.ends[operation] for operation, _ in asked.told}
            if "done" in ends and not (ran[token] and self.shown[token]):
                wrong.append(f"{token} is said to be done; it ran {ran[token]} times")
            if ends and ends <= {"lost", "cancelled"} and ran[token]:
                wrong.append(f"{token} is said to be {ends} and ran")
            if not asked.keyed and asked.refused and asked.refused[-1][1] == "no" and ran[token]:
                wrong.append(f"{token} was refused with {asked.refused[-1][0]} and ran")
            if asked.never and ran[token]:
                wrong.append(f"{token} failed before it ran, as was said, and ran")
            if self.shown[token] and not ran[token]:
                wrong.append(f"{token} was shown and did not run")
            if self._reported(asked) or not ran[token]:
                continue
            if asked.abandoned:
                continue  # its answer may have left in time, and died with who asked
            if asked.refused and asked.refused[-1][1] == "unknown":
                continue
            doubts[conversation_of(token)] -= 1  # an end in doubt shows no output: any will do
            if doubts[conversation_of(token)] < 0:
                wrong.append(f"{token} ran, and nobody was told how it ended")
        return wrong
