"""From rollouts to the figures of an evaluation. Pure.

What always holds: a rollout that failed or is unscored is no sample, and never a 0; tasks weigh alike, however many
samples they have; the figures depend on the outcomes and not on the order in which they came.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from moonmill.errors import RunError
from moonmill.reporting import Estimate, EvalResult, Failure, LevelResult
from moonmill.trainer.estimates import bootstrap, pass_at_k, wilson
from moonmill.trainer.summary import means, sum_faults
from moonmill.types import Action, Rollout, Status, Task, ToolFault, Usage


class Outcome(Struct, frozen=True):
    """What the figures need of a rollout. Its messages and tokens, which are large, stay in the log."""

    index: int
    task: str
    """The task's id."""
    problem: str
    """A digest of the task itself, for ids of two evaluations may mean different tasks."""
    level: str
    reward: float | None
    """None of a rollout that failed or is unscored; so is `judged`."""
    judged: float | None
    """What tells a success: the reward, before wrappers changed it."""
    failure: str
    """Why it has none; else empty."""
    error: str
    truncated: bool
    turns: int
    metrics: dict[str, float]
    tool_faults: tuple[ToolFault, ...]
    usage: Usage | None


class Sample(NamedTuple):
    """What a scored rollout was worth, for training and for telling a success."""

    reward: float
    judged: float


Prices = tuple[float, float]
"""Of a million prompt tokens and a million completion tokens."""


def outcome_of(rollout: Rollout) -> Outcome:
    """What is kept of a rollout."""
    failed = rollout.status is Status.FAILED
    unscored = "unscored" if rollout.reward is None else ""
    return Outcome(
        index=rollout.index,
        task=rollout.task.id,
        problem=_digest(rollout.task),
        level=rollout.task.level,
        reward=None if failed else rollout.reward,
        judged=None if failed else rollout.judged,
        failure=str(rollout.stop_reason) if failed else unscored,
        error=rollout.error or "",
        truncated=rollout.status is Status.TRUNCATED,
        turns=rollout.turns,
        metrics=rollout.metrics,
        tool_faults=rollout.tool_faults,
        usage=_usage(rollout),
    )


def result_of(
    outcomes: Iterable[Outcome],
    label: str,
    version: int | None,
    temperature: float,
    success: float,
    prices: Prices | None = None,
) -> EvalResult:
    """The figures of rollouts at one temperature.

    Args:
        outcomes: of all of them.
        label: what the result is called.
        version: of the policy, where it has one.
        temperature: of the sampling.
        success: the least reward of a success.
        prices: for the cost.

    Raises:
        RunError: there is no sample.
    """
    outcomes = sorted(outcomes, key=attrgetter("index"))
    scored = [o for o in outcomes if o.reward is not None]
    if not scored:
        last = next((o.error for o in reversed(outcomes) if o.error), "a reward method returned None")
        raise RunError(f"none of {len(outcomes)} evaluation rollouts could be scored; the last one: {last}")
    all_tasks = _figures(scored, success)
    assert all_tasks.reward is not None
    levels: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in scored:
        levels[outcome.level].append(outcome)
    used = [o.usage for o in outcomes if o.usage is not None]
    usage = sum(used, Usage(0, 0)) if used else None
    return EvalResult(
        label=label,
        version=version,
        temperature=temperature,
        samples=all_tasks.samples,
        success=all_tasks.success,
        low=all_tasks.low,
        high=all_tasks.high,
        mean_reward=all_tasks.reward.value,
        reward=all_tasks.reward,
        pass_at=all_tasks.pass_at,
        by_level={level: _figures(levels[level], success) for level in sorted(levels) if level},
        turns=fmean(o.turns for o in scored),
        tool_error_share=fmean(bool(o.tool_faults) for o in scored),
        truncated=fmean(o.truncated for o in scored),
        metrics=means(o.metrics for o in scored),
        usage=usage,
        cost=_cost(usage, prices),
        failed=len(outcomes) - len(scored),
        failures=_failures(outcomes),
        tool_faults=sum_faults(fault for o in outcomes for fault in o.tool_faults),
    )


def by_task(outcomes: Iterable[Outcome]) -> dict[tuple[str, str], list[Sample]]:
    """The samples of each task that has any, by its id and what it is."""
    tasks: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.reward is not None and outcome.judged is not None:
            tasks[outcome.task, outcome.problem].append(Sample(outcome.reward, outcome.judged))
    return dict(tasks)


def _figures(scored: Sequence[Outcome], success: float) -> LevelResult:
    tasks = list(by_task(scored).values())
    counts = [(len(samples), sum(sample.judged >= success for sample in samples)) for samples in tasks]
    most = max(samples for samples, _ in counts)
    shares = [wins / samples for samples, wins in counts]
    low, high = wilson(sum(wins for _, wins in counts), len(counts)) if most == 1 else bootstrap(shares)
    pass_at = {}
    for k in sorted({*(2**power for power in range(1, most.bit_length())), most} - {1}):
        values = [p for samples, wins in counts if (p := pass_at_k(samples, wins, k)) is not None]
        pass_at[f"pass@{k}"] = _mean(values)
    reward = _mean([fmean(sample.reward for sample in samples) for samples in tasks])
    return LevelResult(len(scored), fmean(shares), low, high, reward, pass_at)


def _mean(values: Sequence[float]) -> Estimate:
    return Estimate(fmean(values), *bootstrap(values), tasks=len(values))


def _failures(outcomes: Iterable[Outcome]) -> tuple[Failure, ...]:
    by_reason: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.failure:
            by_reason[outcome.failure].append(outcome)
    found = (Failure(reason, len(those), those[-1].error) for reason, those in by_reason.items())
    return tuple(sorted(found, key=lambda failure: -failure.count))


def _usage(rollout: Rollout) -> Usage | None:
    """Each action was asked for with all tokens before it."""
    if rollout.usage is not None or not rollout.segments:
        return rollout.usage
    prompt = completion = context = 0
    for segment in rollout.segments:
        if isinstance(segment, Action):
            prompt += context
            completion += len(segment.tokens)
        context += len(segment.tokens)
    return Usage(prompt, completion)


def _cost(usage: Usage | None, prices: Prices | None) -> float | None:
    if usage is None or prices is None:
        return None
    return (usage.prompt * prices[0] + usage.completion * prices[1]) / 1e6


def _digest(task: Task) -> str:
    """Of all but the seed: a problem that comes again has another. Nor does the order of a list count: that of a set
    differs from process to process, and in the log it is a list."""
    plain = msgspec.json.decode(msgspec.json.encode(replace(task, seed=0)))
    return hashlib.blake2b(msgspec.json.encode(_unordered(plain)), digest_size=8).hexdigest()


def _unordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unordered(value[key]) for key in sorted(value)}
    return sorted(map(_unordered, value), key=msgspec.json.encode) if isinstance(value, list) else value
