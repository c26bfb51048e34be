"""A pure conversation against the strict peer, without a socket."""

import itertools
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from chappie_bridge.codec.signature import HANDOFF, declare
from chappie_bridge.faces.flow.hearing import LocalCall, Said
from chappie_bridge.faces.flow.turn import (
    Challenge,
    Conversation,
    Converse,
    Ended,
    Manner,
    Prepare,
    Read,
    Run,
    Step,
)
from chappie_bridge.wire.values import ToolDefinition
from tests.peer.flow import AUTHORIZATION, CONDUIT, Flow

Json = dict[str, Any]

ECHO = ToolDefinition(
    name="echo",
    description="Says it again.",
    parameters={"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
)
MANNER = Manner(
    model="m-thinking",
    effort="standard",
    timezone="Europe/Berlin",
    offset=-60,
    signatures=(HANDOFF, *declare([ECHO]).signatures),
    tools=frozenset({"handoff", "echo"}),
    readable=True,
)


def conversation(manner: Manner = MANNER, **more: Any) -> Conversation:
    numbers = itertools.count(1)
    return Conversation(
        manner, now=lambda: 1_787_848_294.65, new_id=lambda: str(uuid.UUID(int=next(numbers))), **more
    )


class Driver:
    """Takes each step at once.  `change` may alter a body on its way, `run` gives results."""

    def __init__(
        self,
        talk: Conversation,
        peer: Flow,
        *,
        run: Callable[[LocalCall], Json] = lambda call: {"message": f"ran {call.tool}"},
        change: Callable[[str, Json], Json] = lambda kind, body: body,
        prepares: bool = True,
        headers: Json | None = None,
    ) -> None:
        self.talk = talk
        self.peer = peer
        self.run = run
        self.change = change
        self.prepares = prepares
        self.headers = headers or {}
        self.seen: list[Step] = []

    @property
    def ran(self) -> list[LocalCall]:
        return [step.call for step in self.seen if isinstance(step, Run)]

    def text(self, channel: str = "final") -> str:
        return "".join(step.text for step in self.seen if isinstance(step, Said) and step.channel == channel)

    def say(self, text: str) -> Ended:
        return self.take(self.talk.send(text))

    def take(self, first: list[Step]) -> Ended:
        steps = deque(first)
        while steps:
            step = steps.popleft()
            self.seen.append(step)
            if isinstance(step, Ended):
                return step
            steps += self._done(step)
        raise AssertionError(f"nothing more to do in state {self.talk.state}")

    def _done(self, step: Step) -> list[Step]:
        talk, peer = self.talk, self.peer
        headers = {"authorization": AUTHORIZATION, **self.headers}
        match step:
            case Prepare(body=body):
                path = "/api/f/conversation/prepare"
                status, answer = self._post(path, self.change("prepare", body), headers)
                works = self.prepares and status == 200
                return talk.prepared(answer["conduit_token"] if works else None)
            case Challenge():
                return talk.challenged(peer.challenge()["attestation_challenge"])
            case Converse(body=body, conduit=conduit):
                if conduit is not None:
                    headers[CONDUIT] = conduit
                kind = "user" if step.call is None else "return"
                status, answer = self._post("/api/f/conversation", self.change(kind, body), headers)
                if status != 200:
                    return talk.refused(answer["detail"])
                found: list[Step] = []
                data, _ = answer
                for at in range(0, len(data), 77):
                    found += talk.heard(data[at : at + 77])
                return [*found, *talk.closed()]
            case Run(call=call):
                return talk.ran(call.id, self.run(call))
            case Read():
                status, answer = peer.answer("GET", f"/api/conversation/{talk.id}", headers, b"")
                return talk.read(answer if status == 200 else None)
            case _:
                return []

    def _post(self, path: str, body: Json, headers: Json) -> tuple[int, Any]:
        import json

        if path.endswith("prepare") and not self.prepares:
            return 500, {}
        return self.peer.answer("POST", path, headers, json.dumps(body).encode())
