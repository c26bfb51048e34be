"""Commands that look after the bridge itself: doctor, backup, config, completion, version."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import FAILED, root
from .options import as_json, settings

if TYPE_CHECKING:
    from chappie_bridge.config import Loaded
    from chappie_bridge.doctor import Finding


@click.command()
@click.option("--move-aside", is_flag=True, help="Put a damaged registry out of the way.")
@click.option(
    "--restore",
    metavar="BACKUP",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Put a backup in the registry's place.",
)
@settings()
@as_json
def doctor(loaded: Loaded, as_json: bool, move_aside: bool, restore: Path | None) -> None:
    """Check everything end to end, and say what to do.

    Exits with 1 when something is at fault.
    """
    import anyio

    from chappie_bridge.doctor import examine, move_registry_aside, restore_registry

    from . import output
    from .agent import policy
    from .reach import reached

    state = loaded.settings.state_directory
    if move_aside or restore:
        moved = restore_registry(state, restore) if restore else move_registry_aside(state)
        click.echo(f"the registry before is now {moved}" if moved else "there was none before", err=True)

    async def look() -> list[Finding]:
        findings: list[Finding] = []
        async for finding in examine(loaded, policy(loaded.settings).describe(), reached):
            findings.append(finding)
            if not as_json:
                _show(finding)
        for finding in await anyio.to_thread.run_sync(_of_programs, loaded):
            findings.append(finding)
            if not as_json:
                _show(finding)
        return findings

    findings = anyio.run(look)
    if as_json:
        output.document([asdict(finding) for finding in findings])
    if any(finding.verdict == "fault" for finding in findings):
        sys.exit(FAILED)


def _of_programs(loaded: Loaded) -> list[Finding]:
    from chappie_broker.state import StateDirectory, StateError

    from . import programs

    settings = loaded.settings
    try:
        state = StateDirectory.visit(settings.state_directory)
        return list(programs.findings(state, Path.home(), settings.model_port))
    except StateError:
        return []  # said already


def _show(finding: Finding) -> None:
    mark, colour = {"ok": ("ok", "green"), "warning": ("!", "yellow"), "fault": ("FAULT", "red")}[
        finding.verdict
    ]
    click.echo(f"{click.style(mark.ljust(5), fg=colour)}  {finding.name}: {finding.said}")
    if finding.todo:
        click.echo(f"       {finding.todo}")


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@settings()
@as_json
def backup(loaded: Loaded, as_json: bool, target: Path) -> None:
    """Copy the state's database to the new file TARGET, also while the broker runs."""
    import anyio
    from chappie_broker.state import StateDirectory
    from chappie_broker.store.sqlite import SqliteStore

    from chappie_bridge.wire.errors import PathMissing

    from . import output

    async def copy(database: Path) -> None:
        store = await SqliteStore.open(database)
        try:
            await store.backup(target.absolute())
        finally:
            await store.close()

    database = StateDirectory.visit(loaded.settings.state_directory).database
    if not database.exists():
        raise PathMissing(f"There is nothing to copy: {database} does not exist.")
    anyio.run(copy, database)
    if as_json:
        output.document({"backup": str(target.absolute())})
    else:
        click.echo(target.absolute())


@click.command()
@settings("http", "listen", "connect")
@as_json
def config(loaded: Loaded, as_json: bool) -> None:
    """Show the effective configuration and where each value came from."""
    from chappie_bridge.config import default_file

    from . import output

    values = loaded.settings.model_dump(mode="json")
    if as_json:
        output.document(
            {
                "file": str(loaded.file) if loaded.file else None,
                "settings": {
                    key: {"value": value, "source": loaded.source[key]} for key, value in values.items()
                },
            }
        )
        return
    click.echo(f"file: {loaded.file or f'none ({default_file()} would be read)'}", err=True)
    import json

    output.table(
        ("setting", "value", "from"),
        [(key, json.dumps(value, ensure_ascii=False), loaded.source[key]) for key, value in values.items()],
    )


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: eval "$(chappie-bridge completion bash)"     in ~/.bashrc
    zsh:  eval "$(chappie-bridge completion zsh)"      in ~/.zshrc
    fish: chappie-bridge completion fish | source      in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:  # pragma: no cover  # the choice above is click's own list
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(root, {}, "chappie-bridge", "_CHAPPIE_BRIDGE_COMPLETE").source())


@click.command()
@as_json
def version(as_json: bool) -> None:
    """Show the versions of the bridge and of what it stands on."""
    import platform
    import sqlite3
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as of

    from chappie_bridge.wire.link import PROTOCOL

    from . import output

    found = {
        "chappie-bridge": of("chappie-bridge"),
        "link": str(PROTOCOL),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    for package in ("mcp", "starlette", "uvicorn", "websockets", "pydantic", "uvloop", "httptools"):
        try:
            found[package] = of(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    if as_json:
        output.document(found)
    else:
        output.table(("part", "version"), list(found.items()))
