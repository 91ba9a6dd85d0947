"""A penalty on how far the policy has gone from a reference, from the sampled tokens alone.

With d = logπ_θ − logπ_ref of a token (Schulman 2020, `joschu.net/blog/kl-approx.html
<http://joschu.net/blog/kl-approx.html>`_):

    k1 = d              unbiased, of much variance, often negative
    k2 = d²/2           biased, of little variance
    k3 = exp(−d) − 1 + d    unbiased, never negative; GRPO's (arXiv 2402.03300)

As a loss, the gradient of k1 would be ∇logπ_θ, which is 0 on average and pulls nowhere (arXiv 2506.09477). The gradient
of the divergence itself is that of k2, d·∇logπ_θ; k1 takes it over and differs from k2 only in the value it shows. The
gradient of k3 is (1 − exp(−d))·∇logπ_θ, the same as long as d is small.

What always holds: where the policies agree, value and gradient are 0; tokens are taken as they were sampled, also those
of older policies, without a weight.
"""

from typing import Literal

from torch import Tensor

from moonmill.trainer.algorithms.ratios import LARGEST, ratio_of

Estimator = Literal["k1", "k2", "k3"]


def kl_penalty(logprobs: Tensor, reference: Tensor, estimator: Estimator) -> Tensor:
    """The penalty of each action token, `[action tokens]`.

    Args:
        logprobs: of the sampled tokens under the policy being trained.
        reference: of the same tokens under the reference, without gradient.
        estimator: one of those above.
    """
    difference = logprobs - reference
    if estimator == "k3":
        # One bound for both: with the second part's gradient alone, what is too unlikely would become more so.
        return ratio_of(-difference) - 1 + difference.clamp(min=-LARGEST)
    squared = difference.square() / 2
    if estimator == "k2":
        return squared
    return squared - squared.detach() + difference.detach()
