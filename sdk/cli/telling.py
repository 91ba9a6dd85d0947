"""Saying what goes on while a command takes minutes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import click

_SHOWN_LINES = ("Downloading ", "Installing collected packages")
"""Beginnings of pip's lines that are shown where there is no terminal: those that take long."""
_WIDTH = 100


@contextmanager
def telling() -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Two ways to say what goes on, on stderr: a step, and a line that a step prints."""
    from moonmill.cli.output import console

    out = console(sys.stderr)
    if not out.is_terminal:

        def show(line: str) -> None:
            if line.strip().startswith(_SHOWN_LINES):
                click.echo(f"  {line.strip()[:_WIDTH]}", err=True)

        yield partial(click.echo, err=True), show
        return
    with out.status("") as status:
        now = ""

        def say(text: str) -> None:
            nonlocal now
            now = text
            out.print(text)
            status.update(text)

        def detail(line: str) -> None:
            status.update(f"{now}  {line.strip()[:_WIDTH]}")

        yield say, detail
