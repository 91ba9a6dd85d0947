"""Explained variance: how much a critic knows beyond the mean."""

from collections.abc import Iterable
from typing import NamedTuple


class Variance(NamedTuple):
    """Of one step's targets: what the critic left unexplained of it, and all of it."""

    left: float
    all: float


def explained_variance(steps: Iterable[Variance]) -> float:
    """1 − Var(targets − values) / Var(targets): 1 is a perfect critic, 0 one that knows the mean at most.

    Over several steps the variances are summed first, so that a step whose targets hardly vary counts for little. `nan`
    where the targets do not vary: there is nothing to explain.
    """
    left, everything = (sum(parts) for parts in zip(*steps, strict=True))
    return 1 - left / everything if everything else float("nan")
