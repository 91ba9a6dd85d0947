"""`moonmill pretrain-critic`."""

import shlex
from pathlib import Path

import click

from moonmill.cli.carrying_out import carry_out
from moonmill.cli.options import json_option, set_option
from moonmill.cli.results import Command, results


@click.command("pretrain-critic", cls=Command)
@click.argument("config", type=click.Path(path_type=Path))
@set_option
@click.option("--out", type=click.Path(path_type=Path), help="The critic's folder. By default RUN_DIR-critic/critic.")
@click.option("--resume", is_flag=True, help="Continue one that was stopped or killed.")
@json_option
def pretrain_critic(config: Path, overrides: tuple[str, ...], out: Path | None, resume: bool, as_json: bool) -> None:
    """Train a critic on rollouts of the initial policy.

    The policy stays as it is. It ends as the config's algorithm.critic says: where explained variance has stopped
    rising (pretrain), or after warmup_steps. The run is kept in RUN_DIR-critic, beside the config's run_dir.
    algorithm.critic.path takes the folder it writes.
    """
    from moonmill.config_io import load_config
    from moonmill.rundir import RunDirectory
    from moonmill.trainer.critic_folder import require_free
    from moonmill.trainer.pretrain import pretrain, pretraining
    from moonmill.trainer.validate import AT_ONCE, require_valid

    settings = pretraining(load_config(config, overrides))
    folder = out or Path(settings.run_dir, "critic")
    require_free(folder)
    RunDirectory(Path(settings.run_dir)).check(settings, resume=resume)
    require_valid(settings, AT_ONCE)
    arguments = [str(config), *(part for override in overrides for part in ("--set", override))]
    arguments += ["--out", str(out)] if out else []
    stopped = f"stopped; resume with: moonmill pretrain-critic {shlex.join(arguments)} --resume"
    carry_out(lambda reporter: pretrain(settings, folder, resume=resume, reporter=reporter), stopped, as_json)
    if not as_json:
        click.echo(f"wrote {folder}: begin with it by algorithm.critic.path", file=results())
