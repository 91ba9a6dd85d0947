"""`dis`: SAO's double-sided importance sampling (arXiv 2607.07508).

With r = exp(log πθ − log π_rollout), the ratio of the policy being trained to the one that sampled the token:

    f(r) = r  if 1 − low < r < 1 + high,  else 0            loss = −sg(f(r)) · Â · log πθ

Invariants: the borders are strict and do not depend on the advantage's sign; a masked token has no gradient; at r = 1 this
is REINFORCE. There is no π_old and no KL term.
"""

from torch import Tensor

from moonmill.trainer.algorithms.objective import TokenLoss


def dis(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, *, low: float, high: float) -> TokenLoss:
    """Losses per action token.

    Args:
        logprobs: `[tokens]`, log πθ of the sampled tokens; the gradient flows through it.
        behaviour: `[tokens]`, log-probabilities at sampling time.
        advantages: `[tokens]`.
        low: the ratio must be above 1 − low.
        high: the ratio must be below 1 + high.
    """
    ratio = (logprobs.detach() - behaviour).exp()
    inside = (ratio > 1 - low) & (ratio < 1 + high)
    weight = ratio.where(inside, ratio.new_zeros(()))
    return TokenLoss(-weight * advantages * logprobs, ~inside)
