"""Bugs put in on purpose: each must break a promise within 10,000 seeds, or the simulation is blind to it.

`python -m tests.sim.mutants` prints the seed that finds each."""

import argparse
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any
from unittest import mock

import anyio
from chappie_agents.outbox import Outbox
from chappie_agents.session import AgentSession
from chappie_broker.accompany import Company
from chappie_broker.broker import Broker
from chappie_broker.deliveries import Mailroom
from chappie_broker.dispatch import Dispatch
from chappie_broker.earlier import Earlier
from chappie_broker.operations import Operation
from chappie_broker.outcomes import Outcomes
from chappie_broker.queue import FairQueue
from chappie_broker.rpc import Correspondence
from chappie_broker.store.port import StoreError
from chappie_broker.store.rows import Conversation, RequestKey
from chappie_broker.targets import Targets

from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.endpoint import Endpoint
from chappie_bridge.wire.errors import Lost
from chappie_bridge.wire.link import Window

from .__main__ import repeatable
from .world import play, template

SEEDS = 10_000

Patch = AbstractContextManager[Any]


def settles_on_send() -> Patch:
    """What the server has sent counts as arrived."""
    told = Broker.told

    def mutant(self: Broker, receipt: Any, *, sent: bool) -> None:
        sending = self._mailroom._sending.get(receipt)
        told(self, receipt, sent=sent)
        if sending is not None and sent:
            self.dispatch.outcomes.settle(sending.addressee)

    return mock.patch.object(Broker, "told", mutant)


def settles_dropped_replies() -> Patch:
    """The same request again settles what its lost reply carried."""
    return mock.patch.object(
        Company, "came_again", lambda self, origin: self.dispatch.outcomes.settle(origin.id)
    )


def replays_without_dedupe() -> Patch:
    """A frame that was taken in already is taken in again, and the agent trusts the link with that."""

    def mutant(self: Window, item: Any) -> bool:
        self._drop(item.ack)
        if not hasattr(item, "number"):
            return False
        self.received = max(self.received, item.number)
        return True

    patches = ExitStack()
    patches.enter_context(mock.patch.object(Window, "take", mutant))
    patches.enter_context(mock.patch.object(AgentSession, "_repeated", return_value=False))
    return patches


def removes_newer_registration() -> Patch:
    """The clean-up of an old socket takes the link from its successor."""

    def mutant(self: Endpoint, socket: Any) -> bool:
        self._socket = None
        return True

    return mock.patch.object(Endpoint, "detach", mutant)


def forgets_what_it_began() -> Patch:
    """A restarted agent says nothing of what its last process began."""

    def mutant(self: Outbox) -> tuple[()]:
        self._begun.clear()
        return ()

    return mock.patch.object(Outbox, "_recover", mutant)


def accepts_keys_after_dispatch() -> Patch:
    """The key is committed some time after the work was sent."""

    async def mutant(self: Earlier, session: Any, operation: Operation, key: str) -> Any:
        now = self._now()
        row = RequestKey(operation.origin.id, key, operation.fingerprint, operation.id, now, now + 86400)
        self._ledger.keys[operation.origin.id, key] = row
        return operation.id

    return mock.patch.object(Earlier, "accept", mutant)


def withdraws_running_work() -> Patch:
    """A closed request makes running work `lost`."""
    withdraw = Dispatch.withdraw

    def mutant(self: Dispatch, operation: Operation) -> None:
        if operation.status is Status.RUNNING:
            operation.status = Status.QUEUED
            self._finish(operation, "withdrawn", error=Lost())
            self.directory.get(operation.target.session).running = None
        else:
            withdraw(self, operation)

    return mock.patch.object(Dispatch, "withdraw", mutant)


def posts_to_the_executor() -> Patch:
    """An outcome goes to whoever works in the session now."""
    post = Outcomes.post

    def mutant(self: Outcomes, operation: Operation) -> Any:
        executor = self._directory.get(operation.target.session).executor
        if executor is not None and operation.id not in self.recalling:
            operation.origin = operation.origin.model_copy(update={"id": executor})
        return post(self, operation)

    return mock.patch.object(Outcomes, "post", mutant)


def gives_inputs_to_two() -> Patch:
    """An input that is offered again goes to the new executor, too."""
    put = Mailroom.put

    def mutant(self: Mailroom, *args: Any, **more: Any) -> Any:
        self._readers.clear()
        return put(self, *args, **more)

    return mock.patch.object(Mailroom, "put", mutant)


