"""Commands for a person at a shell: sessions, call, history, say, unbind.  Each asks a Switchboard."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from . import FAILED
from .options import as_json, settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from chappie_bridge.config import Loaded
    from chappie_bridge.wire.ports import Switchboard
    from chappie_bridge.wire.requests import OperationView, Submit
    from chappie_bridge.wire.values import Entry, HistoryRange


@click.command()
@click.argument("session", required=False)
@click.option("--agent", help="Part of the agent's name.")
@click.option("--device", help="Part of the device's name.")
@click.option("--directory", help="Components of the working directory.")
@click.option("--name", help="Part of the session's name.")
@click.option("--online/--offline", default=None, help="Only these; both when not given.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True)
@click.option("--after", help="Go on after this session id.")
@settings()
@as_json
def sessions(loaded: Loaded, as_json: bool, **asked: Any) -> None:
    """List the agent sessions and how many conversations are bound to them."""
    from chappie_bridge.wire.requests import ListSessions

    from . import output
    from .reach import SHELL, ask
    from .watch import moving

    async def work(broker: Switchboard) -> int:
        found = await broker.sessions(ListSessions(caller=SHELL, **asked))
        if as_json:
            output.document(found)
            return 0
        output.table(
            ("session", "status", "agent", "device", "directory", "bound", "last seen", "transfers", "name"),
            [
                (
                    row.id,
                    row.status,
                    row.agent,
                    row.device,
                    row.cwd,
                    str(row.binding_count),
                    row.last_seen,
                    moving(row),
                    row.name or "",
                )
                for row in found.sessions
            ],
        )
        if found.has_more:
            click.echo(f"more: --after {found.sessions[-1].id}", err=True)
        return 0

    ask(loaded.settings, work)


@click.command()
@click.argument("session", required=False)
@click.argument("tool", required=False)
@click.argument("arguments", nargs=-1, metavar="[KEY=TEXT | KEY:=JSON]...")
@click.option(
    "--json-calls",
    metavar="FILE",
    help="A JSON array of {name, arguments}, from a file or `-`, as one batch.",
)
@click.option("--operation", help="Join this operation instead of starting one.")
@click.option("--cancel", is_flag=True, help="Stop --operation.")
@click.option("--key", help="Run at most once under this name within 24 hours.")
@click.option("--wait", type=click.FloatRange(0, 86400), help="Seconds; without it, until the end.")
@settings()
@as_json
def call(
    loaded: Loaded,
    as_json: bool,
    session: str | None,
    tool: str | None,
    arguments: Sequence[str],
    json_calls: str | None,
    operation: str | None,
    cancel: bool,
    key: str | None,
    wait: float | None,
) -> None:
    """Run tools of a session: one by name, or a batch with --json-calls.

    \b
    chappie-bridge call s_… bash command='git status'
    chappie-bridge call s_… read path=README.md limit:=20

    Exits with 1 when a call failed.  Ctrl-C stops the calls at their device and shows those that had ended;
    with --operation it only leaves.
    """
    from pydantic import TypeAdapter, ValidationError

    from chappie_bridge.wire.ids import OperationId, SessionId
    from chappie_bridge.wire.requests import Submit
    from chappie_bridge.wire.values import NewCall

    from .reach import SHELL, ask

    calls: tuple[NewCall, ...] | None
    if operation is not None:
        if tool or json_calls or key:
            raise click.UsageError("--operation joins what runs already; it takes no tool, calls or key")
        calls = None
    elif cancel:
        raise click.UsageError("--cancel needs --operation")
    elif session is None:
        raise click.UsageError("name a session; `chappie-bridge sessions` lists them")
    elif (tool is None) == (json_calls is None):
        raise click.UsageError("give a tool's name, or --json-calls")
    elif tool is not None:
        calls = (NewCall(name=tool, arguments=_arguments(arguments)),)
    else:
        with click.open_file(str(json_calls), encoding="utf-8") as stream:
            try:
                calls = TypeAdapter(tuple[NewCall, ...]).validate_json(stream.read())
            except ValidationError as error:
                fault = error.errors(include_url=False)[0]
                raise click.UsageError(f"--json-calls: {fault['loc']}: {fault['msg']}") from None

    async def work(broker: Switchboard) -> int:
        request = Submit(
            caller=SHELL,
            session=SessionId(session) if session else None,
            calls=calls,
            operation=OperationId(operation) if operation else None,
            cancel=cancel,
            key=key,
            wait=min(_AT_ONCE, wait) if wait is not None else _AT_ONCE,
        )
        if operation is None:
            ended = await _stoppable(broker, request, wait)
        else:
            ended = await _to_the_end(broker, await broker.call(request), wait)
        code = _show(ended, as_json=as_json)
        if ended.companions.receipt is not None:
            broker.told(ended.companions.receipt, sent=True)
        return code

    ask(loaded.settings, work)


_AT_ONCE = 0.5
"""Seconds until the operation's id is wanted: only with it can Ctrl-C stop the operation."""

