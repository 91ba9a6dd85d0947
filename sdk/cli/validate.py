"""`moonmill validate`."""

from pathlib import Path

import click

from moonmill.cli.options import json_option, set_option
from moonmill.cli.results import Command


@click.command(cls=Command)
@click.argument("config", type=click.Path(path_type=Path))
@set_option
@json_option
def validate(config: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check a config without training.

    Looks at the environment, the algorithm, the model and whether prompts fit. Exits with 2 where something is wrong.
    """
    from moonmill.cli.output import console, print_json, table
    from moonmill.config_io import load_config

    settings = load_config(config, overrides)
    from moonmill.trainer.validate import validate as check_all  # takes seconds: a bad config is told before

    checks = check_all(settings)
    if as_json:
        print_json(checks)
    else:
        out = console()
        grid = table(out, "", "check", "")
        for check in checks:
            grid.add_row("ok" if check.ok else "wrong", check.name, check.detail, style=None if check.ok else "red")
        out.print(grid)
    if not all(check.ok for check in checks):
        click.get_current_context().exit(2)
