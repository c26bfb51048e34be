"""A client under load, as a process of its own: `python -m tests.faults.client JOB`.

Some conversations ask for calls that each append one line to a file, with a key or without; an answer that
does not come is asked for again where there is a key.  Everything that it is told goes to its journal, and
a successor goes on from there."""

import json
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import anyio

from chappie_bridge.demo.chatgpt import Answer, ChatGPT, LostAnswer, Refused

from .journal import Account, Journal, conversation_of

CONVERSATIONS = 4
SUBJECT = "v1/the-same-user"
PATIENCE = 60.0
"""Seconds until what must come counts as lost."""


@dataclass(frozen=True)
class Job:
    url: str
    headers: dict[str, str]
    sessions: list[str]
    root: str
    seed: int
    keys: float = 0.6
    """How many of the requests carry one."""

    @property
    def effects(self) -> Path:
        return Path(self.root) / "effects"

    @property
    def journal(self) -> Path:
        return Path(self.root) / "journal"

    @property
    def over(self) -> Path:
        """There as soon as no new work is wanted."""
        return Path(self.root) / "over"

    def written(self) -> str:
        return json.dumps(asdict(self))


class Client:
    """`chatgpt` is replaced by whoever has another way to the same server."""

    def __init__(self, job: Job, chatgpt: ChatGPT | None = None) -> None:
        self._job = job
        self._chatgpt = chatgpt or ChatGPT(job.url, job.headers, patience=PATIENCE)
        self._chatgpt._subject = SUBJECT
        self._before = Account(job.journal)
        self._journal = Journal(job.journal)

    async def run(self) -> None:
        """Until no more work is wanted and everything is told."""
        async with anyio.create_task_group() as tasks:
            for number in range(CONVERSATIONS):
                tasks.start_soon(self._conversation, f"c{number}")

    async def _conversation(self, name: str) -> None:
        random = Random(f"{self._job.seed} {name} {len(self._before.asked)}")
        mine = [asked for token, asked in self._before.asked.items() if conversation_of(token) == name]
        for asked in mine:
            if asked.told or asked.refused or asked.abandoned:
                continue
            if asked.keyed:
                await self._ask(name, asked.token, keyed=True, wait=10.0)
            else:
                self._journal.write("abandons", token=asked.token)
        number = len(mine)
        while not self._job.over.exists():
            number += 1
            keyed, wait = random.random() < self._job.keys, random.choice((0.05, 0.3, 10.0, 10.0))
            if await self._ask(name, f"{name}-{number}", keyed=keyed, wait=wait) is None:
                await anyio.sleep(0.05)
        await self._ask_until_all_is_told(name, number)

    async def _ask(self, name: str, token: str, *, keyed: bool, wait: float) -> Answer | None:
        """Target and command are a function of the token: a successor that asks again means the same."""
        number = int(token.partition("-")[2])
        session = self._job.sessions[number % len(self._job.sessions)]
        pause = (number * 7 % 5) * 0.06
        command = f"echo {token} >> {self._job.effects}; sleep {pause}; echo {token}"
        more: dict[str, Any] = {"key": token} if keyed else {}
        calls = [{"name": "bash", "arguments": {"command": command}}]
        request = self._chatgpt.call(
            f"v1/{name}", "call", {"calls": calls, "sessionId": session, "wait": wait, **more}
        )
        self._journal.write("asks", token=token, keyed=keyed)
        return await self._until_told(name, token, request, keyed=keyed)

    async def _until_told(self, name: str, token: str, request: Any, *, keyed: bool) -> Answer | None:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                result = await self._chatgpt.send(request)
            except (LostAnswer, Refused):
                if not keyed or time.monotonic() > end:
                    return None
                await anyio.sleep(0.1)
                continue
            answer = Answer(result["content"], bool(result.get("isError")))
            error = answer.head.get("error")
            if error is None:
                self._told(name, token, answer)
                return answer
            if not (keyed and error["executed"] == "no" and error["retryable"] and time.monotonic() < end):
                self._journal.write("refused", token=token, code=error["code"], executed=error["executed"])
                return None
            await anyio.sleep(0.1)

    def _told(self, name: str, token: str, answer: Answer) -> None:
        head = answer.head
        self._journal.write(
            "answered",
            conversation=name,
            token=token,
            operation=head["operation"],
            status=head["status"],
            executed=(answer.notes("error") or [{"error": {"executed": ""}}])[0]["error"]["executed"],
            texts=answer.texts[1:],
            notes=[(note["deferredResult"], note["status"]) for note in answer.notes("deferredResult")],
        )

    async def _ask_until_all_is_told(self, name: str, number: int) -> None:
        """What is still open comes with later answers; a few quiet ones in a row are the end."""
        quiet, end = 0, time.monotonic() + PATIENCE
        while quiet < 3 * len(self._job.sessions) and time.monotonic() < end:
            number += 1
            answer = await self._ask(name, f"{name}-{number}", keyed=True, wait=10.0)
            noted = answer is None or answer.notes("deferredResult") or "more" in answer.head
            quiet = 0 if noted else quiet + 1
        account = Account(self._job.journal)
        for asked in account.asked.values():
            for operation, _ in asked.told if conversation_of(asked.token) == name else ():
                while operation in Account(self._job.journal).unfinished and time.monotonic() < end:
                    arguments = {"operation": operation, "wait": 5}
                    with suppress(LostAnswer, Refused):
                        result = await self._chatgpt.send(self._chatgpt.call(f"v1/{name}", "call", arguments))
                        self._told(name, "", Answer(result["content"], bool(result.get("isError"))))


if __name__ == "__main__":
    anyio.run(Client(Job(**json.loads(sys.argv[1]))).run)
