"""Group-relative advantages without a scale: how much more reward a rollout got than its task's usual.

Dr. GRPO, `arXiv 2503.20783 <https://arxiv.org/abs/2503.20783>`_:

    Â_i = R_i − mean(R)

over the rollouts of one group. Without the division by the standard deviation, groups that nearly always succeed or
fail do not count for more than others. Every action token of rollout `i` gets Â_i.

What always holds: a group's advantages sum to 0; a group without variance, or of one rollout, gives exactly 0.
"""

import torch
from torch import Tensor


def group_mean(rewards: Tensor, groups: Tensor) -> Tensor:
    """Advantages `[rollouts]`.

    Args:
        rewards: `[rollouts]`.
        groups: `[rollouts]`, the same number for those of one group; groups may differ in size.
    """
    advantages = torch.zeros_like(rewards)
    for group in set(groups.tolist()):
        members = groups == group
        own = rewards[members]
        if own.min() != own.max():  # The mean of equal numbers may be a rounding away from them.
            advantages[members] = own - own.mean()
    return advantages
