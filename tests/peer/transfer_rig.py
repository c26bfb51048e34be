"""A broker on its registry, and agents with real files on links that can be cut, lost and made again."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import time
from typing import Any

import anyio
from chappie_agents.attendant import AgentHost
from chappie_agents.dial import Dial
from chappie_agents.hosts.builtin import Opened, open_session
from chappie_agents.policy import Policy
from chappie_broker.broker import Broker
from chappie_broker.download import Bounds
from chappie_broker.hub import Hub
from chappie_broker.store.rows import Device
from chappie_broker.store.sqlite import InlineSqliteStore

from chappie_bridge.wire.batch import OPEN
from chappie_bridge.wire.ids import Mint, SessionId
from chappie_bridge.wire.requests import OperationView, Submit, Transfer
from chappie_bridge.wire.values import Caller, RemotePaths
from tests.peer.link_rig import LOCAL, a_dial, a_hub

CHAT = Caller(principal="owner", source="openai", value="chat one")
ELSE = Caller(principal="somebody", source="openai", value="chat two")


class Agent:
    """One agent process in a directory of its own; `lose` it and `come` again as often as you like."""

    def __init__(self, world: "World", name: str, policy: Policy | None) -> None:
        self.world, self.name, self._policy = world, name, policy
        self.directory = world.root / name
        self.directory.mkdir()
        self.id = SessionId("")
        self.opened: Opened
        self.dial: Dial
        self._scope: anyio.CancelScope | None = None
        self._gone = anyio.Event()

    async def come(self) -> None:
        self._gone = anyio.Event()
        await self.world.tasks.start(self._live)

    async def _live(self, *, task_status: Any) -> None:
        self.opened = open_session(
            self.directory,
            self.world.root / f"state-{self.name}",
            policy=self._policy,
            environment={},
            configuration=self.world.root / "none",
        )
        self.id = self.opened.session.info.id
        host = AgentHost()
        self.dial = a_dial(self.world.socket, host, instance=Mint().instance(), pause=_at_once)
        with anyio.CancelScope() as self._scope:
            async with anyio.create_task_group() as tasks:
                await tasks.start(host.run)
                await host.add(self.opened.session)
                tasks.start_soon(self.dial.run)
                task_status.started()
                await anyio.sleep_forever()
        self.opened.close()
        self._gone.set()

    async def lose(self) -> None:
        """As if it was killed: no goodbye."""
        self.cut()
        self.dial._pause = lambda _: anyio.sleep_forever()
        assert self._scope is not None
        self._scope.cancel()
        await self._gone.wait()

    def cut(self) -> None:
        if self.dial.socket is not None:
            self.dial.socket.abort()

    def leftovers(self) -> list[str]:
        return [path.name for path in self.directory.rglob("*.part")]


async def _at_once(_: float) -> None:
    await anyio.sleep(0.001)


class World:
    """`broker` is the present one."""

    def __init__(self, root: Path, room: Path, bounds: Bounds | None) -> None:
        self.root, self.socket, self._bounds = root, room / "s", bounds
        self.tasks: anyio.abc.TaskGroup
        self.broker: Broker
        self.hub: Hub
        self._stack = AsyncExitStack()
        self._life: anyio.CancelScope | None = None
        self._gone = anyio.Event()

    async def agent(self, name: str, policy: Policy | None = None) -> Agent:
        agent = Agent(self, name, policy)
        await agent.come()
        await self.until_online(agent)
        return agent

    async def until_online(self, agent: Agent) -> None:
        with anyio.fail_after(10):
            while True:
                session = self.broker.dispatch.directory.sessions.get(agent.id)
                if session is not None and session.online:
                    return
                await self.broker.dispatch.news()

    async def start(self) -> None:
        self._gone = anyio.Event()
        await self.tasks.start(self._serve)

    async def _serve(self, *, task_status: Any) -> None:
        with anyio.CancelScope() as self._life:
            store = await InlineSqliteStore.open(self.root / "broker.db")
            await store.save_device(Device(LOCAL, "here", "hash", time(), time()))
            async with Broker.open(store, key=b"k" * 32, version="0", bounds=self._bounds) as self.broker:
                self.hub = a_hub(self.broker.dispatch, instance=Mint().instance())
                async with self.hub.serve_unix(self.socket):
                    task_status.started()
                    await anyio.sleep_forever()
        with anyio.CancelScope(shield=True):
            await store.close()
        self._gone.set()

    async def restart(self) -> None:
        """The broker ends as if killed, and another takes its place."""
        assert self._life is not None
        for link in list(self.hub.links._all.values()):
            if link.socket is not None:
                link.socket.abort()
        self._life.cancel()
        await self._gone.wait()
        await self.start()

    async def move(self, request: Transfer) -> OperationView:
        """Begin, and wait for the end whatever happens."""
        return await self.end(await self.broker.transfer(request))

    async def end(self, view: OperationView) -> OperationView:
        with anyio.fail_after(60):
            while view.status in OPEN:
                submit = Submit(caller=CHAT, operation=view.operation, wait=20)
                view = await self.broker.call(submit)
        return view


def copy(source: Agent, sink: Agent, *names: str, wait: float = 40, **more: Any) -> Transfer:
    """The files of these names from one agent's directory to the other's."""
    return Transfer(
        caller=CHAT,
        session=sink.id,
        paths=tuple(names),
        source=RemotePaths(session=source.id, paths=tuple(names)),
        wait=wait,
        **more,
    )


@asynccontextmanager
async def world(root: Path, room: Path, bounds: Bounds | None = None) -> AsyncIterator[World]:
    made = World(root, room, bounds)
    async with anyio.create_task_group() as made.tasks:
        await made.start()
        yield made
        made.tasks.cancel_scope.cancel()
