"""`moonmill eval`: what is evaluated is an environment and a policy; a config or a run names both."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moonmill.cli.models import is_run, policy_of
from moonmill.cli.options import json_option, set_option
from moonmill.cli.results import Command

if TYPE_CHECKING:
    from moonmill.config import Config

_SAMPLES = 200
"""Where neither the command line nor the config says; the 95% interval is then at most ±7 points."""


@click.command("eval", cls=Command)
@click.argument("target", metavar="CONFIG|RUN|ENV_ID")
@click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The folder of a model, of an adapter, or of a run, which stands for its newest checkpoint.",
)
@click.option("--samples", type=click.IntRange(min=1), help="Tasks at each temperature.")
@click.option(
    "--temperature",
    "temperatures",
    type=click.FloatRange(min=0),
    multiple=True,
    help="0 is greedy. May be repeated.",
)
@set_option
@json_option
def evaluate(
    target: str,
    model: Path | None,
    samples: int | None,
    temperatures: tuple[float, ...],
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure a policy's success on held-out tasks.

    The environment comes from a config, a run's directory or an environment's id; the policy from --model, else from
    the config, else from the run's newest checkpoint.
    """
    from moonmill.cli.output import console, print_json
    from moonmill.cli.progress import reporting
    from moonmill.cli.tables import print_evals, print_faults
    from moonmill.trainer.validate import FOR_PLAYING, require_valid

    config = settings(target, model, overrides)
    require_valid(config, FOR_PLAYING)
    from moonmill.trainer.evaluate import evaluate as run  # takes seconds: a bad config is told before
    from moonmill.trainer.summary import sum_faults, with_unknown_as_one

    logs = Path(tempfile.mkdtemp(prefix="moonmill-eval-"))
    with reporting() as reporter:
        reporter.phase(f"evaluating {config.model.path} on {config.env.id}")
        results = run(
            config,
            samples=samples or config.eval.samples or _SAMPLES,
            temperatures=temperatures or config.eval.temperatures,
            reporter=reporter,
            log_dir=logs,
        )
    shutil.rmtree(logs, ignore_errors=True)  # the engine's log is of use after a failure alone
    if as_json:
        print_json(results)
    else:
        print_evals(console(), results)
        faults = sum_faults(fault for result in results for fault in result.tool_faults)
        print_faults(console(), with_unknown_as_one(faults))


def settings(target: str, model: Path | None, overrides: tuple[str, ...]) -> "Config":
    """The config that the arguments of `moonmill eval` stand for."""
    from moonmill.config_io import load_config, make_config
    from moonmill.errors import ConfigError

    given = Path(target)
    if os.path.isdir(given):
        config_file, model = given / "config.yaml", model or given
    elif os.path.isfile(given) or given.suffix in (".yaml", ".yml"):
        config_file = given
    elif model is None:
        raise ConfigError(
            f"{target} is neither a config file nor a run, so an environment: say with --model what is to play it"
        )
    elif is_run(model):
        config_file = model / "config.yaml"
        if load_config(config_file).env.id != target:
            overrides = (_set("env", {"id": target}), *overrides)
    else:
        data = {"env": {"id": target}, "model": {"path": str(model), "max_length": _length_of(model)}}
        return make_config(data, overrides, source=f"moonmill eval {target}", folder=Path.cwd())
    if model is not None:
        overrides = (_set("model.path", str(policy_of(model))), *overrides)
    return load_config(config_file, overrides)


def _length_of(model: Path) -> int:
    """The context to play in where only the model says: its own, unless that is longer than a config's default."""
    from moonmill.agents.engine.folder import positions_of
    from moonmill.config import ModelConfig

    return min(positions_of(model) or ModelConfig("").max_length, ModelConfig("").max_length)


def _set(key: str, value: object) -> str:
    return f"{key}={json.dumps(value)}"
