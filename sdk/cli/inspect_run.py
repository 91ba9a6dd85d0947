"""`moonmill inspect`."""

from pathlib import Path

import click

from moonmill.cli.options import json_option
from moonmill.cli.results import Command


@click.command("inspect", cls=Command)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--rollouts", "count", type=click.IntRange(min=0), default=0, help="Show the last N rollouts as well.")
@json_option
def inspect_run(run: Path, count: int, as_json: bool) -> None:
    """Show what has become of a run.

    RUN is its directory; it may still be going on.
    """
    from collections import deque

    import msgspec

    from moonmill.cli.output import console, print_json
    from moonmill.cli.tables import print_summary
    from moonmill.cli.transcripts import print_rollout
    from moonmill.jsonl import read_jsonl
    from moonmill.rundir import RunDirectory
    from moonmill.trainer.summary import fates, summarize
    from moonmill.types import Rollout

    directory = RunDirectory.open(run)
    summary = summarize(run)
    last = deque(read_jsonl(directory.rollouts, Rollout), maxlen=count) if count else ()
    became = fates(directory, {rollout.id for rollout in last})
    if as_json:
        shown = {"rollouts": list(last), "fates": became} if count else {}
        print_json(msgspec.to_builtins(summary) | shown)
        return
    out = console()
    print_summary(out, summary)
    for rollout in last:
        out.print()
        print_rollout(out, rollout)
        out.print(f"   {became[rollout.id]}")
