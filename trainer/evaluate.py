"""How good a policy is on held-out tasks: success with its confidence interval, by level.

The tasks and seeds of an evaluation depend on `train.seed` and the split alone, so two evaluations of one run, or of
two runs with one seed, meet the same problems.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import fmean

import anyio
import anyio.to_thread
import msgspec

from moonmill.agents.agent import Agent
from moonmill.agents.engine.folder import text_of
from moonmill.agents.policy import PolicyAgent
from moonmill.agents.rendering import load_renderer
from moonmill.agents.runner import EnvFactory, EpisodeRunner
from moonmill.agents.serving import allow_many_files
from moonmill.config import Config
from moonmill.envs import SandboxService, TaskFeed
from moonmill.envs.wrappers import factory_of
from moonmill.errors import RunError
from moonmill.reporting import EvalResult, Failure, LevelResult, Reporter
from moonmill.seeding import derive_seed
from moonmill.signals import run_until_stopped
from moonmill.trainer.checkpoint import version_of
from moonmill.trainer.engine_host import EngineHost
from moonmill.trainer.summary import means, sum_faults
from moonmill.types import Rollout, Status

_Z95 = 1.959963984540054


def evaluate(
    config: Config,
    *,
    samples: int,
    temperatures: Sequence[float],
    reporter: Reporter,
    log_dir: Path,
) -> tuple[EvalResult, ...]:
    """Start the engine on `config.model` and evaluate it at each temperature.

    Args:
        config: environment, model, engine and sampling.
        samples: tasks at each temperature.
        temperatures: 0 is greedy.
        reporter: told of each result.
        log_dir: where the engine's log goes.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM came.
    """
    allow_many_files()
    with SandboxService(config.sandbox):
        return run_until_stopped(partial(_evaluate, config, samples, tuple(temperatures), reporter, log_dir))


async def _evaluate(
    config: Config, samples: int, temperatures: tuple[float, ...], reporter: Reporter, log_dir: Path
) -> tuple[EvalResult, ...]:
    model = config.model
    renderer = await anyio.to_thread.run_sync(load_renderer, text_of(model.path), model.renderer, model.tool_format)
    factory = factory_of(config.env)
    version = await anyio.to_thread.run_sync(version_of, Path(config.model.path))
    results = []

    def note(kind: str, **data: object) -> None:
        if kind == "engine_starting":
            reporter.phase(str(data["text"]))
            return
        if kind != "engine_started":
            reporter.warn(f"{kind.replace('_', ' ')}: " + ", ".join(f"{k} {v}" for k, v in data.items()))

    async with AsyncExitStack() as stack:
        # Engines that run already serve another model, perhaps to a run that goes on.
        own = msgspec.structs.replace(config, engine=msgspec.structs.replace(config.engine, urls=()))
        host = EngineHost(own, log_dir, note, probe=[], run=None)
        await stack.enter_async_context(host.running())
        for temperature in temperatures:
            sampling = msgspec.structs.replace(config.sampling, temperature=temperature)
            agent = PolicyAgent(host.client, renderer, sampling, config.model.max_length)
            rollouts = await play(config, factory, agent, samples=samples, concurrent=config.async_.max_concurrent)
            results.append(result_of(rollouts, "eval", version, temperature, config.eval.success))
            reporter.eval(results[-1])
    return tuple(results)


async def play(config: Config, factory: EnvFactory, agent: Agent, *, samples: int, concurrent: int) -> list[Rollout]:
    """The rollouts of `agent` on the first `samples` tasks of the evaluation split, in their order; some at a time."""
    runner = EpisodeRunner(config.env.id, factory, agent)
    rollouts: list[Rollout | None] = [None] * samples
    limit = anyio.Semaphore(concurrent)

    async def one(index: int) -> None:
        async with limit:
            task = await tasks.task(index)
            seed = derive_seed(config.train.seed, "eval", index)
            rollouts[index] = await runner.run(task, id=f"eval-{index:06d}", seed=seed, index=index)

    async with (
        TaskFeed(factory, config.eval.split, config.train.seed) as tasks,
        anyio.create_task_group() as group,
    ):
        for index in range(samples):
            group.start_soon(one, index)
    return [r for r in rollouts if r is not None]


def result_of(
    rollouts: Sequence[Rollout], label: str, version: int | None, temperature: float, success: float
) -> EvalResult:
    """Count successes. Failed and unscored rollouts are no samples: they are reported beside them.

    Raises:
        RunError: there is no sample left.
    """
    scored = [r for r in rollouts if r.status is not Status.FAILED and r.reward is not None]
    if not scored:
        last = next((r.error for r in reversed(rollouts) if r.error), "a reward method returned None")
        raise RunError(f"none of {len(rollouts)} evaluation rollouts could be scored; the last one: {last}")
    wins = [r.reward is not None and r.reward >= success for r in scored]
    low, high = wilson(sum(wins), len(wins))
    levels: dict[str, list[bool]] = defaultdict(list)
    for rollout, win in zip(scored, wins, strict=True):
        levels[rollout.task.level].append(win)
    return EvalResult(
        label=label,
        version=version,
        temperature=temperature,
        samples=len(scored),
        success=fmean(wins),
        low=low,
        high=high,
        mean_reward=fmean([r.reward or 0.0 for r in scored]),
        by_level={level: LevelResult(len(levels[level]), fmean(levels[level])) for level in sorted(levels) if level},
        turns=fmean([r.turns for r in scored]),
        tool_error_share=fmean([bool(r.tool_faults) for r in scored]),
        truncated=fmean([r.status is Status.TRUNCATED for r in scored]),
        metrics=means(r.metrics for r in scored),
        failed=len(rollouts) - len(scored),
        failures=_failures(rollouts),
        tool_faults=sum_faults(fault for r in rollouts for fault in r.tool_faults),
    )


def _failures(rollouts: Sequence[Rollout]) -> tuple[Failure, ...]:
    by_reason: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.status is Status.FAILED or rollout.reward is None:
            by_reason[rollout.stop_reason if rollout.status is Status.FAILED else "unscored"].append(rollout)
    found = (Failure(str(reason), len(those), those[-1].error or "") for reason, those in by_reason.items())
    return tuple(sorted(found, key=lambda failure: -failure.count))


def wilson(successes: int, samples: int) -> tuple[float, float]:
    """The 95% score interval of a proportion (Wilson 1927); (0, 1) without samples."""
    if samples == 0:
        return 0.0, 1.0
    p = successes / samples
    spread = _Z95 * math.sqrt(p * (1 - p) / samples + _Z95**2 / (4 * samples**2))
    scale = 1 + _Z95**2 / samples
    centre = p + _Z95**2 / (2 * samples)
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