_STRETCH = 40.0
"""Seconds of one request; a longer wait is several."""

_STOPPING = 10.0
"""Seconds in which a device may say how what was stopped ended."""


def _arguments(pairs: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.rstrip(":"):
            raise click.UsageError(f"{pair!r} is neither KEY=TEXT nor KEY:=JSON")
        if name.endswith(":"):
            try:
                found[name[:-1]] = json.loads(value)
            except ValueError as error:
                raise click.UsageError(f"{pair!r}: not JSON: {error}") from None
        else:
            found[name] = value
    return found


async def _stoppable(broker: Switchboard, request: Submit, wait: float | None) -> OperationView:
    """Until the end, or until Ctrl-C and the end that this makes; at a second Ctrl-C nobody waits."""
    import anyio

    from chappie_bridge.wire.batch import OPEN
    from chappie_bridge.wire.requests import Submit

    from .reach import SHELL

    patience = anyio.CancelScope()

    async def give_up(signals: AsyncIterator[signal.Signals]) -> None:
        await anext(signals)
        patience.cancel()

    with anyio.open_signal_receiver(signal.SIGINT) as signals:
        view = await broker.call(request)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(give_up, signals)
            with patience:
                view = await _to_the_end(broker, view, wait)
            tasks.cancel_scope.cancel()
    if patience.cancelled_caught and view.status in OPEN:
        stop = Submit(caller=SHELL, operation=view.operation, cancel=True, wait=_STOPPING)
        view = await broker.call(stop)
    return view


async def _to_the_end(broker: Switchboard, view: OperationView, wait: float | None) -> OperationView:
    import anyio

    from chappie_bridge.wire.batch import OPEN
    from chappie_bridge.wire.requests import Submit

    from .reach import SHELL

    until = None if wait is None else anyio.current_time() + wait
    told = False
    while view.status in OPEN:
        left = _STRETCH if until is None else min(_STRETCH, until - anyio.current_time())
        if left <= 0:
            break
        if not told:
            needs = "".join(f"; waits for {need.kind}: {need.what}" for need in view.needs)
            click.echo(f"{view.operation} is {view.status}{needs}", err=True)
            told = True
        view = await broker.call(Submit(caller=SHELL, operation=view.operation, wait=left))
    return view


def _show(view: OperationView, *, as_json: bool) -> int:
    from chappie_bridge.wire.batch import OPEN, Status

    from . import output

    failed = view.status not in {*OPEN, Status.DONE} or any(result.is_error for result in view.results)
    if as_json:
        output.document(view)
    else:
        for result in view.results:
            if len(view.results) > 1:
                click.echo(
                    f"--- {result.name} ({'failed, ' if result.is_error else ''}{result.duration_ms} ms)"
                )
            output.blocks(result.content)
        if view.status is not Status.DONE:
            click.echo(f"{view.operation} {view.status}, executed: {view.executed}", err=True)
        if view.error is not None:
            click.echo(f"{view.error.code}: {view.error.message}", err=True)
    return FAILED if failed else 0


@click.command()
@click.argument("session")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True)
@click.option("--before", help="Page backward from this entry.")
@click.option("--after", help="Page forward from this entry.")
@click.option("--query", help="Only entries that contain this.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new entries as they come.")
@settings()
@as_json
def history(
    loaded: Loaded,
    as_json: bool,
    session: str,
    limit: int,
    before: str | None,
    after: str | None,
    query: str | None,
    follow: bool,
) -> None:
    """Read a session's transcript, the latest entries by default.

    With --follow, --json prints one document for each page.
    """
    import anyio

    from chappie_bridge.wire.ids import EntryId, SessionId
    from chappie_bridge.wire.requests import FetchHistory
    from chappie_bridge.wire.values import HistoryRange

    from . import output
    from .reach import SHELL, ask

    if follow and before:
        raise click.UsageError("--follow reads forward; it takes no --before")

    async def work(broker: Switchboard) -> int:
        async def page(entries: HistoryRange) -> EntryId | None:
            view = await broker.history(FetchHistory(caller=SHELL, session=SessionId(session), range=entries))
            if as_json and (view.page.entries or not entries.wait):
                output.document(view)
            elif not as_json:
                for entry in view.page.entries:
                    _print(entry)
                if view.page.has_more and not follow:
                    click.echo("more: page on with --before or --after", err=True)
            return view.page.entries[-1].id if view.page.entries else entries.after

        last = await page(
            HistoryRange(
                limit=limit,
                before=EntryId(before) if before else None,
                after=EntryId(after) if after else None,
                wait=0,
                query=query,
                offset=None,
                observer=True,
            )
        )
        while follow:
            sys.stdout.flush()
            if last is None:  # without an entry to wait after, the broker answers at once
                await anyio.sleep(1)
            new = HistoryRange(limit=200, after=last, wait=30, query=query, offset=None, observer=True)
            last = await page(new)
        return 0

    try:
        ask(loaded.settings, work)
    except KeyboardInterrupt:
        if not follow:
            raise


