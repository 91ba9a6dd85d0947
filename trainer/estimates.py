"""Figures of an evaluation and how sure they are. Pure functions; what is random in them hangs from a seed."""

import math
from collections.abc import Sequence
from random import Random
from statistics import fmean

_Z95 = 1.959963984540054
_RESAMPLES = 1000
_CUT = 25
"""Resamples beyond either end of a 95% interval."""


def pass_at_k(samples: int, successes: int, k: int) -> float | None:
    """The chance that at least one of `k` samples of a task is a success: 1 − C(n − c, k) / C(n, k).

    It is unbiased, which 1 − (1 − c/n)^k is not (Chen et al. 2021, arXiv 2107.03374). Fewer than `k` samples give no
    such estimate: None.
    """
    if samples < k:
        return None
    return 1 - math.comb(samples - successes, k) / math.comb(samples, k)


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95% interval of a mean: the percentiles of the means of 1,000 resamples (Efron 1979).

    Args:
        values: one for each task, or for each of whatever is independent of the others. Samples of one task are not.
        seed: decides the resamples.
    """
    rng = Random(seed)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return means[_CUT], means[-1 - _CUT]


def wilson(successes: int, samples: int) -> tuple[float, float]:
    """The 95% score interval of a proportion (Wilson 1927); (0, 1) without samples.

    The samples are independent: one for each task. Unlike a bootstrap it knows that none of 100 may still be 3%.
    """
    if samples == 0:
        return 0.0, 1.0
    p = successes / samples
    spread = _Z95 * math.sqrt(p * (1 - p) / samples + _Z95**2 / (4 * samples**2))
    scale = 1 + _Z95**2 / samples
    centre = p + _Z95**2 / (2 * samples)
    # At the ends the bound is the end itself, but for rounding.
    low = (centre - spread) / scale if successes else 0.0
    return low, (centre + spread) / scale if successes < samples else 1.0
