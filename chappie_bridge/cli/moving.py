"""Commands that move files: send, get, copy.  The bytes of `copy` never come near this process."""

from __future__ import annotations

import base64
import hashlib
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import FAILED
from .options import as_json, settings

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from chappie_bridge.config import Loaded
    from chappie_bridge.wire.errors import Failure
    from chappie_bridge.wire.ports import Switchboard
    from chappie_bridge.wire.requests import OperationView
    from chappie_bridge.wire.values import FileReport

_PIECE = 512 * 1024 // 3 * 3
_LOOK = 0.3
"""Seconds between two looks at how far a copy is."""

overwrite = click.option("--overwrite", is_flag=True, help="Replace existing files.")


@click.command()
@click.argument("session")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--to", metavar="PATH", help="Where: a file's new name, or a directory ending in `/`.")
@overwrite
@settings()
@as_json
def send(
    loaded: Loaded, as_json: bool, session: str, files: Sequence[Path], to: str | None, overwrite: bool
) -> None:
    """Copy local FILES to SESSION's device, into its directory or --to."""
    from chappie_bridge.wire.ids import SessionId
    from chappie_bridge.wire.requests import Transfer, Upload

    from .reach import SHELL, ask

    targets = _targets([file.name for file in files], to)

    async def work(broker: Switchboard) -> int:
        import anyio

        view = await broker.transfer(
            Transfer(
                caller=SHELL,
                session=SessionId(session),
                paths=targets,
                uploads=tuple(Upload(name=file.name, size=file.stat().st_size) for file in files),
                overwrite=overwrite,
                wait=0,
            )
        )
        ended = view
        async with anyio.create_task_group() as tasks:
            for index, file in enumerate(files):
                tasks.start_soon(_push, broker, view, index, file)
            ended = await _followed(broker, view, quiet=as_json)
            tasks.cancel_scope.cancel()
        return _told(ended, as_json=as_json)

    ask(loaded.settings, work)


async def _push(broker: Switchboard, view: OperationView, index: int, file: Path) -> None:
    """Send a file as fast as it is taken; what went wrong is told by the operation."""
    from anyio import to_thread

    from chappie_bridge.wire.errors import BridgeError
    from chappie_bridge.wire.requests import Push, Submit

    from .reach import SHELL

    size = file.stat().st_size
    digest, hashed = hashlib.sha256(), 0
    with file.open("rb") as stream:
        offset: int | None = 0
        while offset is not None:
            stream.seek(offset)
            data = await to_thread.run_sync(stream.read, min(_PIECE, size - offset))
            if len(data) < min(_PIECE, size - offset):
                await broker.call(Submit(caller=SHELL, operation=view.operation, cancel=True))
                click.echo(f"{file} became shorter while it was sent", err=True)
                return
            if offset <= hashed < offset + len(data):  # what is sent again is hashed already
                digest.update(memoryview(data)[hashed - offset :])
                hashed = offset + len(data)
            push = Push(
                caller=SHELL,
                operation=view.operation,
                index=index,
                offset=offset,
                data=base64.b64encode(data).decode("ascii"),
                sha256=digest.hexdigest() if hashed == size else None,
            )
            try:
                offset = (await broker.push(push)).offset
            except BridgeError:
                return


@click.command()
@click.argument("session")
@click.argument("paths", nargs=-1, required=True)
@click.option("--to", metavar="PATH", help="Where: a file's new name, or a directory ending in `/`.")
@overwrite
@settings()
@as_json
def get(
    loaded: Loaded, as_json: bool, session: str, paths: Sequence[str], to: str | None, overwrite: bool
) -> None:
    """Copy PATHS of SESSION's device here, or to --to.

    A PATH may be a chappie:// reference that a result showed.
    """
    from chappie_bridge.wire.ids import SessionId
    from chappie_bridge.wire.requests import Transfer

    from . import output
    from .reach import SHELL, ask

    async def work(broker: Switchboard) -> int:
        request = Transfer(caller=SHELL, session=SessionId(session), paths=tuple(paths), wait=40)
        view = await _ended(broker, await broker.transfer(request))
        names = [file.link.name if file.link else "" for file in view.files]
        reports = []
        for file, target in zip(view.files, _targets(names, to), strict=True):
            reports.append(await _fetched(broker, file, Path(target), overwrite=overwrite, quiet=as_json))
        if as_json:
            output.document({"operation": view.operation, "files": reports})
        else:
            for report in reports:
                _line(report)
        return FAILED if any("error" in report for report in reports) else 0

    ask(loaded.settings, work)


