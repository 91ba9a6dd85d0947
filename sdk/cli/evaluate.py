"""`moonmill eval`: environments, played by a policy, a model behind an API or a script; or two evaluations compared."""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from moonmill.cli.options import NonNegative, json_option, set_option
from moonmill.cli.results import Command
from moonmill.cli.scripts import agent_called, agent_option, whole
from moonmill.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moonmill.config import Config
    from moonmill.reporting import EvalResult
    from moonmill.trainer.evaluate import Request
    from moonmill.trainer.players import Other
    from moonmill.types import Sampling

_TASKS = 200
"""Where neither the command line nor the config says; the 95% interval is then at most ±7 points."""


@click.command("eval", cls=Command)
@click.argument("targets", metavar="CONFIG|RUN|ENV_ID...", nargs=-1)
@click.option(
    "--model",
    help="The folder of a model, of an adapter, or of a run, which stands for its newest checkpoint. With --api, the "
    "model's name there.",
)
@click.option("--api", metavar="URL", help="Play by an OpenAI-compatible API, such as https://api.openai.com/v1.")
@click.option("--api-key-env", metavar="NAME", help="The environment variable that holds the API's key.")
@agent_option(default=None)
@click.option("--tasks", type=click.IntRange(min=1), help="How many tasks are played.  [default: the config's, or 200]")
@click.option("--samples", type=click.IntRange(min=1), help="How often each is played, for pass@k.  [default: 1]")
@click.option(
    "--temperature",
    "temperatures",
    type=NonNegative(),
    multiple=True,
    help="0 is greedy. May be repeated.",
)
@click.option(
    "--prices",
    type=(NonNegative(), NonNegative()),
    metavar="PROMPT COMPLETION",
    help="Of a million tokens of either kind, to tell the cost.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for every rollout and the figures. Where it holds part of the same evaluation, that goes on.",
)
@click.option(
    "--compare",
    type=(click.Path(path_type=Path), click.Path(path_type=Path)),
    metavar="A B",
    help="Compare two such folders over the tasks that both have, and play nothing.",
)
@set_option
@json_option
def evaluate(
    targets: tuple[str, ...],
    model: str | None,
    api: str | None,
    api_key_env: str | None,
    player: str | None,
    tasks: int | None,
    samples: int | None,
    temperatures: tuple[float, ...],
    prices: tuple[float, float] | None,
    out: Path | None,
    compare: tuple[Path, Path] | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure success on held-out tasks.

    Environments come from a config, a run's directory or their ids, of which there may be several; the player is the
    model of --model, else the config's, else the run's newest checkpoint, or whatever answers at --api, or the script
    of --agent.
    """
    if compare is not None:
        asked: dict[str, object] = {"--model": model, "--api": api, "--api-key-env": api_key_env, "--agent": player}
        asked |= {
            "--tasks": tasks,
            "--samples": samples,
            "--temperature": temperatures,
            "--prices": prices,
            "--out": out,
        }
        useless = _given({**asked, "--set": overrides})
        if targets or useless:
            raise ConfigError(
                "--compare: two folders of `moonmill eval --out` are compared and nothing is played: leave out "
                + ", ".join((*targets, *useless))
            )
        _compare(*compare, as_json)
        return
    if not targets:
        raise click.UsageError("Missing argument 'CONFIG|RUN|ENV_ID...'.")
    from moonmill.cli.eval_targets import targets_of
    from moonmill.trainer.validate import FOR_OTHERS, FOR_PLAYING, require_valid

    if player is not None:
        played = {"--model": model, "--api": api, "--api-key-env": api_key_env, "--prices": prices}
        if useless := _given({**played, "--temperature": temperatures}):
            raise ConfigError(f"--agent: a script plays, which has no use for {', '.join(useless)}: leave that out")
        temperatures = (0.0,)  # it has none
    out = out and out.absolute()  # what is imported may change the working directory
    if api is not None and model is None:
        raise ConfigError("--api: say with --model what the model is called there")
    if api is None and api_key_env is not None:
        raise ConfigError("--api-key-env: of use with --api alone")
    other = _other(player, api, model, api_key_env)
    config, envs = targets_of(targets, model, other is not None, overrides)
    for env in envs:
        require_valid(replace(config, env=env), FOR_OTHERS if other else FOR_PLAYING)
    config = _asked(config, tasks, samples, temperatures)
    from moonmill.trainer.evaluate import Request

    results = _play(Request(config, envs, other, out, prices))
    if as_json:
        from moonmill.cli.output import print_json

        print_json(results)
    else:
        _print(results, None if player else config.sampling)
    if len(results) < len(envs) * len({*config.eval.temperatures}):
        click.get_current_context().exit(1)  # what came to nothing was told


def _given(options: "Mapping[str, object]") -> list[str]:
    """The names of those that have a value on the command line."""
    return [name for name, value in options.items() if value not in (None, ())]


def _other(player: str | None, api: str | None, model: str | None, api_key_env: str | None) -> "Other | None":
    """Who plays in place of a model of ours.

    Raises:
        ConfigError: there is no such script, no key where it should be, or a person would have to play.
    """
    from moonmill.trainer.players import Api, Scripted

    if player is not None:
        name = whole(player)
        agent = agent_called(name)
        if agent is None:
            raise ConfigError("--agent: a person plays one episode at a time, with `moonmill envs play`: give a script")
        return Scripted(agent, name)
    if api is None or model is None:
        return None
    behind = Api(api, model, api_key_env)
    behind.key()
    return behind


def _asked(config: "Config", tasks: int | None, samples: int | None, temperatures: tuple[float, ...]) -> "Config":
    """The config with what the command line says of the evaluation, and how many tasks there are in any case."""
    asked = replace(
        config.eval,
        tasks=tasks or config.eval.tasks or _TASKS,
        samples=samples or config.eval.samples,
        temperatures=temperatures or config.eval.temperatures,
    )
    return replace(config, eval=asked)


def _play(request: "Request") -> "tuple[EvalResult, ...]":
    from moonmill.cli.progress import reporting
    from moonmill.trainer.evaluate import evaluate as run

    logs = Path(tempfile.mkdtemp(prefix="moonmill-eval-"))
    try:
        with reporting() as reporter:
            results = run(request, reporter, logs)
    except KeyboardInterrupt:
        if request.out:
            click.echo(f"the same command goes on from what is in {request.out}", err=True)
        raise
    shutil.rmtree(logs, ignore_errors=True)  # the engine's log is of use after a failure alone
    return results


def _print(results: "tuple[EvalResult, ...]", sampling: "Sampling | None") -> None:
    from moonmill.cli.eval_tables import print_results
    from moonmill.cli.output import console
    from moonmill.cli.tables import print_faults
    from moonmill.trainer.summary import sum_faults, with_unknown_as_one

    print_results(console(), results, sampling)
    faults = sum_faults(fault for result in results for fault in result.tool_faults)
    print_faults(console(), with_unknown_as_one(faults))


def _compare(a: Path, b: Path, as_json: bool) -> None:
    from moonmill.cli.eval_tables import print_contrasts
    from moonmill.cli.output import console, print_json
    from moonmill.trainer.eval_compare import compare

    found = compare(a, b)
    if as_json:
        print_json(found)
    else:
        print_contrasts(console(), found)
