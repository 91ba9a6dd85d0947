"""PPO's clipped surrogate with one ratio for a whole rollout.

GSPO, `arXiv 2507.18071 <https://arxiv.org/abs/2507.18071>`_, in its token form (GSPO-token), which is the same where a
rollout has one advantage and allows a critic's besides. With l action tokens in rollout i:

    s_i = exp(1/l·Σ_t (logπ_θ − logπ_old)),    s_it = sg(s_i)·exp(logπ_θ − sg(logπ_θ))
    loss = −min(s_it·Â, clip(s_it, 1 − low, 1 + high)·Â)

The ratio is the geometric mean of the tokens' ratios, so that the band does not depend on the length; it is narrow, for
means vary little.

What always holds: the gradient of a token that is not clipped is −s_i·Â·∇logπ_θ; where Â is one for the rollout, its
tokens are clipped all or none.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from moonmill.trainer.algorithms.ppo_clip import clipped_surrogate
from moonmill.trainer.algorithms.ratios import ratio_of


def gspo(
    logprobs: Tensor, behaviour: Tensor, advantages: Tensor, lengths: Sequence[int], *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Loss and mask of each action token, `[action tokens]` both; False in the mask is clipped: without gradient.

    Args:
        logprobs: of the sampled tokens under the policy being trained.
        behaviour: of the same tokens under the policy the ratio is to.
        advantages: of the same tokens.
        lengths: action tokens of each rollout, which lie one after the other.
        low: the band begins at 1 − low.
        high: the band ends at 1 + high.
    """
    log_ratio = torch.split((logprobs - behaviour).detach(), list(lengths))
    means = torch.cat([rollout.mean().expand(len(rollout)) for rollout in log_ratio])
    # Its value is the rollout's ratio, its gradient with respect to logπ_θ too.
    ratio = ratio_of(means + (logprobs - logprobs.detach()))
    return clipped_surrogate(ratio, advantages, low, high)
