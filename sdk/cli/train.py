"""`moonmill train`."""

import shlex
from pathlib import Path

import click

from moonmill.cli.carrying_out import carry_out
from moonmill.cli.options import json_option, set_option
from moonmill.cli.results import Command


@click.command(cls=Command)
@click.argument("config", type=click.Path(path_type=Path))
@set_option
@click.option("--resume", is_flag=True, help="Continue the run that stands in the config's run directory.")
@click.option("--of-comparison", is_flag=True, hidden=True, help="Whoever started it says how to go on.")
@json_option
def train(config: Path, overrides: tuple[str, ...], resume: bool, of_comparison: bool, as_json: bool) -> None:
    """Train a policy as a YAML file says.

    Ctrl-C stops after the current step, with a checkpoint; a second one stops at once. Either can be resumed.
    """
    from moonmill.config_io import load_config
    from moonmill.rundir import RunDirectory
    from moonmill.trainer.validate import AT_ONCE, require_valid

    settings = load_config(config, overrides)
    RunDirectory(Path(settings.run_dir)).check(settings, resume=resume)
    require_valid(settings, AT_ONCE)
    from moonmill.trainer.run import train as run  # takes seconds: what is wrong is told before

    arguments = [str(config), *(part for override in overrides for part in ("--set", override))]
    stopped = f"stopped; resume with: moonmill train {shlex.join(arguments)} --resume"
    stopped = "stopped" if of_comparison else stopped
    carry_out(lambda reporter: run(settings, resume=resume, reporter=reporter), stopped, as_json)
