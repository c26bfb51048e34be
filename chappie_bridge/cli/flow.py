"""`flow`: a conversation at the terminal over the local function flow.  Goes where the owner's configuration
says, and nowhere without it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from . import FAILED
from .options import as_json, settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chappie_bridge.config import Loaded
    from chappie_bridge.faces.flow.settings import FlowSettings
    from chappie_bridge.faces.flow.talk import Talk
    from chappie_bridge.faces.flow.tools import LocalTools
    from chappie_bridge.faces.flow.transport import Transport
    from chappie_bridge.faces.flow.turn import Conversation
    from chappie_bridge.wire.ids import SessionId
    from chappie_bridge.wire.ports import Switchboard

    from .flow_screen import Screen


@click.command()
@click.argument("text", nargs=-1)
@click.option("--session", metavar="ID", help="Where the tools work; without it, the bridge's own choice.")
@click.option("--native", is_flag=True, help="Declare the session's own tools too, each by its name.")
@click.option("--conversation", metavar="ID", help="Go on with this conversation.")
@click.option("--parent", metavar="ID", help="Its last message, where the endpoint cannot be asked for it.")
@click.option("--model", metavar="NAME", help="A name of [flow.models], such as Instant, Medium, High.")
@click.option(
    "--yes", "-y", is_flag=True, help="Open a task in the session whenever the model hands one off."
)
@settings()
@as_json
def flow(
    loaded: Loaded,
    as_json: bool,
    text: Sequence[str],
    session: str | None,
    native: bool,
    conversation: str | None,
    parent: str | None,
    model: str | None,
    yes: bool,
) -> None:
    """Talk to a model that calls the bridge's tools as its local functions.

    With TEXT, or with stdin from elsewhere, one turn; at a terminal, turn by turn until an empty line's end
    of input.  The answer goes to stdout, the tool trail to stderr.  Ctrl-C ends the turn; what runs on a
    device goes on.  Needs [flow] in your config.toml: docs/flow.md.
    """
    from chappie_bridge.faces.flow.transport import Transport

    from .flow_screen import Screen
    from .reach import ask

    if parent and not conversation:
        raise click.UsageError("--parent belongs to --conversation")
    own = loaded.settings.flow
    name = model or own.model
    if name not in own.models:
        raise click.UsageError(f"no model {name!r} in [flow.models]; there are {', '.join(own.models)}")
    alone = " ".join(text) or (None if sys.stdin.isatty() else sys.stdin.read())
    if alone is not None and not alone.strip():
        raise click.UsageError("there is nothing to say")
    transport = Transport(own)
    screen = Screen(as_json=as_json)

    async def work(broker: Switchboard) -> int:
        import anyio

        from chappie_bridge.faces.flow.talk import Talk

        tools = await _tools(loaded, broker, session, screen, native=native, yes=yes)
        if tools.left_out:
            click.echo(f"not declared, for want of room: {', '.join(tools.left_out)}", err=True)
        held = await _held(own, name, transport, tools, conversation, parent)
        talk = Talk(held, transport, tools, screen.show)
        if alone is not None:
            return await _turn(talk, screen, alone)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(talk.open)
            while (line := await _typed(talk, screen)) is not None:
                if line.strip():
                    await _turn(talk, screen, line)
            tasks.cancel_scope.cancel()
        return 0

    ask(loaded.settings, work)


async def _turn(talk: Talk, screen: Screen, text: str) -> int:
    """One turn; Ctrl-C stops it and nothing else."""
    import signal

    import anyio

    from chappie_bridge.faces.flow.turn import Ended, State

    ended = Ended(State.STOPPED, "stopped")

    async def stop_on_signal(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_on_signal, tasks.cancel_scope)
        ended = await talk.say(text)
        tasks.cancel_scope.cancel()
    screen.ended(ended, talk.conversation)
    return 0 if ended.state is State.FINISHED else FAILED


async def _typed(talk: Talk, screen: Screen) -> str | None:
    """The next line; what is typed is prepared meanwhile."""
    import anyio

    line: str | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(talk.typing, screen.buffer)
        line = await screen.line("> ")
        tasks.cancel_scope.cancel()
    return line


async def _tools(
    loaded: Loaded, broker: Switchboard, wanted: str | None, screen: Screen, *, native: bool, yes: bool
) -> LocalTools:
    import anyio

    from chappie_bridge.faces.chatgpt.present import Presenter
    from chappie_bridge.faces.flow.tools import LocalTools
    from chappie_bridge.wire.ids import SessionId
    from chappie_bridge.wire.requests import ListTools

    from .face import VERSION
    from .reach import SHELL

    target = SessionId(wanted) if wanted else await _only(broker) if native else None
    own = (await broker.tools(ListTools(caller=SHELL, session=target))).tools if native else ()

    async def approve(prompt: str, reason: str) -> bool:
        return yes or await screen.agreed(prompt, reason)

    return LocalTools(
        broker,
        Presenter(broker, VERSION, loaded.settings.trim_tokens),
        clock=anyio.current_time,
        approve=approve,
        session=target,
        native=own,
        wait=loaded.settings.wait,
    )


async def _only(broker: Switchboard) -> SessionId:
    """The one session that is online."""
    from chappie_bridge.wire.errors import BadArguments, NoSession
    from chappie_bridge.wire.requests import ListSessions

    from .reach import SHELL

    found = (await broker.sessions(ListSessions(caller=SHELL, online=True, limit=2))).sessions
    if len(found) > 1:
        raise BadArguments(
            "Several sessions are online.",
            hint="Name one with --session; `chappie-bridge sessions` lists them.",
        )
    for row in found:
        return row.id
    raise NoSession


async def _held(
    own: FlowSettings,
    model: str,
    transport: Transport,
    tools: LocalTools,
    conversation: str | None,
    parent: str | None,
) -> Conversation:
    import time
    import uuid

    from chappie_bridge.faces.flow.hearing import last_assistant
    from chappie_bridge.faces.flow.turn import Conversation, Manner
    from chappie_bridge.wire.errors import BadArguments

    from .zone import offset, zone

    if conversation is not None and parent is None:
        parent = last_assistant(await transport.read(conversation))
        if parent is None:
            raise BadArguments(
                "The conversation's last message is not known.",
                hint="Set `read` in [flow], or name the message with --parent.",
            )
    name = own.timezone or zone()
    manner = Manner(
        model=own.models[model].model,
        effort=own.models[model].effort,
        timezone=name,
        offset=offset(name, time.time()),
        signatures=tools.signatures,
        tools=tools.names,
        hidden=own.hidden,
        readable=bool(own.read),
    )
    return Conversation(
        manner, now=time.time, new_id=lambda: str(uuid.uuid4()), id=conversation, parent=parent
    )
