"""PPO's clipped surrogate, with the rollout policy as the old one.

PPO, `arXiv 1707.06347 <https://arxiv.org/abs/1707.06347>`_, by token as in GRPO. With r = exp(logπ_θ − logπ_rollout):

    loss = −min(r·Â, clip(r, 1 − low, 1 + high)·Â)

What always holds: a token that has already moved past the band in the direction its advantage points to has no
gradient; one that moved the other way keeps it.
"""

import torch
from torch import Tensor


def ppo_clip(
    logprobs: Tensor, behaviour: Tensor, advantages: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Loss and mask of each action token, `[action tokens]` both; False in the mask is clipped: without gradient.

    Args:
        logprobs: of the sampled tokens under the policy being trained.
        behaviour: of the same tokens as they were sampled.
        advantages: of the same tokens.
        low: the band begins at 1 − low.
        high: the band ends at 1 + high.
    """
    ratio = (logprobs - behaviour).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    with torch.no_grad():
        clipped = ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))
    return -surrogate, ~clipped
