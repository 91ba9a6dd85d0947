"""PPO's clipped surrogate, by token.

PPO, `arXiv 1707.06347 <https://arxiv.org/abs/1707.06347>`_, by token as in GRPO; with high > low it is DAPO's
clip-higher (`arXiv 2503.14476 <https://arxiv.org/abs/2503.14476>`_). With r = exp(logπ_θ − logπ_old):

    loss = −min(r·Â, clip(r, 1 − low, 1 + high)·Â)

and with a dual clip c (`arXiv 1912.09729 <https://arxiv.org/abs/1912.09729>`_), where Â < 0:

    loss = −max(min(r·Â, clip(r, 1 − low, 1 + high)·Â), c·Â)

π_old is the rollout policy, or where the loss is corrected (`corrections`) the learner's before the batch's updates.

What always holds: a token that has already moved past the band in the direction its advantage points to has no
gradient; one that moved the other way keeps it, up to a ratio of c where there is a dual clip (`ratios` has another
bound for all).
"""

import torch
from torch import Tensor

from moonmill.trainer.algorithms.ratios import ratio_of


def ppo_clip(
    logprobs: Tensor, behaviour: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None = None
) -> tuple[Tensor, Tensor]:
    """Loss and mask of each action token, `[action tokens]` both; False in the mask is clipped: without gradient.

    Args:
        logprobs: of the sampled tokens under the policy being trained.
        behaviour: of the same tokens under the policy the ratio is to.
        advantages: of the same tokens.
        low: the band begins at 1 − low.
        high: the band ends at 1 + high.
        dual: where the advantage is negative, ratios beyond this are clipped too; None: they are not.
    """
    ratio = ratio_of(logprobs - behaviour)
    return clipped_surrogate(ratio, advantages, low, high, dual)


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None
) -> tuple[Tensor, Tensor]:
    """The same from the ratios `[action tokens]`, which carry the gradient."""
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    with torch.no_grad():
        clipped = ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))
        beyond = (advantages < 0) & (ratio > dual) if dual is not None else torch.zeros_like(clipped)
    if dual is not None:
        surrogate = torch.where(beyond, dual * advantages, surrogate)
    return -surrogate, ~(clipped | beyond)
