"""One history: machines, people and faults on a virtual clock, all of it drawn from one seed."""

import asyncio
import atexit
import logging
import shutil
import tempfile
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from chappie_agents.spool import Spool
from chappie_agents.transcript import Transcript

from chappie_bridge.wire.blocks import Text
from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.ids import OperationId
from chappie_bridge.wire.messages import RunBatch

from .clock import Killed, Loop, Process, simulate
from .disks import LEASE, simulated
from .machines import LIMITS, AgentMachine, BrokerMachine
from .network import Wire
from .oracle import DAY, Oracle, Violation
from .people import GRACE, Conversation, Fate

START = 1_700_000_000.0
STEPS = 60
ROUNDS = 12
"""Requests of each conversation at the end; then nothing more may come."""


class Step(NamedTuple):
    """What happens next; `seed` draws its details, then `pause` seconds pass."""

    kind: str
    seed: int
    pause: float


@dataclass(frozen=True)
class Failure:
    """A history that broke a promise."""

    seed: int
    plan: tuple[Step, ...]
    message: str
    trace: tuple[str, ...]


KINDS = {
    "call": 30,
    "again": 9,
    "init": 4,
    "chat": 4,
    "join": 6,
    "cancel": 3,
    "history": 4,
    "look": 2,
    "hang up": 4,
    "type": 6,
    "answer": 5,
    "stop batch": 1,
    "cut": 4,
    "silence": 2,
    "roam": 3,
    "slow": 2,
    "block": 1,
    "crash agent": 3,
    "crash in write": 2,
    "stop agent": 1,
    "start agents": 4,
    "crash broker": 2,
    "stop broker": 1,
    "start broker": 4,
    "freeze": 1,
    "thaw": 3,
    "agent's disk full": 1,
    "registry full": 1,
    "disks free": 3,
    "clock": 1,
}
_NAMES, _ODDS = tuple(KINDS), tuple(KINDS.values())
_PAUSES = (0.0, 0.01, 0.05, 0.3, 1.0, 3.0, 9.0)
_PAUSE_ODDS = (5, 6, 8, 6, 3, 1, 0.3)


def plan_of(seed: int) -> tuple[Step, ...]:
    """At least 60 steps.  Calm seeds have few faults, so that deep queues and long waits occur too."""
    random = Random(f"plan {seed}")
    calm = random.random()
    faults = _NAMES.index("cut")
    odds = [odd if at < faults else odd * calm for at, odd in enumerate(_ODDS)]
    kinds = random.choices(_NAMES, odds, k=STEPS)
    pauses = random.choices(_PAUSES, _PAUSE_ODDS, k=STEPS)
    return tuple(Step(kind, random.getrandbits(32), pause) for kind, pause in zip(kinds, pauses, strict=True))


