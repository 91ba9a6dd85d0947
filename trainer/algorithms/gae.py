"""`gae`: skip-observation generalised advantage estimation (SAO, arXiv 2607.07508; GAE, arXiv 1506.02438).

Only action tokens take part. With `t'` the next *action* token of the rollout, across any observation in between:

    δ_t = r_t + γ·V(t') − V(t)          Â_t = δ_t + γ·λ·Â_{t'}

After the last action token, V is 0, or the bootstrap value of a truncated episode. V(t) is the value of the context before
token t, so V of the first token of an action has seen the observation in front of it.

Invariants: an observation token has no reward, no value and no advantage of its own; its length changes nothing. A reward
that lands on a trailing observation belongs to the last action token. λ = 1 gives the Monte Carlo return minus V.
"""

import torch
from torch import Tensor

from moonmill.trainer.algorithms.ragged import pad_right, unpad


def gae(
    rewards: Tensor,
    values: Tensor,
    lengths: Tensor,
    *,
    gamma: float,
    lam: Tensor | float,
    bootstrap: Tensor | None = None,
) -> Tensor:
    """Advantages `[tokens]` of action tokens, rollout after rollout.

    Args:
        rewards: `[tokens]`, the reward that each action token earned.
        values: `[tokens]`, V of the context before each action token.
        lengths: `[rollouts]`, action tokens of each rollout, at least 1; they add up to `tokens`.
        gamma: discount per action token.
        lam: λ, one for all or `[rollouts]`.
        bootstrap: `[rollouts]`, value of what would have come after the last token; 0 if None.
    """
    reward, value = pad_right(rewards, lengths), pad_right(values, lengths)
    rows, longest = reward.shape
    inside = torch.arange(longest, device=lengths.device) < lengths.unsqueeze(1)
    decay = gamma * (lam if isinstance(lam, Tensor) else torch.full((rows,), lam, device=values.device))
    end = torch.zeros(rows, device=values.device, dtype=values.dtype) if bootstrap is None else bootstrap
    next_value, advantage = end, torch.zeros_like(end)
    columns = []
    for t in range(longest - 1, -1, -1):
        here = inside[:, t]
        delta = reward[:, t] + gamma * next_value - value[:, t]
        advantage = torch.where(here, delta + decay * advantage, advantage)
        next_value = torch.where(here, value[:, t], next_value)
        columns.append(advantage)
    return unpad(torch.stack(columns[::-1], 1), lengths)


def adaptive_lambda(lengths: Tensor, alpha: float) -> Tensor:
    """λ = 1 − 1/(α·l), l the rollout's action tokens (VAPO, arXiv 2504.05118); at least 0. Shape `[rollouts]`."""
    return (1 - 1 / (alpha * lengths.float())).clamp(min=0.0)
