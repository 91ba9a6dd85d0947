"""Whether two evaluations of the same tasks differ by more than chance. Pure; what is random hangs from a seed."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from random import Random

_EXACT = 100_000
"""Distinct outcomes of the signs up to which all are counted; of more, a sample is taken."""
_DRAWS = 10_000
_DIGITS = 12
"""To which differences that should be equal are, whatever rounding made of them."""


def sign_flip(differences: Sequence[float], seed: int = 0) -> float:
    """The two-sided p-value of a paired permutation test: how often random signs give a sum as far from 0.

    If neither side were better, each task's difference could as well have been the other way round. Where tasks have
    one sample and are solved or not, the differences are −1, 0 and 1, and this is the exact McNemar test; with several
    samples and with rewards it goes on where that cannot. Exact as far as it can be counted; else of 10,000 draws with
    the observed one among them, so that it is never 0 (Phipson and Smyth 2010).

    Args:
        differences: one for each task.
        seed: decides the draws.
    """
    sizes = Counter(size for d in differences if (size := round(abs(d), _DIGITS)))
    far = abs(math.fsum(differences)) - 10**-_DIGITS * (1 + len(differences))
    if math.prod(count + 1 for count in sizes.values()) <= _EXACT:
        ways = 0
        for positive in itertools.product(*(range(count + 1) for count in sizes.values())):
            total = sum(d * (2 * n - count) for n, (d, count) in zip(positive, sizes.items(), strict=True))
            if abs(total) >= far:
                ways += math.prod(map(math.comb, sizes.values(), positive))
        return ways / (1 << sizes.total())
    rng = Random(seed)
    hits = 0
    for _ in range(_DRAWS):
        total = sum(d * (2 * rng.getrandbits(count).bit_count() - count) for d, count in sizes.items())
        hits += abs(total) >= far
    return (hits + 1) / (_DRAWS + 1)
