"""What a command prints on stdout: one JSON document, or words for a person.  Decides nothing."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel

from chappie_bridge.codec.unicode import display
from chappie_bridge.wire.blocks import Content, Image, Spill, Text
from chappie_bridge.wire.errors import BridgeError

if TYPE_CHECKING:
    from rich.table import Table

_LINE = 1_000_000
"""Characters of one line shown on a terminal."""


def document(value: BaseModel | Mapping[str, Any] | Sequence[Any]) -> None:
    """One JSON document in one line."""
    if isinstance(value, BaseModel):
        click.echo(value.model_dump_json(exclude_none=True))
    else:
        click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
    """Aligned columns; cells are made safe for a terminal."""
    from rich.table import Table
    from rich.text import Text as Cell

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, no_wrap=True)
    for row in rows:
        shown.add_row(*(Cell(display(cell, 200)) for cell in row))
    return shown


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print `grid`."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() else 10_000  # a program that reads us gets whole cells
    Console(width=wide, highlight=False).print(grid(columns, rows))


def body(text: str) -> None:
    """Text from elsewhere: the exact characters into a pipe, made harmless on a terminal."""
    if sys.stdout.isatty():
        text = "\n".join(
            "\t".join(display(part, _LINE) for part in line.split("\t")) for line in text.split("\n")
        )
    click.echo(text, nl=not text.endswith("\n"))


def blocks(content: Content) -> None:
    """What a tool gave back, as text; what is no text is named."""
    for block in content:
        if isinstance(block, Text):
            body(block.text)
        elif isinstance(block, Image):
            click.echo(f"[image {block.mime_type}, {len(block.data) * 3 // 4} bytes]")
        elif isinstance(block, Spill):
            body(block.head)
            click.echo(f"[… {block.size} bytes in all, kept on the device in {display(block.path, 500)} …]")
            body(block.tail)
        else:
            click.echo(f"[{display(block.name, 200)}: {display(block.uri, 500)}]")


def complain(error: BridgeError, *, as_json: bool) -> None:
    """`{"error":…}` on stdout, or the message and what to do on stderr."""
    failure = error.failure()
    if as_json:
        document({"error": failure.model_dump(mode="json", exclude_none=True)})
        return
    click.echo(f"{failure.code}: {failure.message}", err=True)
    if failure.hint:
        click.echo(failure.hint, err=True)
