"""Group by group: what the advantages that compare the rollouts of a task have in common."""

from collections.abc import Callable

import torch
from torch import Tensor


def by_group(rewards: Tensor, groups: Tensor, advantages_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Advantages `[rollouts]`; exactly 0 in a group without variance, or of one rollout.

    Args:
        rewards: `[rollouts]`.
        groups: `[rollouts]`, the same number for those of one group; groups may differ in size.
        advantages_of: of a group's rewards, `[members]`, which differ, its advantages.
    """
    advantages = torch.zeros_like(rewards)
    for group in set(groups.tolist()):
        members = groups == group
        own = rewards[members]
        if own.min() != own.max():  # A mean of equal numbers may be a rounding away from them.
            advantages[members] = advantages_of(own)
    return advantages
