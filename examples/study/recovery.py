"""How soon training recovers from a change of what is wanted: python recovery.py COMPARE_JSON [ROLLOUTS]

COMPARE_JSON is what `moonmill compare` leaves behind, ROLLOUTS how many were trained on before the change (1,920). A
run has recovered at the first stretch of ten steps whose mean reward is 90% of that of the twenty steps before the
change.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

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
    """Print a line for each run of a comparison."""
    print(f"{'':14} {'seed':>4} {'before':>7} {'lowest':>7} {'steps to recover':>17}")
    for run in json.loads(path.read_text())["runs"]:
        curve = run["curve"]
        change = sum(count <= rollouts for count in curve["rollouts"])
        before, lowest, steps = recovery(curve["reward"], change)
        told = f"more than {len(curve['reward']) - change}" if steps is None else str(steps)
        print(f"{run['arm']:14} {run['seed']:4} {before:7.3f} {lowest:7.3f} {told:>17}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1920)