@cache
def template() -> Path:
    """An empty index: making one costs more than all else of a new directory.  It goes with the process
    that asks first, so ask before forking."""
    directory = Path(tempfile.mkdtemp(prefix="chappie-sim-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    Transcript(directory, Spool(directory / "spool")).close()
    return directory / "index.db"


class World:
    def __init__(self, loop: Loop, seed: int, root: Path) -> None:
        self.loop, self.seed = loop, seed
        self.random = Random(f"world {seed}")
        self.oracle = Oracle()
        self.trace: list[tuple[float, tuple[Any, ...]]] = []
        self.lag = self.random.choice((0.0, 0.002, 0.02, 0.3))
        self.wires: list[Wire] = []
        self.broken: list[str] = []
        self.raised: list[BaseException] = []
        self.index_template = template()
        self.jumped = 0.0
        self.remembers = self.random.random() < 0.6
        """The broker's memory is large enough for all of this history."""
        layout = self.random.choice(
            ((("s1",),), (("s1", "s2"),), (("s1",), ("s2",)), (("s1", "s2"), ("s3",)))
        )
        self.names = [name for names in layout for name in names]
        self.agents: dict[str, AgentMachine] = {}
        for number, names in enumerate(layout):
            name = f"device{number}"
            self.agents[name] = AgentMachine(self, name, names, root, Random(f"{name} {seed}"))
        slowness = self.random.choice((0.0, 0.001, 0.05))
        self.broker = BrokerMachine(self, Random(f"broker {seed}"), slowness)
        count = self.random.randint(1, 3)
        self.people = [Conversation(self, f"c{n}", "owner") for n in range(count)]

    def wall(self) -> float:
        return START + self.loop.now

    def note(self, *what: Any) -> None:
        self.trace.append((self.loop.now, what))

    def lines(self) -> tuple[str, ...]:
        return tuple(
            f"{at:9.3f}  " + " ".join(str(part) for part in what if part != "") for at, what in self.trace
        )

    def spawn(self, process: Process, work: Coroutine[Any, Any, None]) -> None:
        """A task in that process; what it does not catch is a fault."""

        def ended(task: "asyncio.Task[None]") -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, Killed):
                self.raised.append(error)

        self.loop.create_task(work, context=process.context).add_done_callback(ended)

    # -- what the machines report ----------------------------------------------------------------

    def begins(self, message: RunBatch, tag: str, session: str) -> None:
        """A tool is about to run."""
        try:
            self.oracle.begins(str(message.operation), tag, session)
        except Violation as violation:
            self.raised.append(violation)

    def ran(self, message: RunBatch, tag: str, session: str) -> None:
        """A tool runs."""
        self.note(session, "runs", tag, str(message.operation)[:9])
        broker = self.broker.broker
        known = broker.dispatch.ledger.get(message.operation) if broker is not None else None
        life = self.broker.life if known is not None and known.message is not None else None
        if not self.remembers:
            life = None
        try:
            self.oracle.ran(message, tag, session, life, self.wall() + self.jumped)
        except Violation as violation:
            self.raised.append(violation)  # a batch takes whatever a tool raises for the tool's own fault

    def cut_all(self) -> None:
        for wire in self.wires:
            wire.cut()

    def broker_gone(self) -> None:
        self.note("broker is gone", self.broker.life)
        self.oracle.broker_gone()
        for person in self.people:
            for ask in list(person.asks.values()):
                person.unanswered(ask, "the broker is gone")

    def hang_up_all(self) -> None:
        for person in self.people:
            for ask in list(person.asks.values()):
                ask.scope.cancel()

    # -- the history -----------------------------------------------------------------------------

    async def run(self, plan: Sequence[Step]) -> None:
        self.broker.start()
        for agent in self.agents.values():
            agent.start()
        await asyncio.sleep(1.0)
        for step in plan:
            self.apply(step)
            await asyncio.sleep(step.pause)
            self.check()
        await self.finale()

    def apply(self, step: Step) -> None:
        random = Random(step.seed)
        person = random.choice(self.people)
        session = random.choice(self.names)
        agent = random.choice(list(self.agents.values()))
        fate: Fate = random.choices(("received", "dropped", "unsent", "untold", "late"), (70, 11, 9, 4, 6))[0]
        named = session if random.random() < 0.3 else None
        match step.kind:
            case "call" if person.failed is not None and random.random() < 0.6:
                person.again()
            case "call":
                person.call(random, fate=fate, session=named)
            case "again":
                for each in self.people:
                    if each.again():
                        return
            case "init":
                person.init(fate, named)
            case "chat":
                person.chat(fate, named)
            case "join" | "cancel":
                if person.known:
                    wait = random.choice((0.0, 1.0, 4.0))
                    operation = random.choice(person.known)
                    person.join(operation, fate, wait=wait, cancel=step.kind == "cancel")
            case "history":
                person.history(random, session)
            case "look":
                person.look(random, session)
            case "hang up":
                for ask in list(person.asks.values())[:1]:
                    self.note(person.name, "hangs up", ask.number)
                    if self.broker.process is not None:
                        self.loop.call_soon(ask.scope.cancel, context=self.broker.process.context)
            case "clock":
                self._jump(random, agent)
            case _:
                self._fault(step.kind, random, agent, session)

    def _fault(self, kind: str, random: Random, agent: AgentMachine, session: str) -> None:
        self.note(kind, agent.name)
        match kind:
            case "type":
                self._type(agent, random.choice(agent.names))
            case "answer":
                for each in self.agents.values():
                    each.answer(allowed=random.random() < 0.7)
            case "stop batch":
                if agent.process is not None:
                    for each in agent.sessions.values():
                        self.loop.call_soon(each.stop, "stopped here", context=agent.process.context)
            case "cut" | "silence" | "roam" | "slow" if agent.wire is not None:
                if kind == "slow":
                    agent.wire.slow(random.choice((1.0, 4.0)))
                else:
                    getattr(agent.wire, kind)()
            case "block":
                agent.blocked = True
            case "crash agent":
                agent.crash()
            case "crash in write":
                if agent.process is not None:
                    agent.process.writes_left = random.randint(0, 8)
            case "stop agent":
                agent.stop()
            case "start agents":
                for each in self.agents.values():
                    each.blocked = False
                    each.start()
            case "crash broker":
                self.broker.crash()
            case "stop broker":
                self.broker.stop()
            case "start broker":
                self.broker.start()
            case "freeze":
                machine = random.choice((self.broker, agent))
                if machine.process is not None:
                    machine.process.frozen = True
                    for wire in self.wires:
                        if any(end.process is machine.process for end in wire.ends):
                            self.loop.call_later(5.0, self._noticed, wire)
            case "thaw":
                self._thaw()
            case "agent's disk full":
                if agent.process is not None:
                    agent.process.full = True
                self.oracle.forgetful = True
            case "registry full":
                if self.broker.registry is not None:
                    self.broker.registry.full = self.oracle.stale = True
            case "disks free":
                self._free()

    def _noticed(self, wire: Wire) -> None:
        if any(end.process.frozen for end in wire.ends):
            wire.cut()

    def _jump(self, random: Random, agent: AgentMachine) -> None:
        seconds = random.choice((-7200.0, -30.0, 45.0, 7200.0, 30 * 3600.0))
        machine = random.choice((self.broker, agent))
        machine.jump += seconds
        self.jumped += abs(seconds)
        self.note("clock of", "broker" if machine is self.broker else agent.name, seconds)

    def _type(self, agent: AgentMachine, name: str) -> None:
        session = agent.sessions.get(name)
        process = agent.process
        if session is None or process is None:
            return
        text = f"typed {self.oracle.event()}"

        async def type_it() -> None:
            try:
                identifier = await session.type((Text(text=text),))
            except BridgeError as error:
                self.note(name, "does not take input", error.code)
            else:
                self.oracle.typed[str(identifier)] = name
                self.note(name, "takes", str(identifier)[:9])

        self.spawn(process, type_it())

    def _thaw(self) -> None:
        for machine in (self.broker, *self.agents.values()):
            if machine.process is not None and machine.process.frozen:
                self.loop.thaw(machine.process)

    def _free(self) -> None:
        if self.broker.registry is not None:
            self.broker.registry.full = False
        for agent in self.agents.values():
            if agent.process is not None:
                agent.process.full = False

    # -- invariants ------------------------------------------------------------------------------

    def check(self) -> None:
        for error in (*self.loop.faults, *self.raised):
            if isinstance(error, Violation):
                raise error
            raise Violation(f"an error escaped: {error!r}") from error
        if self.broken:
            raise Violation(f"the link's rules were broken: {self.broken}")
        frozen = self.broker.process is not None and self.broker.process.frozen
        for person in self.people:
            for ask in person.asks.values():
                late = self.loop.now - ask.issued - ask.patience - LIMITS.offline_grace - GRACE
                if late > 0 and not frozen and not self._was_frozen():
                    raise Violation(f"{person.name} waits {late:.1f} s too long for {ask.kind} {ask.number}")
        broker = self.broker.broker
        if broker is not None:
            for session in broker._directory.sessions.values():
                if len(session.queue) > LIMITS.queue_session:
                    raise Violation(f"{len(session.queue)} operations wait for {session.info.id}")

    def _was_frozen(self) -> bool:
        return any(step.kind == "freeze" for step in self.plan)

    plan: Sequence[Step] = ()
    _quiet = 0.0

    async def finale(self) -> None:
        """All faults are over; whatever was promised must now come true."""
        self.note("quiet")
        self._quiet = self.loop.now
        self._thaw()
        self._free()
        for agent in self.agents.values():
            agent.blocked = False
            if agent.process is not None:
                agent.process.writes_left = None
        self.broker.start()
        for agent in self.agents.values():
            agent.start()
        for _ in range(12):
            await asyncio.sleep(LEASE / 3)
            everybody = all(agent.online for agent in self.agents.values())
            if everybody and self.loop.now > self._quiet + 2 * LEASE:
                break
            self.broker.start()  # one that was just stopping
            for agent in self.agents.values():
                agent.start()
            self._answer_all()
        await asyncio.sleep(1.0)
        self.check()
        for person in self.people:
            if (ask := person.again()) is not None:
                await self._until(ask)
        await self._all_told()
        await self._collect()
        await self._account()
        await asyncio.sleep(LIMITS.receipt_seconds + 4.0)
        self.check()
        self._empty()

    async def _all_told(self) -> None:
        """Every answer has ended, and the gate's silence about one was taken for a No."""
        for _ in range(80):
            broker = self.broker.broker
            asking = any(person.asks for person in self.people)
            if broker is not None and not asking and not broker.dispatch.mailroom._sending:
                return
            self._answer_all()
            await asyncio.sleep(0.5)

    async def _collect(self) -> None:
        """Each conversation asks until nothing more comes; the first one runs something everywhere."""
        random = Random(0)
        for turn in range(ROUNDS):
            more = turn == 0
            for number, person in enumerate(self.people):
                for session in self.names if number == 0 else self.names[:1]:
                    before = len(self.trace)
                    ask = person.call(random, fate="received", session=session, plain=True)
                    await self._until(ask)
                    said = {what[1] for _, what in self.trace[before:]}
                    if "is refused" in said or "gets" not in said:
                        raise Violation(f"{session} cannot be used when all is well: {self.lines()[-1]}")
                    more = more or "also gets" in said
            if not more:
                return
        raise Violation("there is no end to what accompanies results")

    async def _account(self) -> None:
        people = {person.name: person for person in self.people}
        for operation, name in list(self.oracle.open.items()):
            await self._read(people[name], operation)
        if self.jumped < DAY and not self.oracle.forgetful:
            for operation in sorted(self.oracle.excused - self.oracle.outcomes.keys()):
                if operation in self.oracle.runs or operation in self.oracle.open:
                    await self._read(people[self.oracle.origin[operation]], operation)
                    if operation not in self.oracle.outcomes:
                        raise Violation(f"{operation} was told, and cannot be read any more")
        if unreported := self.oracle.unreported(self.jumped):
            raise Violation(f"nobody was told how these ended: {unreported}")
        if unread := self.oracle.unread():
            raise Violation(f"nobody got this input: {unread}")

    def _answer_all(self) -> None:
        for agent in self.agents.values():
            while agent.questions:
                agent.answer(allowed=True)

    async def _read(self, person: Conversation, operation: str) -> None:
        where = self.oracle.where.get(operation)
        for _ in range(ROUNDS):
            await self._until(person.join(OperationId(operation), "received", wait=9.0, session=where))
            if operation not in self.oracle.open:
                return

    async def _until(self, ask: Any) -> None:
        end = self.loop.now + ask.patience + LIMITS.offline_grace + GRACE
        while not ask.over and self.loop.now < end:
            self._answer_all()
            await asyncio.sleep(0.05)
        self.check()

    def _empty(self) -> None:
        """What is only needed while somebody waits is gone."""
        broker = self.broker.broker
        assert broker is not None
        left = {
            "requests to agents": len(broker.dispatch.rpc),
            "parked requests": broker._parking.waiting,
            "answers on their way": len(broker.dispatch.mailroom._sending),
            "queued": sum(len(session.queue) for session in broker._directory.sessions.values()),
            "running": sum(session.running is not None for session in broker._directory.sessions.values()),
            "open": broker._ledger.open_count,
            "waiters": sum(operation.waiters for operation in broker._ledger),
            "reservations": len(broker._targets._reserved),
            "writes": len(broker._writer._writes),
            "open at agents": sum(
                session._answers.open for agent in self.agents.values() for session in agent.sessions.values()
            ),
            "batches at agents": sum(
                len(session._working) for agent in self.agents.values() for session in agent.sessions.values()
            ),
        }
        if any(left.values()):
            raise Violation(f"left behind: { {name: count for name, count in left.items() if count} }")


def play(seed: int, plan: Sequence[Step] | None = None) -> tuple[Failure | None, tuple[str, ...]]:
    """One history; its failure, if it has one, and its trace."""
    steps = plan_of(seed) if plan is None else tuple(plan)
    root = Path(
        tempfile.mkdtemp(prefix="chappie-sim-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    )
    worlds: list[World] = []

    async def main(loop: Loop) -> None:
        world = World(loop, seed, root)
        world.plan = steps
        worlds.append(world)
        try:
            with simulated(world.random):
                await world.run(steps)
        finally:
            for agent in world.agents.values():
                agent.crash()
            world.broker.crash()

    levels = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        simulate(main)
    except (Violation, AssertionError) as error:
        world = worlds[0]
        return Failure(seed, steps, str(error), world.lines()), world.lines()
    finally:
        logging.disable(levels)
        for world in worlds:
            world.broker.connection.close()
        shutil.rmtree(root, ignore_errors=True)
    return None, worlds[0].lines()
