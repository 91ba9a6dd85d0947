"""Skip-observation generalised advantage estimation: advantages over action tokens alone.

`SAO, arXiv 2607.07508 <https://arxiv.org/abs/2607.07508>`_, on top of GAE (arXiv 1506.02438). With `t` counting a
rollout's *action tokens*, so that `t + 1` after the last token of an action is the first token of the next one:

    δ_t = r_t + γ·V_{t+1} − V_t
    Â_t = δ_t + γ·λ·Â_{t+1}

`V_t` is the value of the context before token `t`; for the first token of an action that context ends with the
observation, which therefore counts through V and takes no step of γ or λ of its own.

What always holds: observations are never in the recursion; nothing flows from one rollout to another; with λ = γ = 1,
Â_t + V_t is the sum of the rewards from `t` on, whatever the values.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def skip_observation_gae(
    values: Tensor,
    rewards: Tensor,
    lengths: Sequence[int],
    *,
    gamma: float,
    lam: Tensor,
    bootstrap: Tensor | None = None,
) -> Tensor:
    """Advantages `[action tokens]` of several rollouts, which lie one after the other in `values` and `rewards`.

    Args:
        values: `[action tokens]`, the critic's value of the context before each action token.
        rewards: `[action tokens]`, as `place_rewards` gives them.
        lengths: action tokens of each rollout, at least 1.
        gamma: discount of one action token.
        lam: `[rollouts]`, λ of each.
        bootstrap: `[rollouts]`, the value of the context each rollout ends with, 0 where the episode has truly ended;
            None: all have.
    """
    value = _columns(values, lengths)
    after = value.new_zeros(len(lengths)) if bootstrap is None else bootstrap.to(value)
    following = torch.cat([value[:, 1:], torch.zeros_like(value[:, :1])], 1)
    last = torch.tensor(lengths, device=value.device) - 1
    # A row's padding holds zeros, so the recursion enters it at its last token with Â = 0 and the value put in here.
    following[torch.arange(len(lengths), device=value.device), last] = after
    deltas = _columns(rewards, lengths) + gamma * following - value
    advantages = torch.zeros_like(value)
    carried = value.new_zeros(len(lengths))
    decay = gamma * lam.to(value)
    inside = torch.arange(value.shape[1], device=value.device) <= last.unsqueeze(1)
    deltas = deltas * inside
    for t in range(value.shape[1] - 1, -1, -1):
        carried = deltas[:, t] + decay * carried
        advantages[:, t] = carried
    return advantages[inside].to(values.dtype)


def adaptive_lambda(lengths: Sequence[int], alpha: float) -> Tensor:
    """λ = 1 − 1/(α·l) of rollouts with `l` action tokens, `[rollouts]`: long ones see further. Never below 0."""
    return (1 - 1 / (alpha * torch.tensor(lengths, dtype=torch.float64))).clamp(min=0)


def place_rewards(reward: float, turn_rewards: Sequence[float], action_lengths: Sequence[int]) -> list[float]:
    """A rollout's rewards by action token: each turn's at the last token of its action, the rest at the very last.

    A reward that arrives with an observation, also one after the last action, so belongs to the action before it.

    Args:
        reward: of the whole rollout, the turns' included.
        turn_rewards: the i-th belongs to the i-th action; those beyond the last action belong to the last.
        action_lengths: tokens of each action. One without tokens leaves its reward to the token sampled before it.
    """
    placed = [0.0] * sum(action_lengths)
    ends, end = [], 0
    for length in action_lengths:
        end += length
        ends.append(max(end - 1, 0))
    for turn, amount in enumerate(turn_rewards):
        placed[ends[turn] if turn < len(ends) else -1] += amount
    placed[-1] += reward - sum(turn_rewards)
    return placed


def _columns(flat: Tensor, lengths: Sequence[int]) -> Tensor:
    """`[rollouts, longest]`, padded with zeros on the right. In float64: the sums are long and the tensors small."""
    return pad_sequence(list(torch.split(flat.double(), list(lengths))), batch_first=True)
