"""How soon training recovers from a change of what is wanted: python recovery.py COMPARE_JSON [ROLLOUTS]

COMPARE_JSON is what `moonmill compare` leaves behind, ROLLOUTS how many were trained on before the change (1,920).
After the change a run falls below 90% of the mean reward of the twenty steps before it, and has recovered at the first
stretch of ten steps whose mean is that high again. Means over the seeds are told with 95% intervals (Student's t), and
so is the difference of each way to the first, seed by seed, where all runs of a way were finished and recovered.
"""

import sys
from collections.abc import Sequence
from itertools import dropwhile
from pathlib import Path
from statistics import fmean

import msgspec

from moonmill.trainer.compared import Comparison, RunFigures, figure

BEFORE, STRETCH, SHARE = 20, 10, 0.9


def recovery(reward: Sequence[float], change: int) -> tuple[float, float, int | None]:
    """Mean reward before the change, the lowest of a stretch after it, and steps until a stretch has recovered.

    Args:
        reward: `[steps]`, of which there are twenty before the change and ten after it at least.
        change: steps before the change.

    Returns:
        Of the last, None where none has; 0 where none fell.
    """
    before = fmean(reward[change - BEFORE : change])
    ends = range(change + STRETCH, len(reward) + 1)
    after = [(end - change, fmean(reward[end - STRETCH : end])) for end in ends]
    fallen = [*dropwhile(lambda stretch: stretch[1] >= SHARE * before, after)]
    steps = next((steps for steps, mean in fallen if mean >= SHARE * before), None)
    return before, min(mean for _, mean in after), steps if fallen else 0


def main(path: Path, rollouts: int) -> None:
    """Print a line for each run of a comparison, and what the ways come to."""
    comparison = msgspec.json.decode(path.read_bytes(), type=Comparison)
    steps: dict[str, dict[int, int | None]] = {}
    print(f"{'':14} {'seed':>4} {'before':>7} {'lowest':>7} {'steps to recover':>17}")
    for run in comparison.runs:
        told, needed = _told(run, rollouts)
        print(f"{run.arm:14} {run.seed:4} {told}")
        steps.setdefault(run.arm, {})[run.seed] = needed
    first, *_ = steps.values() or [{}]
    for arm, by_seed in steps.items():
        print(f"{arm}: {_figure([*by_seed.values()])}", end="")
        pairs = [(by_seed[seed], first[seed]) for seed in by_seed if seed in first]
        longer = [a - b for a, b in pairs if a is not None and b is not None]
        if by_seed is not first and len(longer) == len(by_seed):
            print(f", {_figure(longer)} more than {next(iter(steps))}", end="")
        print()


def _told(run: RunFigures, rollouts: int) -> tuple[str, int | None]:
    """What is said of a run, and its steps to recover; None where it has not, or that cannot be told."""
    reward = run.curve.reward
    change = sum(count <= rollouts for count in run.curve.rollouts)
    if change < BEFORE or len(reward) < change + STRETCH:
        return f"{run.status}: {change} steps before the change and {len(reward) - change} after it are too few", None
    before, lowest, needed = recovery(reward, change)
    said = f"more than {len(reward) - change}" if needed is None else str(needed) if needed else "did not fall"
    unfinished = f"  {run.status}" * (run.status != "finished")
    return f"{before:7.3f} {lowest:7.3f} {said:>17}{unfinished}", None if unfinished else needed


def _figure(values: Sequence[int | None]) -> str:
    """Mean and interval; nothing can be said of the mean where a run has not recovered."""
    known = [float(value) for value in values if value is not None]
    if not known or len(known) < len(values):
        return f"{len(known)} of {len(values)} runs were finished and recovered"
    of = figure(known)
    return f"{of.mean:.0f}" + (f" ± {of.margin:.0f}" if of.margin is not None else "") + " steps"


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1920)
    except (IndexError, OSError, ValueError) as e:
        sys.exit(f"give the compare.json of a comparison, and a number of rollouts ({type(e).__name__}: {e})")
