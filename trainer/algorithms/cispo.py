"""Clipped importance sampling weights: tokens whose ratio has run away count less, but none is lost.

CISPO, MiniMax-M1, `arXiv 2506.13585 <https://arxiv.org/abs/2506.13585>`_. With r = exp(logπ_θ − logπ_old):

    loss = −sg(clip(r, 1 − low, 1 + high))·Â·logπ_θ

What always holds: every token has a gradient, −clip(r)·Â·∇logπ_θ, in whichever direction it has moved; on unchanged
weights it is that of `reinforce`.
"""

import torch
from torch import Tensor

from moonmill.trainer.algorithms.ratios import ratio_of


def cispo(
    logprobs: Tensor, behaviour: Tensor, advantages: Tensor, *, low: float | None, high: float
) -> tuple[Tensor, Tensor]:
    """Loss and mask of each action token, `[action tokens]` both; every token counts.

    Args:
        logprobs: of the sampled tokens under the policy being trained.
        behaviour: of the same tokens under the policy the ratio is to.
        advantages: of the same tokens.
        low: the weight is at least 1 − low; None: no such bound.
        high: the weight is at most 1 + high.
    """
    ratio = ratio_of(logprobs.detach() - behaviour)
    weight = ratio.clamp(min=0.0 if low is None else 1 - low, max=1 + high)
    return -weight * advantages * logprobs, torch.ones_like(logprobs, dtype=torch.bool)
