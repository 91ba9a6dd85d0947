"""What commands that train have in common: they can be stopped, and say how to go on."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from moonmill.signals import ignore

if TYPE_CHECKING:
    from moonmill.reporting import Reporter, Summary


def carry_out(run: "Callable[[Reporter], Summary]", stopped: str, as_json: bool) -> None:
    """Do what trains, and show what came of it. Ends the command where it was stopped.

    Args:
        run: does it.
        stopped: what to say where it was stopped: how to go on.
        as_json: print the summary as JSON.
    """
    from moonmill.cli.output import console, print_json
    from moonmill.cli.progress import reporting
    from moonmill.cli.tables import print_summary

    context = click.get_current_context()
    with reporting() as reporter:
        try:
            summary = run(reporter)
        except KeyboardInterrupt:
            ignore()
            click.echo(stopped, err=True)
            context.exit(1)
    if as_json:
        print_json(summary)
    else:
        print_summary(console(), summary)
    if summary.status == "stopped":
        click.echo(stopped, err=True)
        context.exit(1)
