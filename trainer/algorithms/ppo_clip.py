"""`ppo_clip`: PPO's clipped surrogate per token (arXiv 1707.06347), on the ratio to the rollout policy.

    loss = −min(r·Â, clip(r, 1 − low, 1 + high)·Â),   r = exp(log πθ − log π_rollout)

Invariants: clipping only ever removes an incentive to move further away; a clipped token has no gradient; at r = 1 the
gradient is REINFORCE's.
"""

import torch
from torch import Tensor

from moonmill.trainer.algorithms.objective import TokenLoss


def ppo_clip(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, *, low: float, high: float) -> TokenLoss:
    """Losses per action token; arguments as in `dis`."""
    ratio = (logprobs - behaviour).exp()
    free = ratio * advantages
    clipped = ratio.clamp(1 - low, 1 + high) * advantages
    return TokenLoss(-torch.minimum(free, clipped), (clipped < free).detach())
