"""Corrections: weights that take the loss from the policy that sampled to the one the learner computes with.

The engine and the learner may give the same token different probabilities, because they compute differently or because
the token is old. The loss of each token is multiplied with a weight w made of the ratio ρ of the two, without gradient:

- truncated, TIS (Yao et al. 2025, `fengyao.notion.site/off-policy-rl <https://fengyao.notion.site/off-policy-rl>`_):
  w = min(ρ, cap)
- masked, IcePop (Ling team 2025, `ringtech.notion.site/icepop <https://ringtech.notion.site/icepop>`_):
  w = ρ where low ≤ ρ ≤ high, else 0

At the level of tokens ρ_t = exp(logπ_learner − logπ_rollout) is each token's own; at that of sequences all tokens of a
rollout have the product of theirs, which is unbiased and varies far more (arXiv 2510.13786 has the first, Liu et al.
2025, "When speed kills stability", argue for the second).

What always holds: where the two policies agree, w is 1; a weight has no gradient; a ratio beyond the bound of
`ratios` is truncated or dropped like any other.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from moonmill.trainer.algorithms.ratios import ratio_of

Level = Literal["token", "sequence"]


def tis(log_ratio: Tensor, lengths: Sequence[int], *, level: Level, cap: float) -> tuple[Tensor, Tensor]:
    """Weights, and which tokens count, `[action tokens]` both; all tokens do.

    Args:
        log_ratio: `[action tokens]`, the learner's log-probability minus the rollout's.
        lengths: action tokens of each rollout, which lie one after the other.
        level: whose ratio is truncated.
        cap: the weight is at most this.
    """
    weights = ratio_of(of_level(log_ratio, lengths, level).clamp(max=math.log(cap)))
    return weights, torch.ones_like(weights, dtype=torch.bool)


def icepop(
    log_ratio: Tensor, lengths: Sequence[int], *, level: Level, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Weights, and which tokens count, `[action tokens]` both; those that do not have the weight 0.

    Args:
        log_ratio: `[action tokens]`, the learner's log-probability minus the rollout's.
        lengths: action tokens of each rollout, which lie one after the other.
        level: whose ratio is looked at.
        low: the least ratio that counts.
        high: the greatest.
    """
    ratio = ratio_of(of_level(log_ratio, lengths, level))
    counts = (ratio >= low) & (ratio <= high)
    return ratio.where(counts, 0.0), counts


def of_level(log_ratio: Tensor, lengths: Sequence[int], level: Level) -> Tensor:
    """`[action tokens]`: each token's own log-ratio, or its rollout's sum. Without gradient."""
    detached = log_ratio.detach()
    if level == "token":
        return detached
    return torch.cat([rollout.sum().expand(len(rollout)) for rollout in torch.split(detached, list(lengths))])
