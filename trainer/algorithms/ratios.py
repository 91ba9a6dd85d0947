"""From log-ratios to ratios: the one exp of all objectives, corrections and penalties.

What always holds: a ratio and its gradient are finite, and so is the product of two; a log-ratio within the bound has
its own ratio and gradient to the bit.
"""

from torch import Tensor

LARGEST = 20.0
"""Log-ratios beyond it are taken for it, and without gradient, as in verl. A ratio of 5·10⁸ tells no more than that the
policies have nothing in common; one that is much larger makes the norm of the gradients overflow, and so costs the
whole batch its update."""


def ratio_of(log_ratio: Tensor) -> Tensor:
    """exp of log-ratios, of any shape, with its gradient."""
    return log_ratio.clamp(max=LARGEST).exp()