async def _fetched(
    broker: Switchboard, file: FileReport, target: Path, *, overwrite: bool, quiet: bool
) -> dict[str, Any]:
    """One file, written under a name of its own until all of it is here and right."""
    from anyio import to_thread
    from chappie_agents.faults import told_of
    from chappie_agents.part import Part

    from chappie_bridge.wire.errors import BridgeError, Checksum, PathExists
    from chappie_bridge.wire.reference import parse
    from chappie_bridge.wire.requests import FetchBytes

    from .reach import SHELL

    if file.link is None:
        return _failed(file.path, file.error.message if file.error else "It was not offered.")
    reference = parse(file.link.uri)
    target = target.absolute()
    part: Part | None = None
    try:
        with told_of(target), _bar(quiet, file.link.name, file.link.size) as advance:
            if target.exists() and not overwrite:
                raise PathExists(f"{target} exists; --overwrite replaces it.")
            part = Part.create(target, parents=True)
            size = file.link.size or 0
            while part.position < size:
                request = FetchBytes(
                    caller=SHELL,
                    session=reference.session,
                    source=reference.source,
                    offset=part.position,
                    length=min(_PIECE, size - part.position),
                )
                data = base64.b64decode((await broker.fetch(request)).data)
                if not data:
                    raise Checksum
                await to_thread.run_sync(part.write, [data])
                advance(part.position)
            if part.sha256 != file.sha256:
                raise Checksum
            await to_thread.run_sync(part.settle)
            part.publish(overwrite=overwrite)
            part.close()
    except BaseException as error:
        if part is not None:
            part.remove()
        if isinstance(error, BridgeError):
            return _failed(file.path, str(error), error.code)
        raise
    return {"path": file.path, "writtenTo": str(target), "bytes": size, "sha256": file.sha256}


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="SESSION:PATH... SESSION:PATH")
@overwrite
@click.option("--wait", type=click.FloatRange(0), help="Seconds; without it, until the end.")
@settings()
@as_json
def copy(loaded: Loaded, as_json: bool, files: Sequence[str], overwrite: bool, wait: float | None) -> None:
    """Copy files from one session to another, on any devices.

    \b
    chappie-bridge copy s_one:build/app.tar s_two:app.tar
    chappie-bridge copy s_one:a.log s_one:b.log s_two:logs/

    Ctrl-C leaves it going on; join it with `call --operation`.
    """
    from chappie_bridge.wire.ids import SessionId
    from chappie_bridge.wire.requests import Transfer
    from chappie_bridge.wire.values import RemotePaths

    from .reach import SHELL, ask

    *sources, (to, last) = (_place(file) for file in files)
    origins = {session for session, _ in sources}
    if len(origins) != 1:
        raise click.UsageError("name one or more files of one session, then the place in the other")
    paths = tuple(path for _, path in sources)
    targets = _targets([path.rstrip("/").rpartition("/")[2] for path in paths], last or "./")

    async def work(broker: Switchboard) -> int:
        request = Transfer(
            caller=SHELL,
            session=SessionId(to),
            paths=targets,
            source=RemotePaths(session=SessionId(origins.pop()), paths=paths),
            overwrite=overwrite,
            wait=0,
        )
        view = await broker.transfer(request)
        return _told(await _followed(broker, view, quiet=as_json, wait=wait), as_json=as_json)

    ask(loaded.settings, work)


def _place(text: str) -> tuple[str, str]:
    session, colon, path = text.partition(":")
    if not colon or not session:
        raise click.UsageError(f"{text!r} is not SESSION:PATH")
    return session, path


def _targets(names: Sequence[str], to: str | None) -> tuple[str, ...]:
    """Where each file goes."""
    if to is None:
        return tuple(names)
    if to.endswith("/"):
        return tuple(to + name for name in names)
    if len(names) > 1:
        raise click.UsageError("several files go into a directory: let its name end in `/`")
    return (to,)


async def _followed(
    broker: Switchboard, view: OperationView, *, quiet: bool, wait: float | None = None
) -> OperationView:
    """To its end, or for `wait` seconds, with a bar on a terminal."""
    import anyio

    from chappie_bridge.wire.batch import OPEN
    from chappie_bridge.wire.requests import Submit

    from .reach import SHELL

    until = None if wait is None else anyio.current_time() + wait
    first, *more = view.files
    what = f"{len(view.files)} files" if more else first.path
    with _bar(quiet, what, None) as advance:
        while view.status in OPEN and (until is None or anyio.current_time() < until):
            view = await broker.call(Submit(caller=SHELL, operation=view.operation, wait=_LOOK))
            known = [file.size for file in view.files]
            whole = sum(size or 0 for size in known) if None not in known else None
            advance(sum(file.moved for file in view.files), whole)
    return view


async def _ended(broker: Switchboard, view: OperationView) -> OperationView:
    return await _followed(broker, view, quiet=True)


class _Advance:
    """How far it is, in bytes."""

    def __call__(self, done: int, total: int | None = None) -> None: ...


@contextmanager
def _bar(quiet: bool, what: str, total: int | None) -> Generator[_Advance]:
    """Bytes, rate and time left, on a terminal only."""
    if quiet or not sys.stderr.isatty():
        yield _Advance()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from chappie_bridge.codec.unicode import display

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task, whole = progress.add_task(display(what, 40), total=total), total

        class _Shown(_Advance):
            def __call__(self, done: int, total: int | None = None) -> None:
                progress.update(task, completed=done, total=total or whole)

        yield _Shown()


def _told(view: OperationView, *, as_json: bool) -> int:
    """What became of each file; the exit code."""
    from chappie_bridge.wire.batch import OPEN, Status

    from . import output

    if as_json:
        output.document(view)
    else:
        for file in view.files:
            if file.error is not None:
                _line(_failed(file.path, _said(file.error), file.error.code))
            elif view.status not in OPEN:
                _line({"writtenTo": file.written or file.path, "bytes": file.moved, "sha256": file.sha256})
        if view.status in OPEN:
            click.echo(f"{view.operation} is {view.status}", err=True)
        elif view.error is not None:
            click.echo(f"{view.error.code}: {view.error.message}", err=True)
    return 0 if view.status in OPEN or view.status is Status.DONE else FAILED


def _said(failure: Failure) -> str:
    """In a shell's words: there it is an option that replaces a file."""
    return "it exists there; --overwrite replaces it" if failure.code == "path_exists" else failure.message


def _failed(path: str, message: str, code: str = "") -> dict[str, Any]:
    return {"path": path, "error": {"code": code, "message": message}}


def _line(report: dict[str, Any]) -> None:
    from chappie_bridge.codec.unicode import display

    if "error" in report:
        click.echo(f"{display(report['path'], 200)}: {display(report['error']['message'], 500)}", err=True)
    else:
        click.echo(f"{report['sha256']}  {report['bytes']}  {display(report['writtenTo'], 500)}")