def runs_interrupted_again() -> Patch:
    """What was interrupted by a restart is taken for lost and sent once more."""
    conclude = Dispatch._conclude

    def mutant(self: Dispatch, session: Any, operation: Operation, event: str, error: Any) -> None:
        if event in ("restarted", "session_gone") and operation.message is not None and operation.open:
            operation.status = Status.QUEUED
            again = operation.message.model_copy(update={"operation": self.mailroom._mint.operation()})
            operation.message = again
            session.running = None
            session.queue.push(operation.origin.id, operation)
            self.pump(session)
        else:
            conclude(self, session, operation, event, error)

    return mock.patch.object(Dispatch, "_conclude", mutant)


def binds_before_saving() -> Patch:
    """A binding is told first and saved some time after."""

    async def mutant(self: Targets, conversation: Any, principal: str, session: Any) -> None:
        now = self._now()
        row = Conversation(conversation, principal, first_seen=now, last_seen=now)
        self._directory.bind(conversation, session.info.id)
        self._reserved.pop(conversation, None)

        async def later() -> None:
            await anyio.sleep(5.0)
            with suppress(StoreError):
                await self._store.save_binding(row, session.info.id, now)

        self._dispatch._start(later)

    return mock.patch.object(Targets, "_save", mutant)


def sends_what_is_stored_as_queued() -> Patch:
    """The registry still says `queued` of what was sent: a restart calls it lost."""
    send = Dispatch.pump

    def mutant(self: Dispatch, session: Any) -> None:
        for operation in session.queue:
            operation.stored_as_queued = False
        send(self, session)

    return mock.patch.object(Dispatch, "pump", mutant)


def keeps_ends_in_memory() -> Patch:
    """An agent tells an end before its journal has it."""
    write = Outbox._write

    def mutant(self: Outbox, record: Any) -> Any:
        if "finish" in record:
            return self._segment, write(self, {"settled": [], "inputs": []})[1]
        return write(self, record)

    return mock.patch.object(Outbox, "_write", mutant)


def forgets_waiters() -> Patch:
    """A request to an agent that nobody waits for any more stays in the book."""
    ask = Correspondence.ask

    async def mutant(self: Correspondence, *args: Any) -> Any:
        try:
            return await ask(self, *args)
        except BaseException:
            self._waiting[-len(self._waiting) - 1] = None
            raise

    return mock.patch.object(Correspondence, "ask", mutant)


def crosses_queues() -> Patch:
    """The newest request of a caller goes first."""

    def mutant(self: Any) -> Any:
        if not self._lines:
            return None
        caller, line = next(iter(self._lines.items()))
        item = line.pop()
        self._size -= 1
        if line:
            self._lines.move_to_end(caller)
        else:
            del self._lines[caller]
        return item

    return mock.patch.object(FairQueue, "pop", mutant)


MUTANTS: tuple[Callable[[], Patch], ...] = (
    settles_on_send,
    settles_dropped_replies,
    replays_without_dedupe,
    removes_newer_registration,
    forgets_what_it_began,
    accepts_keys_after_dispatch,
    withdraws_running_work,
    posts_to_the_executor,
    gives_inputs_to_two,
    runs_interrupted_again,
    binds_before_saving,
    sends_what_is_stored_as_queued,
    keeps_ends_in_memory,
    forgets_waiters,
    crosses_queues,
)


def hunt(number: int, seeds: int) -> tuple[str, int | None, str]:
    """A mutant's name, the first seed that finds it, and what it breaks."""
    mutant = MUTANTS[number]
    for seed in range(seeds):
        with mutant():
            failure, _ = play(seed)
        if failure is not None and play(seed)[0] is None:
            return mutant.__name__, seed, failure.message
    return mutant.__name__, None, ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    numbers = range(len(MUTANTS)) if given.only is None else [given.only]
    missed = 0
    template()
    with ProcessPoolExecutor(given.jobs) as pool:
        for done in as_completed([pool.submit(hunt, number, given.seeds) for number in numbers]):
            name, seed, message = done.result()
            missed += seed is None
            found = "NOT FOUND" if seed is None else f"seed {seed}"
            print(f"{name:34} {found:10} {message[:90]}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    repeatable("tests.sim.mutants")
    sys.exit(main())