def _print(entry: Entry) -> None:
    from chappie_bridge.codec.unicode import display

    from . import output

    words = [entry.at, entry.kind]
    if entry.name:
        words.append(display(entry.name, 100))
    if entry.is_error:
        words.append("(failed)")
    click.echo(click.style(" ".join(words), dim=True) + click.style(f"  {entry.id}", dim=True))
    if entry.arguments is not None:
        output.body(json.dumps(entry.arguments, ensure_ascii=False))
    output.blocks(entry.content)


@click.command()
@click.argument("session")
@click.argument("text", nargs=-1)
@settings()
@as_json
def say(loaded: Loaded, as_json: bool, session: str, text: Sequence[str]) -> None:
    """Type input to a session, as if at its own prompt; without TEXT, what stdin holds."""
    from chappie_bridge.wire.blocks import Text
    from chappie_bridge.wire.ids import SessionId
    from chappie_bridge.wire.requests import TypeInput

    from . import output
    from .reach import SHELL, ask

    if text:
        words = " ".join(text)
    else:
        with click.open_file("-", encoding="utf-8") as stdin:
            words = stdin.read()
    if not words.strip():
        raise click.UsageError("there is nothing to say")

    async def work(broker: Switchboard) -> int:
        await broker.say(TypeInput(caller=SHELL, session=SessionId(session), content=(Text(text=words),)))
        if as_json:
            output.document({"said": True})
        return 0

    ask(loaded.settings, work)


@click.command()
@click.argument("session")
@settings()
@as_json
def unbind(loaded: Loaded, as_json: bool, session: str) -> None:
    """Forget which conversations have a session as their default."""
    from chappie_bridge.wire.ids import SessionId
    from chappie_bridge.wire.requests import Unbind

    from . import output
    from .reach import SHELL, ask

    async def work(broker: Switchboard) -> int:
        freed = await broker.unbind(Unbind(caller=SHELL, session=SessionId(session)))
        if as_json:
            output.document(freed)
        else:
            click.echo(f"{freed.count} conversation{'s' if freed.count != 1 else ''} unbound")
        return 0

    ask(loaded.settings, work)
