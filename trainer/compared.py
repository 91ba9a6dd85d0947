"""What came of a comparison: figures of each run, and of each arm over its seeds."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev

from msgspec import Struct

from moonmill.errors import RunDirectoryError
from moonmill.jsonl import read_jsonl
from moonmill.rundir import RunDirectory
from moonmill.trainer.records import StepRecord
from moonmill.trainer.summary import CAUSES, read_events

_LAST = 0.1
"""Share of the steps that tell where a run has arrived."""
_COLLAPSED = 0.5
"""A run has collapsed that has lost more than this share of its best stretch, one as long as its end."""
_SPEED = "rollouts/s"
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 97.5% point of Student's t distribution, with 1, 2, 3 … degrees of freedom."""
_T95_LARGE = 1.96


class Curve(Struct, frozen=True):
    """A run step by step: what it had cost, and the mean reward of the rollouts it trained on. All `[steps]`."""

    seconds: tuple[float, ...]
    rollouts: tuple[float, ...]
    tokens: tuple[float, ...]
    reward: tuple[float, ...]


class RunFigures(Struct, frozen=True):
    """One run of a comparison."""

    arm: str
    seed: int
    path: str
    status: str
    """As in `moonmill inspect`; `missing` where nothing of it is there."""
    figures: dict[str, float] = {}
    """By name, as far as they were measured."""
    waits: dict[str, float] = {}
    """Seconds waited, by cause."""
    curve: Curve = Curve((), (), (), ())


class Figure(Struct, frozen=True):
    """A figure of an arm over its seeds."""

    mean: float
    margin: float | None
    """The 95% confidence interval is mean ± margin (Student's t); None of a single run."""
    values: tuple[float, ...]


class ArmFigures(Struct, frozen=True):
    """One arm of a comparison, over its finished runs."""

    name: str
    runs: int
    finished: int
    figures: dict[str, Figure] = {}
    waits: dict[str, Figure] = {}
    """Seconds waited, by cause."""
    beside_first: dict[str, Figure] = {}
    """What its runs have more than the first arm's of the same seeds, which meet the same tasks, so that this varies
    less than the figures. `speed`: how many times its rollouts/s."""


class Comparison(Struct, frozen=True):
    """All of it."""

    rollouts: int
    """That each run trains on."""
    arms: tuple[ArmFigures, ...]
    runs: tuple[RunFigures, ...]
    picture: str | None = None
    """Where the curves were drawn."""


def figures_of(arm: str, seed: int, path: Path) -> RunFigures:
    """Read a run."""
    try:
        run = RunDirectory.open(path)
    except RunDirectoryError:
        return RunFigures(arm, seed, str(path), "missing")
    told = read_events(run)
    # A step that only goes back, after an alarm, trains on nothing: it has no reward, which is not one of 0.
    steps = [s for s in read_jsonl(run.steps, StepRecord) if s.consumed]
    if not steps:
        return RunFigures(arm, seed, str(path), told.status)
    figures = {
        f"{'success' if result.temperature else 'greedy success'}{_at(result.temperature)}": result.success
        for result in told.evals
        if result.label == "after"
    }
    return RunFigures(
        arm,
        seed,
        str(path),
        told.status,
        figures | _measured(steps),
        {words: sum(getattr(s.waits, cause) for s in steps) for cause, words in CAUSES.items()},
        _curve(steps),
    )


def _at(temperature: float) -> str:
    return f" at T = {temperature:g}" if temperature else ""


def _measured(steps: Sequence[StepRecord]) -> dict[str, float]:
    wall = sum(s.spans.wall for s in steps)
    rollouts = sum(len(s.consumed) for s in steps)
    stretch = max(1, round(_LAST * len(steps)))
    last = steps[-stretch:]
    best = _best(steps, stretch)
    explained = [v for s in last if (v := s.metrics.get("explained_variance_smoothed")) is not None]
    masked = [v for s in steps if (v := s.metrics.get("masked_share")) is not None]
    return {
        "reward at the end": _reward(last),
        "area under the reward": _reward(steps),
        "collapsed": float(best - _reward(last) > _COLLAPSED * abs(best)),
        **({"explained variance": fmean(explained)} if explained else {}),
        **({"masked": fmean(masked)} if masked else {}),
        "policy updates": float(steps[-1].version),
        "wall clock": wall,
        _SPEED: rollouts / max(wall, 1e-9),
        "tokens/s": sum(s.tokens for s in steps) / max(wall, 1e-9),
        "staleness": fmean([n for s in steps for n in s.staleness] or [0.0]),
    }


def _reward(steps: Sequence[StepRecord]) -> float:
    """Mean over the rollouts of some steps: what the curve over rollouts has beneath it, in the mean."""
    known = [(s.reward, len(s.consumed)) for s in steps if s.reward is not None]
    return sum(reward * count for reward, count in known) / max(1, sum(count for _, count in known))


def _best(steps: Sequence[StepRecord], stretch: int) -> float:
    """The highest mean reward of so many steps in a row."""
    counts = [0, *accumulate(len(s.consumed) if s.reward is not None else 0 for s in steps)]
    sums = [0.0, *accumulate((s.reward or 0.0) * len(s.consumed) for s in steps)]
    return max(
        (
            (sums[end] - sums[end - stretch]) / count
            for end in range(stretch, len(sums))
            if (count := counts[end] - counts[end - stretch])
        ),
        default=0.0,
    )


def _curve(steps: Sequence[StepRecord]) -> Curve:
    def total(of: Callable[[StepRecord], float]) -> tuple[float, ...]:
        return tuple(accumulate(of(s) for s in steps))

    return Curve(
        total(lambda s: s.spans.wall),
        total(lambda s: len(s.consumed)),
        total(lambda s: s.tokens),
        tuple(s.reward or 0.0 for s in steps),
    )


def arm_of(name: str, runs: Sequence[RunFigures], first: str) -> ArmFigures:
    """An arm's figures over its finished runs, and beside those of the first arm."""
    own = [run for run in runs if run.arm == name]
    finished = [run for run in own if run.status == "finished"]
    others = {run.seed: run.figures for run in runs if run.arm == first != name and run.status == "finished"}
    return ArmFigures(
        name,
        len(own),
        len(finished),
        _over_seeds([run.figures for run in finished]),
        _over_seeds([run.waits for run in finished]),
        _over_seeds([_beside(run.figures, others[run.seed]) for run in finished if run.seed in others]),
    )


def _beside(own: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    more = {name: value - other[name] for name, value in own.items() if name in other}
    speed = other.get(_SPEED, 0.0)
    return more | ({"speed": own[_SPEED] / speed} if speed and _SPEED in own else {})


def _over_seeds(measured: Sequence[Mapping[str, float]]) -> dict[str, Figure]:
    names = dict.fromkeys(name for figures in measured for name in figures)
    return {name: figure([of[name] for of in measured if name in of]) for name in names}


def figure(values: Sequence[float]) -> Figure:
    """Mean and 95% interval of a figure over seeds."""
    freedom = len(values) - 1
    if freedom < 1:
        return Figure(fmean(values), None, tuple(values))
    t = _T95[freedom - 1] if freedom <= len(_T95) else _T95_LARGE
    return Figure(fmean(values), t * stdev(values) / math.sqrt(len(values)), tuple(values))
