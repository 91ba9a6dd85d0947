"""How good a player is on held-out tasks.

The tasks and seeds of an evaluation depend on `train.seed` and the split alone, so two evaluations of one run, or of
two runs with one seed, meet the same problems. The episodes depend on nothing else either: not on how many there are
at once, nor on which of them were played before a kill.
"""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread

from moonmill.agents.open_files import allow_many_files
from moonmill.agents.runner import EpisodeRunner
from moonmill.config import Config, EnvConfig
from moonmill.envs import SandboxService, TaskFeed
from moonmill.envs.wrappers import factory_of
from moonmill.errors import RunError
from moonmill.reporting import EvalResult, Reporter
from moonmill.seeding import derive_seed
from moonmill.signals import run_until_stopped
from moonmill.trainer.checkpoint import version_of
from moonmill.trainer.eval_folder import EvalFolder, evaluating, settings_of
from moonmill.trainer.outcomes import Outcome, Prices, outcome_of, result_of
from moonmill.trainer.players import Other, describe_player, playing
from moonmill.types import Rollout, Task

_SAID_PARTS = 10
"""How often it is said, at most, how far the episodes of one block are."""
_SAID_SECONDS = 5.0
"""So far apart, at least."""


class Request(NamedTuple):
    """What is to be evaluated, and where it is written down."""

    config: Config
    """Its `eval` says what is played; the environment is one of `envs`."""
    envs: Sequence[EnvConfig]
    other: Other | None = None
    """Who plays; None for the model of the config."""
    out: Path | None = None
    prices: Prices | None = None


def evaluate(request: Request, reporter: Reporter, log_dir: Path) -> tuple[EvalResult, ...]:
    """Play what is missing, and tell the figures: one result for each environment and temperature.

    Args:
        request: what is evaluated.
        reporter: told of each result, and of those that came to nothing.
        log_dir: where the engine's log goes.

    Raises:
        RunError: nothing could be scored, or too much failed in a row.
        RunDirectoryError: the folder cannot be used.
        KeyboardInterrupt: Ctrl-C or SIGTERM came.
    """
    allow_many_files()
    config = request.config
    settings = settings_of(config, request.envs, describe_player(config, request.other))
    with (
        SandboxService(config.sandbox),
        evaluating(request.out, settings) if request.out else nullcontext() as folder,
    ):
        return run_until_stopped(partial(_evaluate, request, folder, reporter, log_dir))


async def _evaluate(
    request: Request, folder: EvalFolder | None, reporter: Reporter, log_dir: Path
) -> tuple[EvalResult, ...]:
    config = request.config
    settings = settings_of(config, request.envs, {})
    version = None if request.other else await anyio.to_thread.run_sync(version_of, Path(config.model.path))
    known = {index: o for index, o in (folder.outcomes if folder else {}).items() if not o.failure}
    blocks = [(env, t, settings.block(env.id, t)) for env in request.envs for t in settings.temperatures]
    missing = sum(index not in known for _, _, block in blocks for index in block)
    total = sum(len(block) for _, _, block in blocks)
    if known:
        reporter.phase(f"{request.out}: {total - missing} of {total} rollouts are there already")
    guard = _Guard(config.train.max_failures)
    results: list[EvalResult] = []
    lost: list[str] = []
    async with AsyncExitStack() as stack:
        agent_at = None
        if missing:
            agent_at = await stack.enter_async_context(playing(config, request.envs, request.other, reporter, log_dir))
        for env, temperature, block in blocks:
            outcomes = [known[index] for index in block if index in known]
            if agent_at and len(outcomes) < len(block):
                said = _Said(reporter, f"{env.id} at T = {temperature:g}", len(outcomes), len(block))

                def done(rollout: Rollout, said: "_Said" = said) -> None:
                    if folder:
                        folder.keep(rollout)
                    said.one_more()
                    guard.look(rollout)

                outcomes += await play(
                    config,
                    EpisodeRunner(env.id, factory_of(env), agent_at(temperature)),
                    concurrent=config.async_.max_concurrent,
                    first=block[0],
                    known=known,
                    done=done,
                )
            try:
                summed_up = partial(
                    result_of, outcomes, env.id, version, temperature, config.eval.success, request.prices
                )
                results.append(await anyio.to_thread.run_sync(summed_up))
            except RunError as e:
                lost.append(f"{env.id} at T = {temperature:g}: {e}")
            else:
                reporter.eval(results[-1])
    if not results:
        raise RunError("\n".join(lost))
    for text in lost:
        reporter.warn(text)
    if folder:
        folder.finish(results)
    return tuple(results)


async def play(
    config: Config,
    runner: EpisodeRunner,
    *,
    concurrent: int,
    first: int = 0,
    known: Collection[int] = (),
    done: Callable[[Rollout], None] = lambda rollout: None,
) -> list[Outcome]:
    """Play the tasks of the evaluation split, each as often as `eval.samples` says.

    Args:
        config: its `eval` and seed.
        runner: plays an episode.
        concurrent: episodes in flight.
        first: the index of the first rollout; those of a task have one after the other.
        known: the indexes of rollouts that need not be played.
        done: told of each rollout as it finishes.
    """
    outcomes: list[Outcome] = []
    limit = anyio.Semaphore(concurrent)
    samples = config.eval.samples

    async def one(task: Task, number: int, sample: int) -> None:
        try:
            index = first + number * samples + sample
            seed = derive_seed(config.train.seed, "eval", number, sample)
            rollout = await runner.run(task, id=f"eval-{index:08d}", seed=seed, index=index)
            outcomes.append(outcome_of(rollout))
            done(rollout)
        finally:
            limit.release()

    async with (
        TaskFeed(runner.factory, config.eval.split, config.train.seed) as tasks,
        anyio.create_task_group() as group,
    ):
        for number in range(config.eval.tasks):
            wanted = [s for s in range(samples) if first + number * samples + s not in known]
            task = await tasks.task(number) if wanted else None
            for sample in wanted:
                await limit.acquire()
                assert task is not None
                group.start_soon(one, task, number, sample)
    return outcomes


class _Said:
    """Tells now and then how far the episodes are."""

    def __init__(self, reporter: Reporter, what: str, done: int, total: int) -> None:
        self._reporter = reporter
        self._what = what
        self._done = done
        self._total = total
        self._say()

    def one_more(self) -> None:
        self._done += 1
        is_part = self._done * _SAID_PARTS // self._total > (self._done - 1) * _SAID_PARTS // self._total
        if is_part and time.monotonic() - self._said >= _SAID_SECONDS:
            self._say()

    def _say(self) -> None:
        self._said = time.monotonic()
        self._reporter.phase(f"evaluating {self._what}: {self._done} of {self._total}")


class _Guard:
    """Ends an evaluation in which nothing works any more: a wrong key, an engine that is gone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._in_a_row = 0

    def look(self, rollout: Rollout) -> None:
        """Raises `RunError` at the last of so many failures, one after another."""
        self._in_a_row = self._in_a_row + 1 if rollout.reward is None else 0
        if self._in_a_row >= self._most:
            raise RunError(
                f"the last {self._in_a_row} rollouts all failed or were unscored (train.max_failures), the last one "
                f"with {rollout.stop_reason}: {rollout.error or 'a reward method returned None'}"
            )
