"""A weight for each rollout by its staleness: steps from old rollouts are made shorter.

With s versions between a rollout's oldest action token and the policy, and a power p:

    w = 1/(1 + s)^p

Staleness-aware SGD (`arXiv 1511.05950 <https://arxiv.org/abs/1511.05950>`_) divides the learning rate of a gradient by
its staleness, since otherwise staleness multiplies the effective learning rate; that is p = 1, here by rollout, and
with 1 + s so that what is fresh counts in full. There is no published value for language models.

What always holds: a rollout without staleness has the weight 1, and none has more; p = 0 is no scaling.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def staleness_weights(oldest: Tensor, lengths: Sequence[int], version: int, power: float) -> Tensor:
    """Weights `[action tokens]`, the same for all of a rollout.

    Args:
        oldest: `[sequences]`, the oldest policy version that sampled a token of the rollout each is of.
        lengths: action tokens of each sequence, which lie one after the other.
        version: the policy's, before the batch's updates.
        power: p.
    """
    weights = (1.0 + (version - oldest).clamp(min=0)) ** -power
    return weights.repeat_interleave(torch.tensor(lengths, device=oldest.device))
