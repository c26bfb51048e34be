"""The built-in agent with one more tool, `noop`, which does nothing.  Takes STATE and DIRECTORY.

The session is real in everything else: journal, transcript, link over the unix socket."""

import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path

import anyio
from chappie_agents.attendant import AgentHost
from chappie_agents.dial import Dial
from chappie_agents.hosts.builtin import Opened, open_session
from chappie_agents.policy import Policy
from chappie_agents.tools import BUILTIN
from chappie_agents.tools.tool import Arguments, Tool, ToolContext
from chappie_broker.state import StateDirectory

from chappie_bridge.wire.blocks import Content, Text
from chappie_bridge.wire.ids import Mint


class Nothing(Arguments):
    pass


async def _run(arguments: Nothing, context: ToolContext) -> Content:
    return (Text(text=""),)


NOOP = Tool(name="noop", description="Does nothing.", arguments=Nothing, parallel=True, run=_run)


def opened(state: Path, directory: Path) -> Opened:
    return open_session(directory, state, new=True, policy=Policy(rules=(), roots=()), tools=(*BUILTIN, NOOP))


async def main(
    state: Path, directory: Path, beside: Callable[[Opened], Awaitable[None]] | None = None
) -> None:
    """`beside` runs along with it."""
    session = opened(state, directory)
    host = AgentHost()
    address = f"unix:{StateDirectory.visit(state).socket}"
    instance = Mint().instance()
    dial = Dial(
        address, host, role="agent", instance=instance, name="bench", version=version("chappie-bridge")
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(host.run)
        await host.add(session.session)
        tasks.start_soon(dial.run)
        print(session.session.info.id, flush=True)
        if beside is not None:
            tasks.start_soon(beside, session)
        await anyio.sleep_forever()


if __name__ == "__main__":
    if "--uvloop" in sys.argv:
        import uvloop

        uvloop.install()
    anyio.run(main, Path(sys.argv[1]), Path(sys.argv[2]))
