"""`watch`: the sessions and what runs in them, as it changes.  Only reads."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from .options import as_json, settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chappie_bridge.config import Loaded
    from chappie_bridge.wire.ports import Switchboard
    from chappie_bridge.wire.requests import ListSessions
    from chappie_bridge.wire.values import SessionRow

SHOWN = 200
"""Sessions, the online ones first."""

COLUMNS = ("session", "status", "device", "directory", "bound", "runs", "transfers", "name")


@click.command()
@click.option("--directory", help="Components of the working directory.")
@click.option("--all", "everything", is_flag=True, help="Those that are offline, too.")
@click.option("--every", type=click.FloatRange(0.1, 60), default=1.0, show_default=True, help="Seconds.")
@settings()
@as_json
def watch(loaded: Loaded, as_json: bool, directory: str | None, everything: bool, every: float) -> None:
    """Show the sessions live: status, what runs, transfers.  Ctrl-C ends it.

    With --json, one document for each session that changed; without a terminal, one line.
    """
    from chappie_bridge.wire.requests import ListSessions

    from .reach import SHELL, ask

    wanted = ListSessions(caller=SHELL, directory=directory, online=None if everything else True, limit=SHOWN)

    async def work(broker: Switchboard) -> int:
        if as_json or not sys.stdout.isatty():
            await _changes(broker, wanted, every, as_json=as_json)
        else:
            await _screen(broker, wanted, every)
        return 0

    with suppress(KeyboardInterrupt):  # how a person ends it
        ask(loaded.settings, work)


async def _changes(broker: Switchboard, wanted: ListSessions, every: float, *, as_json: bool) -> None:
    import anyio

    from . import output

    before: dict[str, SessionRow] = {}
    while True:
        rows = (await broker.sessions(wanted)).sessions
        # When it was last seen changes all the time.
        now: dict[str, SessionRow] = {row.id: row.model_copy(update={"last_seen": ""}) for row in rows}
        for row in rows:
            if now[row.id] != before.get(row.id):
                if as_json:
                    output.document(row)
                else:
                    output.body("\t".join(_cells(row)))
        for left in before.keys() - now.keys():
            if as_json:
                output.document({"id": left, "gone": True})
            else:
                output.body(f"{left}\tgone")
        before = now
        sys.stdout.flush()
        await anyio.sleep(every)


async def _screen(broker: Switchboard, wanted: ListSessions, every: float) -> None:
    import anyio
    from rich.live import Live

    from . import output

    with Live(auto_refresh=False) as live:
        while True:
            found = await broker.sessions(wanted)
            live.update(output.grid(COLUMNS, map(_cells, found.sessions)), refresh=True)
            await anyio.sleep(every)


def _cells(row: SessionRow) -> Sequence[str]:
    bound = str(row.binding_count)
    return row.id, row.status, row.device, row.cwd, bound, row.running or "", moving(row), row.name or ""


def moving(row: SessionRow) -> str:
    """What moves from or to the session, and how much of it has."""
    return ", ".join(f"{each.operation} {_share(each.moved, each.size)}" for each in row.transfers)


def _share(moved: int, size: int | None) -> str:
    return f"{100 * moved // size}%" if size else f"{moved} bytes"
