"""Where results go: tables for people, JSON for programs, both on stdout.

On a terminal tables have lines and colours. Elsewhere they are aligned plain text, never cut to a width and without
escape codes.
"""

from typing import Any, TextIO

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from moonmill.cli.results import results

_UNLIMITED = 100_000
"""Columns of an output that is no terminal: nothing is wrapped."""


class _Console(Console):
    """One that fills no line of a table up with spaces where its output is no terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal or not any(isinstance(shown, Table) for shown in objects):
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.out("\n".join(line.rstrip(" ") for line in captured.get().split("\n")), end="", highlight=False)


def console(stream: TextIO | None = None) -> Console:
    """A console on `stream`, by default stdout. Text is printed as it stands: brackets are no markup."""
    out = _Console(file=stream or results(), markup=False, emoji=False, highlight=False)
    if not out.is_terminal:
        out.width = _UNLIMITED
    return out


def table(out: Console, *columns: str, numbers: bool = False) -> Table:
    """An empty table that suits `out`.

    Args:
        out: where it will be printed.
        columns: the headings.
        numbers: whether all columns but the first hold numbers, which are aligned on the right.
    """
    grid = Table(box=box.SIMPLE_HEAD if out.is_terminal else None, pad_edge=False, header_style="bold")
    for i, heading in enumerate(columns):
        grid.add_column(heading, justify="right" if numbers and i else "left", overflow="fold")
    return grid


def print_json(value: Any) -> None:
    """`value`, which msgspec can encode, as indented JSON; in UTF-8, whatever the terminal's encoding is."""
    out, text = results(), msgspec.json.format(msgspec.json.encode(_sayable(msgspec.to_builtins(value))), indent=2)
    click.echo(text if hasattr(out, "buffer") else text.decode(), file=out)  # a notebook's stream takes text alone


def _sayable(value: Any) -> Any:
    """Plain data with the bytes that Python could not read in a file's name, or read as ASCII, as the text they are."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_sayable(key): _sayable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(inner) for inner in value]
    return value
