"""A run in figures, read from its directory: also of one that goes on, or was killed."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from moonmill.config_io import load_config
from moonmill.errors import ConfigError
from moonmill.jsonl import read_jsonl
from moonmill.reporting import Alike, EvalResult, Spread, StalenessSummary, Summary
from moonmill.rundir import RunDirectory
from moonmill.trainer.algorithms.presets import resolve
from moonmill.trainer.records import Event, StepRecord
from moonmill.trainer.rewards import alike
from moonmill.types import Rollout, Status, ToolFault

_ENDINGS = ("started", "finished", "stopped", "failed")
_GROWING = ("created", "reused", "failed")
"""Figures of sandboxes that are summed over the steps."""
CAUSES = {
    "rollouts": "learner waits for rollouts",
    "stragglers": "free slots wait for the slowest episodes",
    "learner": "free slots wait for the learner",
    "handover": "free slots wait for new weights",
    "queue": "episodes wait for the engine",
    "tools": "episodes wait for tools",
    "sandbox": "episodes wait for sandboxes",
}
"""The causes of waiting, in words."""
_HEALTH = ("explained_variance_smoothed", "value_bias", "value_calibration_error")
"""Of the critic, in the last step."""
_NEWEST = 10
"""Steps that tell how the environment's metrics stand: their mean over a whole run would hide what was learned."""


def summarize(path: Path) -> Summary:
    """Read the run in `path`."""
    run = RunDirectory.open(path)
    steps = list(read_jsonl(run.steps, StepRecord))
    done = [s for s in steps if s.step is not None]
    last = done[-1] if done else StepRecord(0, 0)
    drops = Counter(d.reason for s in steps for d in s.dropped)
    failed = {r: n for r, n in drops.items() if r.startswith("failed") or r == "unscored"}
    staleness = sorted(n for s in done for n in s.staleness)
    masked = [s.metrics["masked_share"] for s in done if "masked_share" in s.metrics]
    learning, both = sum(s.spans.learning for s in done), sum(s.spans.both for s in done)
    wall = sum(s.spans.wall for s in done)
    played = _rollouts(run)
    finished = played.finished
    told = read_events(run)
    scale = next((s.lr_scale for s in reversed(done) if s.rolled_back_to is not None), 1.0)
    preset, lr, critic_lr = _trained_with(run)
    trained = sum(len(s.consumed) for s in done)
    return Summary(
        run=str(path),
        status=told.status,
        steps=last.step or 0,
        version=last.version,
        error=told.error,
        preset=preset,
        lr=None if lr is None else lr * scale,
        critic_lr=None if critic_lr is None else critic_lr * scale,
        evals=told.evals,
        rollouts_trained=trained,
        rollouts_finished=finished,
        pending=finished - trained - drops.total(),
        alike=_alike(done, played.rewards),
        truncated=played.truncated / finished if finished else None,
        metrics=means(s.env_metrics for s in done[-_NEWEST:]),
        dropped={r: n for r, n in drops.items() if r not in failed},
        failed=failed,
        tool_faults=played.faults,
        staleness=_staleness(staleness),
        masked_share_mean=fmean(masked) if masked else None,
        critic={name: last.metrics[name] for name in _HEALTH if name in last.metrics},
        alarms=told.alarms,
        fall_backs=sum(s.rolled_back_to is not None for s in done),
        probe_difference_max=told.probe_difference_max,
        generation_seconds=sum(s.spans.generating for s in done),
        learning_seconds=learning,
        wall_seconds=wall,
        overlap=both / learning if learning else None,
        tokens_per_second=sum(s.tokens for s in done) / wall if wall else 0.0,
        waits={words: sum(getattr(s.waits, cause) for s in done) for cause, words in CAUSES.items()},
        episode_seconds=_spread(played.seconds),
        tool_seconds=_spread(played.tools),
        sandboxes={name: n for name in _GROWING if (n := sum(getattr(s.sandboxes, name) for s in done))},
        sandbox_seconds=played.sandbox / finished if played.sandbox else None,
    )


class _Played(NamedTuple):
    """What the finished rollouts tell."""

    finished: int
    truncated: int
    faults: tuple[ToolFault, ...]
    sandbox: float
    """Seconds that they waited for sandboxes, all together."""
    seconds: list[float]
    """Of each,"""
    tools: list[float]
    """and of that for the environment."""
    rewards: dict[str, tuple[str | None, float | None]]
    """Group and reward of each, by its id."""


def _trained_with(run: RunDirectory) -> tuple[str | None, float | None, float | None]:
    """The preset, and the learning rates of policy and critic, as the config says."""
    try:
        config = load_config(run.config)
        critic = resolve(config.algorithm, config.learner.batch_rollouts).critic
    except ConfigError:
        return None, None, None
    return config.algorithm.preset, config.learner.lr, critic.lr if critic else None


def _spread(values: list[float]) -> Spread | None:
    if not any(values):
        return None
    return Spread(median(values), _p95(sorted(values)), max(values))


def _p95(ordered: Sequence[float]) -> float:
    return float(ordered[ceil(0.95 * len(ordered)) - 1])


