"""The plain policy gradient: REINFORCE (Williams 1992).

    loss = −Â·logπ_θ

What always holds: the gradient of a token is −Â·∇logπ_θ, whatever policy it was sampled from: no ratio, no mask. On
tokens of an older policy it is biased; a correction (`corrections`) weights it.
"""

import torch
from torch import Tensor


def reinforce(logprobs: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and mask of each action token, `[action tokens]` both; every token counts.

    Args:
        logprobs: of the sampled tokens under the policy being trained.
        advantages: of the same tokens.
    """
    return -advantages * logprobs, torch.ones_like(logprobs, dtype=torch.bool)
