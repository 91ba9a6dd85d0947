"""`moonmill doctor`: what works on this machine, and how to mend the rest."""

import shutil
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from moonmill.cli.options import json_option
from moonmill.cli.results import Command

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from moonmill.trainer.doctor.verdicts import Report

_STYLES = {"ok": "", "warning": "yellow", "missing": "red"}


@click.command(cls=Command)
@json_option
def doctor(as_json: bool) -> None:
    """Tell what works on this machine, and how to mend the rest.

    Looks at Python and its packages, GPUs and their driver, vLLM, sandboxes, disks, ports, memory and the model hub,
    and changes nothing. Ends with the exit code 1 where nothing can be trained.
    """
    from moonmill.cli.output import console, print_json
    from moonmill.trainer.doctor.probes import probe
    from moonmill.trainer.doctor.verdicts import report

    err = console(sys.stderr)
    with err.status("looking") if err.is_terminal else nullcontext():
        found = report(probe())
    if as_json:
        print_json({"can_train": found.can_train, "checks": found.lines, "works": found.verdicts})
    else:
        _print(found)
    if not found.can_train:
        raise click.exceptions.Exit(1)


def _print(found: "Report") -> None:
    from moonmill.cli.output import console

    out = console()
    out.width = min(out.width, shutil.get_terminal_size().columns)  # sentences are read, also in a file
    grid = _table(out, "", "", "found, and what to do")
    for line in found.lines:
        told = f"{line.found}\n→ {line.todo}" if line.todo else line.found
        grid.add_row(line.status, line.name, told, style=_STYLES[line.status])
    out.print(grid)
    out.print()
    grid = _table(out, "what will work", "", "what is in its way")
    for verdict in found.verdicts:
        grid.add_row(verdict.what, "yes" if verdict.works else "no", verdict.why)
    out.print(grid)


def _table(out: "Console", *columns: str) -> "Table":
    """One of which the last column alone is wrapped."""
    from moonmill.cli.output import table

    grid = table(out, *columns)
    for column in grid.columns[:-1]:
        column.no_wrap = True
    return grid
