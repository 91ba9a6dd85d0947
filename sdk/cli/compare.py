"""`moonmill compare`: the same config in several ways, each really trained, with one budget of rollouts."""

import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moonmill.cli.options import json_option, set_option
from moonmill.cli.results import Command

if TYPE_CHECKING:
    from moonmill.trainer.compared import Comparison
    from moonmill.trainer.comparing import Job

_IGNORED = ("name", "run_dir")
"""Keys under which a run that was moved may differ."""


@click.command(cls=Command)
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--modes",
    metavar="NAMES",
    help="What is compared, separated by commas: sync, async, names given with --vary. [default: all variations; "
    "without any sync,async]",
)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each.")
@click.option(
    "--vary",
    "variations",
    multiple=True,
    metavar="NAME:KEY=VALUE,…",
    help="Name a variation of the config, such as low:learner.lr=1e-5,async.max_staleness=1. Values are YAML. May be "
    "repeated.",
)
@set_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the runs. [default: runs/compare-NAME]",
)
@json_option
def compare(
    config: Path,
    modes: str | None,
    seeds: int,
    variations: tuple[str, ...],
    overrides: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Train a config in several ways and compare them.

    Each way is trained with each seed, one run after another, on as many rollouts. Then a table tells success,
    reward, speed and who waited for whom, with 95% intervals over the seeds, and a picture shows the reward against
    wall clock, rollouts and tokens.

    Where the config has a critic, a variation without one says algorithm={preset: grpo}, which replaces the whole
    section.

    Every run is a run directory, OUT/NAME-seedN. Ctrl-C stops after the current step, with a checkpoint; the same
    command goes on from there, and runs that have finished are not trained again.
    """
    from moonmill.cli.compare_tables import print_comparison
    from moonmill.cli.output import console, print_json
    from moonmill.config_io import load_config
    from moonmill.trainer.compared import Comparison, arm_of, figures_of
    from moonmill.trainer.comparing import arms_of, plan, rollouts_of

    arms = arms_of(modes, variations)
    base = load_config(config, overrides)
    folder = (out or Path("runs") / f"compare-{base.name}").absolute()
    jobs = plan(lambda own: load_config(config, (*overrides, *own)), arms, seeds, folder)
    context = click.get_current_context()
    if not _train_all(jobs, folder):
        given = {"--modes": [modes] if modes else [], "--seeds": [str(seeds)], "--vary": [*variations]}
        given |= {"--set": [*overrides], "--out": [str(out)] if out else []}
        arguments = [str(config), *(word for option in given for value in given[option] for word in (option, value))]
        click.echo(f"stopped; go on with: moonmill compare {shlex.join(arguments)}", err=True)
        context.exit(1)
    runs = tuple(figures_of(job.arm, job.seed, job.path) for job in jobs)
    picture = str(folder / "compare.png") if find_spec("matplotlib") else None
    result = Comparison(rollouts_of(base), tuple(arm_of(arm.name, runs, arms[0].name) for arm in arms), runs, picture)
    _keep(result, folder)
    if as_json:
        print_json(result)
    else:
        print_comparison(console(), result)
    if unfinished := [run for run in runs if run.status != "finished"]:
        told = ", ".join(f"{run.path} ({run.status})" for run in unfinished)
        click.echo(f"not finished: {told}; the same command goes on with them", err=True)
        context.exit(1)


def _train_all(jobs: "Sequence[Job]", folder: Path) -> bool:
    """Train what has not finished; returns whether all were tried, and not stopped before."""
    from moonmill.cli.jobs import Runs
    from moonmill.config_io import dump_config
    from moonmill.errors import ConfigError, RunDirectoryError
    from moonmill.rundir import RunDirectory
    from moonmill.trainer.validate import AT_ONCE, require_valid

    for job in {job.arm: job for job in jobs}.values():
        try:
            require_valid(job.config, AT_ONCE)
        except ConfigError as e:
            raise ConfigError(f"{job.arm}: {e}") from e
    finished = {job.path for job in jobs if _has_finished(job)}
    if not find_spec("matplotlib"):
        click.echo("warning: no picture will be drawn without matplotlib: pip install 'moonmill[report]'", err=True)
    configs = folder / "configs"
    try:
        configs.mkdir(parents=True, exist_ok=True)
        for job in jobs:
            (configs / f"{job.path.name}.yaml").write_text(dump_config(job.config), encoding="utf-8")
    except OSError as e:
        raise RunDirectoryError(f"--out: cannot write to {configs}: {e.strerror or e}") from e
    runs = Runs()
    with runs.receiving_signals():
        for number, job in enumerate(jobs, 1):
            begun = job.path not in finished and RunDirectory(job.path).has_begun
            what = "has finished before" if job.path in finished else "goes on" if begun else "begins"
            click.echo(f"[{number}/{len(jobs)}] {job.arm}, seed {job.seed}: {what} ({job.path})", err=True)
            if job.path in finished:
                continue
            code = runs.train(configs / f"{job.path.name}.yaml", resume=begun)
            if runs.stop_asked:
                return False
            if code == ConfigError.exit_code:
                raise ConfigError(f"{job.path.name} was refused, as it says above; nothing further was begun")
    return True


def _has_finished(job: "Job") -> bool:
    """Whether a run is done.

    Raises:
        RunDirectoryError: what stands in its place is another one, or is being trained now.
    """
    from moonmill.config_io import differences, load_config
    from moonmill.errors import RunDirectoryError
    from moonmill.rundir import RunDirectory
    from moonmill.trainer.summary import read_events

    run = RunDirectory(job.path)
    if not run.has_begun:
        return False
    changed = [
        f"{key}: {before!r:.100} then, {now!r:.100} now"
        for key, (before, now) in differences(load_config(run.config), job.config).items()
        if key not in _IGNORED
    ]
    if changed:
        raise RunDirectoryError(
            "\n  ".join((f"{job.path} was trained with other values, so it cannot be compared:", *changed))
            + "\nSet them back, or give another --out"
        )
    status = read_events(run).status
    if status == "running":
        raise RunDirectoryError(f"another process is training in {job.path}: wait until it has ended")
    return status == "finished"


def _keep(result: "Comparison", folder: Path) -> None:
    """Write the comparison and its picture beside the runs."""
    import msgspec

    from moonmill.errors import RunDirectoryError

    path = folder / "compare.json"
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2))
        if result.picture:
            from moonmill.cli.compare_plot import draw

            draw(result, Path(result.picture))
    except OSError as e:
        raise RunDirectoryError(f"--out: cannot write to {folder}: {e.strerror or e}") from e
