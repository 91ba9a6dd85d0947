"""`group_zscore`: GRPO's advantage (DeepSeekMath, arXiv 2402.03300).

    Â_i = (R_i − mean(R_group)) / (std(R_group) + ε)

Invariants: the advantages of a group add up to 0; a group whose rewards are all equal has none. The standard deviation is
that of the group's members, without Bessel's correction.
"""

import torch
from torch import Tensor


def group_zscore(rewards: Tensor, groups: Tensor, *, epsilon: float) -> Tensor:
    """Advantages `[rollouts]`.

    Args:
        rewards: `[rollouts]`.
        groups: `[rollouts]`, a number for each group, from 0.
        epsilon: keeps the quotient finite where all rewards of a group are equal.
    """
    count = int(groups.max()) + 1
    zeros = torch.zeros(count, dtype=rewards.dtype, device=rewards.device)
    size = zeros.index_add(0, groups, torch.ones_like(rewards))
    mean = zeros.index_add(0, groups, rewards) / size
    centred = rewards - mean[groups]
    std = (zeros.index_add(0, groups, centred**2) / size).sqrt()
    return centred / (std[groups] + epsilon)
