"""The whole bridge with the `noop` agent in its own process.  `python _noop_bridge.py STATE DIRECTORY`."""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import anyio
from _noop_agent import opened
from chappie_agents.attendant import AgentHost
from chappie_broker.state import StateDirectory

from chappie_bridge.cli.front import front_door
from chappie_bridge.cli.loop import settled
from chappie_bridge.cli.serving import LOCAL, serving
from chappie_bridge.config import load
from chappie_bridge.inproc import connect
from chappie_bridge.wire.ids import Mint
from chappie_bridge.wire.ports import Peer


async def main(path: Path, directory: Path) -> None:
    settings = load({"state": str(path), "http": "127.0.0.1:0", "listen": "127.0.0.1:0"}).settings
    with StateDirectory.open(path) as state:
        async with (
            serving(state, settings) as broker,
            front_door(state, settings, broker.broker, broker.office, broker.broker.apps) as door,
            anyio.create_task_group() as tasks,
        ):
            host = AgentHost()
            await tasks.start(host.run)
            session = opened(path, directory)
            await host.add(session.session)
            there = Peer("agent", LOCAL, Mint().instance(), "bench")
            connect(
                broker.attendant,
                there,
                host,
                Peer("broker", LOCAL, Mint().instance(), version("chappie-bridge")),
            )
            told = {"url": door.url, "headers": door.headers, "session": session.session.info.id}
            print(json.dumps(told), flush=True)
            settled()
            await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), Path(sys.argv[2]), backend_options={"use_uvloop": True})
