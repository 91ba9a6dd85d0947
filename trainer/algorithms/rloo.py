"""Leave-one-out advantages: how a rollout did beside the others of its task, itself not among them.

RLOO, `arXiv 2402.14740 <https://arxiv.org/abs/2402.14740>`_, after Kool et al. 2019. With k rollouts in the group:

    Â_i = R_i − 1/(k − 1)·Σ_{j≠i} R_j  =  k/(k − 1)·(R_i − mean(R))

The baseline does not depend on the rollout it is subtracted from, so the gradient is unbiased. Every action token of
rollout `i` gets Â_i.

What always holds: a group's advantages sum to 0; a group without variance, or of one rollout, gives exactly 0.
"""

from torch import Tensor

from moonmill.trainer.algorithms.grouping import by_group


def rloo(rewards: Tensor, groups: Tensor) -> Tensor:
    """Advantages `[rollouts]`.

    Args:
        rewards: `[rollouts]`.
        groups: `[rollouts]`, the same number for those of one group; groups may differ in size.
    """
    return by_group(rewards, groups, lambda own: own - (own.sum() - own) / (len(own) - 1))