def _rollouts(run: RunDirectory) -> _Played:
    finished = truncated = 0
    waited = 0.0
    seconds: list[float] = []
    tools: list[float] = []
    rewards: dict[str, tuple[str | None, float | None]] = {}
    faults: dict[tuple[str, str], ToolFault] = {}
    for rollout in read_jsonl(run.rollouts, Rollout):
        finished += 1
        truncated += rollout.status is Status.TRUNCATED
        waited += rollout.timings.sandbox
        seconds.append(rollout.timings.total)
        tools.append(rollout.timings.environment)
        rewards[rollout.id] = (rollout.group, rollout.reward)
        _add_faults(faults, rollout.tool_faults)
    return _Played(finished, truncated, with_unknown_as_one(faults.values()), waited, seconds, tools, rewards)


def _alike(steps: Iterable[StepRecord], rewards: Mapping[str, tuple[str | None, float | None]]) -> Alike | None:
    found = ([rewards[name] for name in step.consumed if name in rewards] for step in steps)
    batches = [batch for batch in found if batch]
    if not batches:
        return None
    counts = [alike(batch) for batch in batches]
    return Alike(
        in_groups=any(group is not None for batch in batches for group, _ in batch),
        rollouts=sum(counts) / sum(map(len, batches)),
        steps=sum(count == len(batch) for count, batch in zip(counts, batches, strict=True)),
        of_steps=len(batches),
    )


def fates(run: RunDirectory, rollouts: Collection[str]) -> dict[str, str]:
    """What has become of some rollouts, by their ids, in words."""
    found = dict.fromkeys(rollouts, "not yet trained on")
    if not found:
        return found
    step_of: dict[str, int] = {}
    for record in read_jsonl(run.steps, StepRecord):
        for name in found.keys() & {*record.consumed}:
            found[name], step_of[name] = f"trained on in step {record.step}", record.step or 0
        found |= {drop.rollout: f"dropped: {drop.reason}" for drop in record.dropped if drop.rollout in found}
        if (back := record.rolled_back_to) is not None:
            for name in [name for name, step in step_of.items() if step > back]:
                found[name] += f", which was undone in step {record.step}"
                del step_of[name]
    return found


def means(measured: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each figure over those that have it."""
    values = defaultdict[str, list[float]](list)
    for figures in measured:
        for name, value in figures.items():
            values[name].append(value)
    return {name: fmean(of) for name, of in values.items()}


def sum_faults(faults: Iterable[ToolFault]) -> tuple[ToolFault, ...]:
    """One fault for each tool and kind, the most frequent first."""
    total: dict[tuple[str, str], ToolFault] = {}
    _add_faults(total, faults)
    return _by_count(total.values())


def with_unknown_as_one(summed: Iterable[ToolFault]) -> tuple[ToolFault, ...]:
    """`summed` with a single fault for all tools that do not exist, whatever names the model made up."""
    known: list[ToolFault] = []
    unknown: list[ToolFault] = []
    for fault in _by_count(summed):
        (unknown if fault.kind == "unknown_tool" else known).append(fault)
    if unknown:
        most = unknown[0]
        example = f"names: {len(unknown):,}; most often {most.tool!r}: {most.count:,}×"
        known.append(ToolFault("(unknown)", most.kind, sum(f.count for f in unknown), example))
    return _by_count(known)


def _add_faults(total: dict[tuple[str, str], ToolFault], faults: Iterable[ToolFault]) -> None:
    for fault in faults:
        before = total.get((fault.tool, fault.kind))
        count = fault.count + (before.count if before else 0)
        total[fault.tool, fault.kind] = msgspec.structs.replace(before or fault, count=count)


def _by_count(faults: Iterable[ToolFault]) -> tuple[ToolFault, ...]:
    return tuple(sorted(faults, key=lambda f: -f.count))


class Told(NamedTuple):
    """What a run's events tell of it."""

    status: str
    evals: tuple[EvalResult, ...]
    probe_difference_max: float | None
    alarms: dict[str, int]
    """How many, by name."""
    error: str | None = None
    """Why it failed, where that is how it stands."""


def read_events(run: RunDirectory) -> Told:
    """How the run stands, its evaluations and alarms; one that was repeated after a crash counts once."""
    status, difference, error = "started", None, None
    alarms: set[tuple[str, int]] = set()
    evals: dict[tuple[str, float], EvalResult] = {}
    for event in read_jsonl(run.events, Event):
        if event.kind in _ENDINGS:
            status, error = event.kind, event.data.get("error")
        elif event.kind == "eval":
            result = msgspec.convert(event.data["result"], EvalResult)
            evals[result.label, result.temperature] = result
        elif event.kind == "alarm":
            alarms.add((event.data["name"], event.data["step"]))
        elif event.kind == "version_published" and "probe_difference" in event.data:
            difference = max(difference or 0.0, event.data["probe_difference"])
    if status == "started":
        status = "running" if run.in_use() else "killed"
    return Told(status, tuple(evals.values()), difference, dict(Counter(name for name, _ in alarms)), error)


def _staleness(ordered: list[int]) -> StalenessSummary:
    if not ordered:
        return StalenessSummary()
    return StalenessSummary(fmean(ordered), _p95(ordered), ordered[-1])
