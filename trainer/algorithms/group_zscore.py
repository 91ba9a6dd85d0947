"""Group-relative advantages: how a rollout did beside the others of its task.

GRPO, `arXiv 2402.03300 <https://arxiv.org/abs/2402.03300>`_:

    Â_i = (R_i − mean(R)) / (std(R) + ε)

over the rollouts of one group, with the sample's standard deviation (n − 1). Every action token of rollout `i` gets
Â_i.

What always holds: a group's advantages sum to 0; a group without variance, or of one rollout, gives exactly 0.
"""

from torch import Tensor

from moonmill.trainer.algorithms.grouping import by_group


def group_zscore(rewards: Tensor, groups: Tensor, *, epsilon: float) -> Tensor:
    """Advantages `[rollouts]`.

    Args:
        rewards: `[rollouts]`.
        groups: `[rollouts]`, the same number for those of one group; groups may differ in size.
        epsilon: keeps groups with next to no variance from being blown up.
    """
    return by_group(rewards, groups, lambda own: (own - own.mean()) / (own.std() + epsilon))
