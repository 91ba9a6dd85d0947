"""How soon training recovers from a change of what is wanted: python recovery.py COMPARE_JSON [ROLLOUTS]

COMPARE_JSON is what `moonmill compare` leaves behind, ROLLOUTS how many were trained on before the change (1,920). A
run has recovered at the first stretch of ten steps whose mean reward is 90% of that of the twenty steps before the
change. Means over the seeds are told with 95% intervals (Student's t), and so is the difference of each way to the
first, seed by seed.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from moonmill.trainer.compared import figure

BEFORE, STRETCH, SHARE = 20, 10, 0.9


def recovery(reward: Sequence[float], change: int) -> tuple[float, float, int | None]:
    """Mean reward before the change, the lowest of a stretch after it, and steps until a stretch has recovered.

    Args:
        reward: `[steps]`.
        change: steps before the change.
    """
    before = fmean(reward[change - BEFORE : change])
    after = [fmean(reward[end - STRETCH : end]) for end in range(change + STRETCH, len(reward) + 1)]
    steps = next((STRETCH + at for at, mean in enumerate(after) if mean >= SHARE * before), None)
    return before, min(after), steps


def main(path: Path, rollouts: int) -> None:
    """Print a line for each run of a comparison, and what the ways come to."""
    steps: dict[str, dict[int, int | None]] = {}
    print(f"{'':14} {'seed':>4} {'before':>7} {'lowest':>7} {'steps to recover':>17}")
    for run in json.loads(path.read_text())["runs"]:
        curve = run["curve"]
        change = sum(count <= rollouts for count in curve["rollouts"])
        before, lowest, needed = recovery(curve["reward"], change)
        told = f"more than {len(curve['reward']) - change}" if needed is None else str(needed)
        print(f"{run['arm']:14} {run['seed']:4} {before:7.3f} {lowest:7.3f} {told:>17}")
        steps.setdefault(run["arm"], {})[run["seed"]] = needed
    first = next(iter(steps.values()))
    for arm, by_seed in steps.items():
        print(f"{arm}: {_figure(list(by_seed.values()))} steps", end="")
        if by_seed is not first:
            pairs = [(by_seed[seed], first[seed]) for seed in by_seed if seed in first]
            longer = [None if a is None or b is None else a - b for a, b in pairs]
            print(f", {_figure(longer)} more than {next(iter(steps))}", end="")
        print()


def _figure(values: Sequence[int | None]) -> str:
    """Mean and interval; nothing can be said of the mean where a run has not recovered."""
    known = [float(value) for value in values if value is not None]
    if not known or len(known) < len(values):
        return f"({len(known)} of {len(values)} recovered)"
    of = figure(known)
    return f"{of.mean:.0f}" + (f" ± {of.margin:.0f}" if of.margin is not None else "")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1920)
    except (IndexError, OSError, ValueError, KeyError) as e:
        sys.exit(f"give the compare.json of a comparison, and a number of rollouts ({type(e).__name__}: {e})")
