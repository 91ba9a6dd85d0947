"""Two evaluations of the same tasks, compared task by task.

What always holds: only tasks that both have count, and each is set against itself, so that what makes a task hard
cancels out; the others are named.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec import Struct

from moonmill.config_io import differences
from moonmill.errors import ConfigError
from moonmill.reporting import Estimate
from moonmill.trainer.estimates import bootstrap
from moonmill.trainer.eval_folder import EvalSettings, read_outcomes, read_settings
from moonmill.trainer.outcomes import Outcome, Sample, by_task
from moonmill.trainer.significance import sign_flip


class Paired(Struct, frozen=True):
    """One figure of both, as means over the tasks that both have."""

    a: float
    b: float
    difference: Estimate
    """b − a; its interval is of a bootstrap that draws whole tasks."""
    better: int
    """Tasks on which b is better."""
    worse: int
    p: float
    """Of the sign-flip permutation test (`moonmill.trainer.significance`): how often chance alone does as much."""


class Contrast(Struct, frozen=True):
    """Two evaluations in one environment."""

    env: str
    temperature_a: float
    temperature_b: float
    tasks: int
    success: Paired
    reward: Paired
    only_a: tuple[str, ...]
    """Ids of tasks that only a has scored samples of."""
    only_b: tuple[str, ...]


class EvalComparison(Struct, frozen=True):
    """Two evaluations."""

    a: str
    b: str
    settings: dict[str, tuple[Any, Any]]
    """What was set otherwise, with both values."""
    contrasts: tuple[Contrast, ...]


Tasks = Mapping[tuple[str, str], Sequence[Sample]]


def compare(a: Path, b: Path) -> EvalComparison:
    """Compare the evaluations in two folders.

    Raises:
        RunDirectoryError: one is no evaluation's folder.
        ConfigError: they have no task in common.
    """
    settings = read_settings(a), read_settings(b)
    outcomes = read_outcomes(a), read_outcomes(b)
    contrasts = []
    for env, *temperatures in _pairs(*settings):
        of_a, of_b = (
            by_task(_block(found, asked, env, t))
            for found, asked, t in zip(outcomes, settings, temperatures, strict=True)
        )
        if of_a.keys() & of_b.keys():
            thresholds = settings[0].success, settings[1].success
            contrasts.append(_contrast(env, temperatures, of_a, of_b, thresholds))
    changed = differences(*settings)
    if not contrasts:
        told = "".join(f"\n  {key}: {was!r:.100} and {now!r:.100}" for key, (was, now) in changed.items())
        raise ConfigError(f"--compare: {a} and {b} have no scored task in common; they differ in{told or ' nothing'}")
    return EvalComparison(str(a), str(b), changed, tuple(contrasts))


def _pairs(a: EvalSettings, b: EvalSettings) -> list[tuple[str, float, float]]:
    """Environments and temperatures that are set against each other: equal ones, or the only one that each has.

    A script has none, and is set against all that the other has.
    """
    alone = len(a.temperatures) == len(b.temperatures) == 1
    if alone or a.is_scripted or b.is_scripted:
        both = list(product(a.temperatures, b.temperatures))
    else:
        both = [(t, t) for t in a.temperatures if t in b.temperatures]
    return [(env, *pair) for env in a.envs if env in b.envs for pair in both]


def _block(outcomes: Mapping[int, Outcome], settings: EvalSettings, env: str, temperature: float) -> list[Outcome]:
    return [outcomes[index] for index in settings.block(env, temperature) if index in outcomes]


def _contrast(env: str, temperatures: Sequence[float], a: Tasks, b: Tasks, thresholds: tuple[float, float]) -> Contrast:
    both = [task for task in a if task in b]
    shares = [
        [fmean(sample.judged >= least for sample in of[task]) for task in both]
        for of, least in zip((a, b), thresholds, strict=True)
    ]
    rewards = [[fmean(sample.reward for sample in of[task]) for task in both] for of in (a, b)]
    return Contrast(
        env=env,
        temperature_a=temperatures[0],
        temperature_b=temperatures[1],
        tasks=len(both),
        success=_paired(*shares),
        reward=_paired(*rewards),
        only_a=tuple(task[0] for task in a if task not in b),
        only_b=tuple(task[0] for task in b if task not in a),
    )


def _paired(a: Sequence[float], b: Sequence[float]) -> Paired:
    differences = [after - before for before, after in zip(a, b, strict=True)]
    return Paired(
        a=fmean(a),
        b=fmean(b),
        difference=Estimate(fmean(differences), *bootstrap(differences), tasks=len(differences)),
        better=sum(d > 0 for d in differences),
        worse=sum(d < 0 for d in differences),
        p=sign_flip(differences),
    )
