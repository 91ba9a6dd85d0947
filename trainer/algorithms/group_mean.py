"""Group-relative advantages without a scale: how much more reward a rollout got than its task's usual.

Dr. GRPO, `arXiv 2503.20783 <https://arxiv.org/abs/2503.20783>`_:

    Â_i = R_i − mean(R)

over the rollouts of one group. Without the division by the standard deviation, groups that nearly always succeed or
fail do not count for more than others. Every action token of rollout `i` gets Â_i.

What always holds: a group's advantages sum to 0; a group without variance, or of one rollout, gives exactly 0.
"""

from torch import Tensor

from moonmill.trainer.algorithms.grouping import by_group


def group_mean(rewards: Tensor, groups: Tensor) -> Tensor:
    """Advantages `[rollouts]`.

    Args:
        rewards: `[rollouts]`.
        groups: `[rollouts]`, the same number for those of one group; groups may differ in size.
    """
    return by_group(rewards, groups, lambda own: own - own.mean())
