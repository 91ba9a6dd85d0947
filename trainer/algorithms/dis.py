"""Direct double-sided importance sampling: tokens whose ratio has run away do not count.

SAO, `arXiv 2607.07508 <https://arxiv.org/abs/2607.07508>`_. With r = exp(logπ_θ − logπ_rollout), π_rollout being what
the token was really sampled from:

    loss = −sg(f(r))·Â·logπ_θ,    f(r) = r where 1 − low < r < 1 + high, else 0

The mask is strict, on both sides, and does not ask for the advantage's sign. There is no π_old and no KL term.

What always holds: the gradient of a kept token is −r·Â·∇logπ_θ, that of a masked one is 0; on unchanged weights r is 1,
nothing is masked, and the gradient is that of the policy gradient.
"""

from torch import Tensor

from moonmill.trainer.algorithms.ratios import ratio_of


def dis(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, *, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Loss and mask of each action token, `[action tokens]` both; True in the mask counts.

    Args:
        logprobs: of the sampled tokens under the policy being trained.
        behaviour: of the same tokens as they were sampled.
        advantages: of the same tokens.
        low: ratios down to 1 − low count.
        high: ratios up to 1 + high count.
    """
    ratio = ratio_of(logprobs.detach() - behaviour)
    kept = (ratio > 1 - low) & (ratio < 1 + high)
    weight = ratio.where(kept, 0.0)
    return -weight * advantages * logprobs, kept
