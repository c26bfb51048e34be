"""The machines: one with a broker, others with agents.  Each has lives; its disk outlives them."""

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import anyio
from chappie_agents import session as agent_session
from chappie_agents.answers import Surroundings
from chappie_agents.attendant import AgentHost
from chappie_agents.outbox import Outbox
from chappie_agents.policy import Answer, Approval, Decision, Policy, Rule
from chappie_agents.screen import Blank
from chappie_agents.session import AgentSession
from chappie_agents.spool import Spool
from chappie_agents.tools.tool import Arguments, Tool, ToolContext, ToolFailed, tool
from chappie_agents.transcript import Transcript
from chappie_broker.broker import Broker
from chappie_broker.limits import Limits
from chappie_broker.store.rows import Device

from chappie_bridge.wire.blocks import Content, Text
from chappie_bridge.wire.errors import BridgeError
from chappie_bridge.wire.ids import DeviceId, Mint, SessionId
from chappie_bridge.wire.link import frame_hello
from chappie_bridge.wire.values import SessionInfo

from .clock import Process
from .disks import LEASE, Registry, new_registry
from .network import DialEnd, HubEnd, SimulatedDial, SimulatedLinks, Wire

if TYPE_CHECKING:
    from .world import World

KEY = b"k" * 32
LIMITS = Limits(
    session_wait=4.0,
    offline_grace=2.0,
    cooldown=0.0,
    queue_session=6,
    queue_caller=4,
    queue_seconds=30.0,
    receipt_seconds=10.0,
    keep_in_memory=12,
    companions=3,
    ask_seconds=6.0,
)
"""SPEC's bounds scaled down, so that a minute of virtual time meets them."""


class Given(Arguments):
    tag: str
    seconds: float = 0.0
    size: int = 0


class BrokerMachine:
    """Broker, its links and registry."""

    def __init__(self, world: "World", random: Random, slowness: float) -> None:
        self._world, self._random, self._slowness = world, random, slowness
        self._limits = replace(LIMITS, keep_in_memory=2_000) if world.remembers else LIMITS
        self.connection: sqlite3.Connection = new_registry()
        self.jump = 0.0
        self.life = 0
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.links: SimulatedLinks | None = None
        self.registry: Registry | None = None
        self._stop: anyio.Event

    def now(self) -> float:
        return self._world.wall() + self.jump

    @property
    def up(self) -> bool:
        return self.broker is not None

    def start(self) -> None:
        if self.process is not None:
            return
        self.life += 1
        process = self.process = Process(f"broker/{self.life}")
        self._world.spawn(process, self._run(process, self.life))

    async def _run(self, process: Process, life: int) -> None:
        registry = self.registry = Registry(self.connection, self._random, self._slowness)
        self._stop = anyio.Event()
        if life == 1:
            for name in self._world.agents:
                device = Device(DeviceId(name), name, f"hash of {name}", self.now(), self.now())
                await registry.save_device(device)
        mint = Mint(self._random.randbytes)
        async with Broker.open(
            registry, key=KEY, version="0", limits=self._limits, now=self.now, mint=mint
        ) as broker:
            self.broker = broker
            self.links = SimulatedLinks(
                broker.dispatch,
                instance=mint.instance(),
                version="0",
                lease=LEASE,
                limit=10_000,
            )
            self.links.raised = self._world.raised
            self._world.note("broker is up", life)
            await self._stop.wait()
            self.broker = None
            self._world.hang_up_all()  # the faces end first
            await anyio.sleep(0.01)
            self.links.close()
            self.broker = self.links = None
            self._world.cut_all()
        process.kill()
        self.process = None
        self._world.broker_gone()

    def crash(self) -> None:
        """What the registry has not committed is lost with everything in memory."""
        if self.process is None:
            return
        self.process.kill()
        self.process = self.broker = self.links = self.registry = None
        self._world.cut_all()
        self._world.broker_gone()

    def stop(self) -> None:
        """As it ends by SIGTERM."""
        if self.broker is not None:
            self._stop.set()


class _Screen(Blank):
    """Somebody who answers what the agent asks, after a while."""

    def __init__(self, machine: "AgentMachine", name: SessionId) -> None:
        self._machine, self._name = machine, name

    def asked(self, approval: Approval) -> None:
        self._machine.questions.append((self._name, approval))


