"""Options that several commands share; how settings and logs begin.  Imports click alone at first."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import WRONG_USE

if TYPE_CHECKING:
    from chappie_bridge.config import Loaded

_SETTINGS = {
    "state": click.option("--state", metavar="DIR", help="State directory."),
    "http": click.option("--http", metavar="HOST:PORT", help="Where MCP listens; port 0 takes a free one."),
    "listen": click.option(
        "--link", "listen", metavar="HOST:PORT", help="Where agents of other processes connect."
    ),
    "connect": click.option(
        "--connect", metavar="URL", help="The broker's link, if it is not on this machine."
    ),
    "model_port": click.option(
        "--port",
        "model_port",
        type=click.IntRange(0, 65535),
        help="Of the model endpoint on 127.0.0.1; 0 takes a free one.",
    ),
    "log_level": click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        help="What is told on stderr.",
    ),
}
"""Setting -> the option that overrides it."""

as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document instead of words.")


def settings(*keys: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `--config`, `--state`, `--log-level` and the options of `keys`; passes `loaded` in their place.

    Ends with exit code 2 when a setting is wrong."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        wanted = ("state", *keys, "log_level")

        @functools.wraps(command)
        def run(*args: Any, config_file: Path | None, **given: Any) -> Any:
            flags = {key: given.pop(key) for key in wanted}
            loaded = load(flags, config_file)
            try:
                return command(*args, loaded=loaded, **given)
            except (click.ClickException, click.exceptions.Exit, click.Abort):
                raise
            except Exception as error:
                from .faults import end

                end(error, as_json=given.get("as_json", False))

        for key in reversed(wanted):
            run = _SETTINGS[key](run)
        return click.option(
            "--config",
            "config_file",
            metavar="FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Configuration instead of the user's own.",
        )(run)

    return decorate


def load(flags: dict[str, Any], file: Path | None) -> Loaded:
    from chappie_bridge import config

    try:
        loaded = config.load(flags, file)
    except config.SettingsError as error:
        raise _WrongSetting(str(error)) from None
    log_to_stderr(loaded.settings.log_level)
    return loaded


class _WrongSetting(click.ClickException):
    exit_code = WRONG_USE


def log_to_stderr(level: str) -> None:
    """Where logging is set up; stdout stays the command's own."""
    _log(logging.StreamHandler(), level)


def log_to(file: Path, level: str) -> None:
    """The same into a file of at most 1 MiB, and one before it."""
    from logging.handlers import RotatingFileHandler

    _log(RotatingFileHandler(file, maxBytes=1 << 20, backupCount=1, encoding="utf-8"), level)


def _log(handler: logging.Handler, level: str) -> None:
    from .redact import Redacting

    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(Redacting())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
