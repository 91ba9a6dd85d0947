"""PPO whose clip is around another policy than the one that sampled.

Decoupled PPO, `arXiv 2110.00641 <https://arxiv.org/abs/2110.00641>`_, as AReaL uses it for stale rollouts
(`arXiv 2505.24298 <https://arxiv.org/abs/2505.24298>`_). With a proximal policy π_prox between the two, and
u = exp(logπ_θ − logπ_prox):

    loss = −sg(π_prox/π_rollout)·min(u·Â, clip(u, 1 − low, 1 + high)·Â)

The exact π_prox is the policy before the batch's updates: the clip then holds back what these updates do, and not what
has changed since the tokens were sampled. The interpolated one needs no forward pass of its own (A-3PO,
`arXiv 2512.06547 <https://arxiv.org/abs/2512.06547>`_, and AReaL's `loglinear`); with v the policy's version before the
batch's updates, and v_rollout the token's:

    logπ_prox = logπ_rollout + α·sg(logπ_θ − logπ_rollout),    α = (v − 1 − v_rollout) / (v − v_rollout)

so that tokens of v − 1 and of v itself have α = 0: for them it is PPO. AReaL's configs mask tokens whose
π_prox/π_rollout is above 5; here that is the correction `icepop` with the band 0 to 5, which takes the place of the
plain ratio.

What always holds: the gradient of a token that is not clipped is −(π_θ/π_rollout)·Â·∇logπ_θ, whatever π_prox is.
"""

import torch
from torch import Tensor

from moonmill.trainer.algorithms.ppo_clip import ppo_clip
from moonmill.trainer.algorithms.ratios import ratio_of


def decoupled_ppo(
    logprobs: Tensor, behaviour: Tensor, advantages: Tensor, proximal: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Loss and mask of each action token, `[action tokens]` both; False in the mask is clipped: without gradient.

    Args:
        logprobs: of the sampled tokens under the policy being trained.
        behaviour: of the same tokens as they were sampled.
        advantages: of the same tokens.
        proximal: log-probabilities of the same tokens under the proximal policy, without gradient.
        low: the band begins at 1 − low.
        high: the band ends at 1 + high.
    """
    loss, kept = ppo_clip(logprobs, proximal, advantages, low=low, high=high)
    return ratio_of(proximal - behaviour) * loss, kept


def interpolated_proximal(logprobs: Tensor, behaviour: Tensor, versions: Tensor, version: int) -> Tensor:
    """Log-probabilities `[action tokens]` under a proximal policy guessed from the versions, without gradient.

    Args:
        logprobs: of the sampled tokens under the policy being trained.
        behaviour: of the same tokens as they were sampled.
        versions: `[action tokens]`, the policy version that sampled each.
        version: the policy's, before the batch's updates.
    """
    age = (version - versions).to(behaviour)
    share = torch.where(age > 1, (age - 1) / age.clamp(min=1), 0.0)
    return behaviour + share * (logprobs.detach() - behaviour)