class AgentMachine:
    """One agent program with its sessions' directories."""

    def __init__(
        self, world: "World", name: str, sessions: Sequence[str], root: Path, random: Random
    ) -> None:
        self._world, self.name, self._random = world, name, random
        self.names = [SessionId(each) for each in sessions]
        self._root = root
        self.jump = 0.0
        self.life = 0
        self.process: Process | None = None
        self.sessions: dict[SessionId, AgentSession] = {}
        self.host: AgentHost | None = None
        self.dial: SimulatedDial | None = None
        self.wire: Wire | None = None
        self.questions: list[tuple[SessionId, Approval]] = []
        self.blocked = False
        """No connection can be made."""
        self._open_transcripts: list[Transcript] = []
        self._stop: anyio.Event

    def now(self) -> float:
        return self._world.wall() + self.jump

    @property
    def online(self) -> bool:
        return self.dial is not None and self.dial.up

    def start(self) -> None:
        if self.process is not None:
            return
        self.life += 1
        process = self.process = Process(f"{self.name}/{self.life}")
        process.died = self._died
        self._world.spawn(process, self._run(process))

    async def _run(self, process: Process) -> None:
        self._stop = anyio.Event()
        mint = Mint(self._random.randbytes)
        self.host = AgentHost()
        async with anyio.create_task_group() as group:
            await group.start(self.host.run)
            for name in self.names:
                await self.host.add(self._open(name, mint))
            self.dial = SimulatedDial(
                self.host, self._reach, instance=mint.instance(), name=self.name, jitter=self._random.random
            )
            self.dial.raised = self._world.raised
            group.start_soon(self.dial.run)
            await self._stop.wait()
            group.cancel_scope.cancel()
        self._gone()
        self._world.note("agent stopped", self.name)

    def _open(self, name: SessionId, mint: Mint) -> AgentSession:
        directory = self._root / name
        if not directory.exists():
            directory.mkdir()
            shutil.copyfile(self._world.index_template, directory / "index.db")
        spool = Spool(directory / "spool")
        transcript = Transcript(directory, spool)
        outbox = Outbox(directory / "journal", transcript, name, now=self.now)
        self._open_transcripts.append(transcript)
        self.sessions[name] = AgentSession(
            SessionInfo(id=name, agent="builtin", device=self.name, cwd=str(directory)),
            directory=directory,
            transcript=transcript,
            outbox=outbox,
            spool=spool,
            transfers=directory / "transfers",
            tools=self._tools(),
            policy=Policy(rules=(Rule("guarded", Decision.ASK),)),
            environment={},
            surroundings=Surroundings,
            screen=_Screen(self, name),
            now=self.now,
            mint=mint,
        )
        return self.sessions[name]

    async def _reach(self, dial: SimulatedDial) -> DialEnd:
        world, process = self._world, self.process
        assert process is not None
        await anyio.sleep(self._random.random() * world.lag)
        broker = world.broker
        if broker.links is None or broker.process is None or self.blocked:
            raise ConnectionRefusedError
        wire = Wire(self._random, world.lag, world.broken, world.raised)
        end = DialEnd(wire, process, dial)
        wire.join(HubEnd(wire, broker.process, broker.links, DeviceId(self.name)), end)
        if process.frozen or broker.process.frozen:
            wire.silence()
        self.wire = wire
        world.wires.append(wire)
        end.write(frame_hello(dial._hello()))
        return end

    def crash(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._died()

    def _died(self) -> None:
        for transcript in self._open_transcripts:
            transcript._index.close()
        self._gone()
        self._world.note("agent died", self.name)

    def _gone(self) -> None:
        self._open_transcripts.clear()
        self.questions.clear()
        self.sessions = {}
        self.host = self.dial = self.process = None
        if self.wire is not None:
            self.wire.cut()
            self.wire = None

    def stop(self) -> None:
        if self.dial is not None and self.process is not None:
            self.sessions = {}  # nobody types any more
            self._stop.set()

    # -- people ----------------------------------------------------------------------------------

    def answer(self, *, allowed: bool) -> None:
        """The oldest question that waits."""
        if self.questions and self.process is not None:
            name, approval = self.questions.pop(0)
            session = self.sessions.get(name)
            if session is not None:
                try:
                    session.approvals.answer(approval.id, Answer(allowed))
                except BridgeError:
                    self._world.note("answered too late", name)

    # -- tools -----------------------------------------------------------------------------------

    def _tools(self) -> list[Tool]:
        kinds: list[tuple[str, bool, Callable[..., Any]]] = [
            ("noop", True, self._noop),
            ("effect", False, self._noop),
            ("slow", False, self._slow),
            ("fail", True, self._fail),
            ("guarded", False, self._guarded),
        ]
        return [tool(name, f"Does {name}.", Given, run, parallel=together) for name, together, run in kinds]

    def _ran(self, given: Given, context: ToolContext) -> Content:
        work = agent_session._WORK.get()
        self._world.begins(work.message, given.tag, context.session)
        self._world.ran(work.message, given.tag, context.session)
        return (Text(text=f"ran {given.tag}" + "." * given.size),)

    async def _noop(self, given: Given, context: ToolContext) -> Content:
        return self._ran(given, context)

    async def _slow(self, given: Given, context: ToolContext) -> Content:
        content = self._ran(given, context)
        await anyio.sleep(given.seconds)
        return content

    async def _fail(self, given: Given, context: ToolContext) -> Content:
        self._ran(given, context)
        raise ToolFailed(f"ran {given.tag} and failed")

    async def _guarded(self, given: Given, context: ToolContext) -> Content:
        self._world.begins(agent_session._WORK.get().message, given.tag, context.session)
        await context.permit("guarded", str(context.cwd), what=given.tag)
        return self._ran(given, context)
