"""`audit`: who did what, where, and how it ended.  Only reads."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from .options import as_json, settings

if TYPE_CHECKING:
    from chappie_bridge.config import Loaded
    from chappie_bridge.wire.owner import AuditRow
    from chappie_bridge.wire.ports import Office

PAGE = 500

EVERY = 1.0
"""Seconds between two looks at what is new; the broker writes twice a second."""


@click.command()
@click.option("-n", "--lines", type=click.IntRange(1, 100_000), default=50, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes; Ctrl-C ends it.")
@settings()
@as_json
def audit(loaded: Loaded, as_json: bool, lines: int, follow: bool) -> None:
    """Show the newest lines of the audit log, the oldest of them first.

    Each operation has one line before it is sent and one with its outcome.  No line holds arguments,
    output or a credential.  With --json, one document a line.
    """
    import anyio
    from chappie_broker.state import StateDirectory

    from .reach import reached

    async def work() -> None:
        async with reached(StateDirectory.visit(loaded.settings.state_directory)) as broker:
            last = _tell(await _newest(broker, lines, after=-1), as_json=as_json)
            while follow:
                await anyio.sleep(EVERY)
                last = _tell(await _newest(broker, None, after=last), as_json=as_json) or last

    with suppress(KeyboardInterrupt):  # how a person ends it
        anyio.run(work)


async def _newest(office: Office, count: int | None, *, after: int) -> list[AuditRow]:
    """At most `count` lines above number `after`, oldest first."""
    from chappie_bridge.wire.owner import ReadAudit

    from .reach import SHELL

    found: list[AuditRow] = []
    before: int | None = None
    while count is None or len(found) < count:
        limit = PAGE if count is None else min(PAGE, count - len(found))
        page = (await office.audit(ReadAudit(caller=SHELL, before=before, limit=limit))).lines
        new = [line for line in page if line.number > after]
        found += new
        if len(new) < limit:
            break
        before = new[-1].number
    return found[::-1]


def _tell(lines: list[AuditRow], *, as_json: bool) -> int:
    """The number of the last one; 0: there was none."""
    from chappie_bridge.codec.unicode import display

    from . import output

    for line in lines:
        if as_json:
            output.document(line)
            continue
        took = "" if line.duration_ms is None else f"{line.duration_ms} ms"
        cells = (line.at, line.who, line.what, line.where, str(line.size), line.outcome, took)
        click.echo("\t".join(display(cell, 300) for cell in cells))
    sys.stdout.flush()
    return lines[-1].number if lines else 0
