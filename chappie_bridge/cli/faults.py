"""Where an error of a command becomes words and an exit code.  One boundary for all commands."""

import sys
from typing import NoReturn

import click
from chappie_broker.state import StateError
from chappie_broker.store.port import StoreError

from chappie_bridge.config import SettingsError
from chappie_bridge.wire.errors import BridgeError, Lost

from . import FAILED, NO_BROKER, WRONG_USE
from .output import complain, document


class NotThere(Lost):
    """No broker answers in this state directory. Start it with `chappie-bridge up`, or name its
    directory with `--state`."""


def end(error: Exception, *, as_json: bool) -> NoReturn:
    """Tell the first error that has a cause outside this program, and end the process; a bug is raised."""
    first = error
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    if isinstance(first, click.ClickException):
        raise first
    if isinstance(first, SettingsError):
        click.echo(str(first), err=True)
        sys.exit(WRONG_USE)
    if isinstance(first, BridgeError):
        complain(first, as_json=as_json)
        sys.exit(NO_BROKER if isinstance(first, NotThere) else FAILED)
    if not isinstance(first, StateError | StoreError | OSError):
        raise error
    message = first.strerror if isinstance(first, OSError) and first.strerror else str(first)
    if as_json:
        document({"error": {"code": "internal", "message": message, "retryable": False, "executed": "no"}})
    else:
        click.echo(message, err=True)
    sys.exit(FAILED)
