"""The command line: names and one line each.  Imports click alone; a command loads when it runs."""

import importlib
import os
import sys
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

COMMANDS = {
    "up": ("up", "Run everything here: the broker, MCP over HTTP, and an agent in this directory."),
    "serve": ("up", "Run the broker and MCP over HTTP, without an agent."),
    "agent": ("agent", "Run the built-in agent in a directory, for a broker that runs elsewhere."),
    "demo": ("demo", "Watch a scripted ChatGPT use a bridge of its own; no account."),
    "model": ("model", "Serve the model `chappie` to agent programs; `model install` configures them."),
    "mcp": ("mcp", "Speak MCP over stdio; joins the running broker, or starts one."),
    "local": ("local", "Speak the local tools over MCP stdio: one session works with others."),
    "flow": ("flow", "Talk to a model that calls the bridge's tools as its local functions."),
    "sessions": ("shell", "List the agent sessions and who is bound to them."),
    "call": ("shell", "Run tools of a session."),
    "history": ("shell", "Read a session's transcript."),
    "send": ("moving", "Copy local files to a session's device."),
    "get": ("moving", "Copy files of a session's device here."),
    "copy": ("moving", "Copy files from one session to another."),
    "say": ("shell", "Type input to a session, as if at its own prompt."),
    "unbind": ("shell", "Forget which conversations have a session as their default."),
    "dashboard": ("dashboard", "Print a link that logs a browser in to the dashboard, once."),
    "watch": ("watch", "Show the sessions live, and what runs in them."),
    "code": ("letting", "Print a one-time code that lets an app in by OAuth."),
    "apps": ("letting", "List the apps that OAuth knows, or revoke one."),
    "subjects": ("letting", "List the ChatGPT users seen with each credential; allow or forget one."),
    "audit": ("audit", "Show who did what, where, and how it ended."),
    "pair": ("devices", "Print a line that lets one further device join this broker."),
    "join": ("devices", "Join the broker that printed such a line; agents here work for it then."),
    "devices": ("devices", "List the paired devices."),
    "revoke": ("devices", "Forget a device's token and cut its links."),
    "rotate": ("devices", "Give this device a new token."),
    "doctor": ("upkeep", "Check everything end to end, and say what to do."),
    "backup": ("upkeep", "Copy the state's database while the broker runs."),
    "config": ("upkeep", "Show the effective configuration and where each value came from."),
    "completion": ("upkeep", "Print the completion script of a shell."),
    "version": ("upkeep", "Show the versions."),
}
"""Command -> module beside this one that has a function of its name, and its line in `--help`."""

FAILED, WRONG_USE, NO_BROKER = 1, 2, 3
"""Exit codes, besides 0."""


class LazyGroup(click.Group):
    """Knows its commands by name; imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"{__name__}.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        command.short_help = COMMANDS[cmd_name][1]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=line)
            for name, (_, line) in COMMANDS.items()
            if name.startswith(incomplete)
        ]


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(version("chappie-bridge"))
        ctx.exit()


@click.group(cls=LazyGroup, name="chappie-bridge", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version."
)
def root() -> None:
    """ChatGPT, and any other MCP client, working inside the coding agents on your own machines.

    Begin with `chappie-bridge up` in a project's directory.
    """


def main(argv: Sequence[str] | None = None) -> None:
    """The console script.  Ends the process with 0, 1 failed, 2 wrong use, 3 cannot reach the broker."""
    try:
        root.main(args=None if argv is None else list(argv), prog_name="chappie-bridge")
    except BrokenPipeError:
        # The reader of our output left; nothing may be written on the way out either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
