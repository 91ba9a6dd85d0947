"""`moonmill export`: a run's policy as a folder for others."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from moonmill.cli.models import policy_of
from moonmill.cli.options import json_option
from moonmill.cli.results import Command, results

if TYPE_CHECKING:
    from moonmill.trainer.export import Exported


@click.command(cls=Command)
@click.argument("source", metavar="RUN|FOLDER", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to make; it may exist, empty.")
@click.option("--merge", is_flag=True, help="Merge an adapter into its base, which makes a whole model.")
@json_option
def export(source: Path, out: Path, merge: bool, as_json: bool) -> None:
    """Write a policy to a folder that transformers and vLLM load.

    The policy is that of a run's newest checkpoint, or what a model's or an adapter's folder holds. Without
    --merge it is copied as it is: a run with model.lora gives an adapter, any other a whole model.
    """
    from moonmill.cli.output import print_json
    from moonmill.trainer.export import export as write

    policy = policy_of(source)
    if merge:
        click.echo(f"merging {policy} …", err=True)
    done = write(policy, out, merge=merge)
    if as_json:
        print_json(done)
    else:
        click.echo(_said(done), file=results())


def _said(done: "Exported") -> str:
    version = "" if done.version is None else f", version {done.version}"
    if done.base is None:
        what = "a copy of"
    else:
        what = f"an adapter on {done.base}, a copy of" if done.kind == "adapter" else f"{done.base} merged with"
    return f"wrote {done.folder}{version}: {what} {done.source}"
