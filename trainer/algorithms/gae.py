"""Skip-observation generalised advantage estimation: advantages over action tokens alone.

`SAO, arXiv 2607.07508 <https://arxiv.org/abs/2607.07508>`_, on top of GAE (arXiv 1506.02438). With `t` counting a
rollout's *action tokens*, so that `t + 1` after the last token of an action is the first token of the next one:

    δ_t = r_t + γ·V_{t+1} − V_t
    Â_t = δ_t + γ·λ·Â_{t+1}

`V_t` is the value of the context before token `t`; for the first token of an action that context ends with the
observation, which therefore counts through V and takes no step of γ or λ of its own.

What always holds: nothing flows from one rollout to another; with λ = γ = 1, Â_t + V_t is the sum of the rewards from
`t` on, whatever the values. The recursion knows the tokens that it is given: action tokens, so that observations are
never in it, or with `skip_observations: false` those of observations as well, to compare with.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_CHUNK = 32
"""Tokens of a rollout that are gone through one after the other; its chunks are, and all rollouts, side by side."""


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
    counts = torch.tensor(lengths, device=values.device)
    last = counts.cumsum(0) - 1
    # In float64: the sums are long.
    value = values.double()
    deltas = rewards.double() - value
    ends = 0.0 if bootstrap is None else gamma * bootstrap.to(deltas)
    of_last = deltas[last] + ends
    deltas[:-1].add_(value[1:], alpha=gamma)
    deltas[last] = of_last
    return _scan(deltas, gamma * lam.to(deltas), counts).to(values.dtype)


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


def _scan(terms: Tensor, decay: Tensor, lengths: Tensor) -> Tensor:
    """y_t = terms_t + decay·y_{t+1} within each of several rows that lie end to end, `[sum(lengths)]`, in `terms`.

    Rows are cut into chunks from their ends. Each chunk is summed up as if nothing came after it, all of them at once;
    what does come after is the same sum again over the chunks' first elements, and is added with its decay.

    Args:
        terms: `[sum(lengths)]`.
        decay: `[rows]`, at most 1.
        lengths: `[rows]`, at least 1.
    """
    chunks = (lengths + _CHUNK - 1).div_(_CHUNK, rounding_mode="floor")
    # Each row is padded before its first element, so that from the element before it, it is that many places more.
    place = torch.ones(len(terms), dtype=torch.long, device=terms.device)
    place[lengths.cumsum(0) - lengths] += chunks * _CHUNK - lengths
    place = place.cumsum_(0).sub_(1)
    count = int(chunks.sum())
    laid = terms.new_zeros(count * _CHUNK).index_copy_(0, place, terms)
    columns = laid.view(count, _CHUNK).t().contiguous()
    decays = decay.repeat_interleave(chunks)
    for t in range(_CHUNK - 2, -1, -1):
        columns[t].addcmul_(decays, columns[t + 1])
    if count > len(lengths):
        after = torch.zeros_like(decays)
        after[:-1] = _scan(columns[0].clone(), decay**_CHUNK, chunks)[1:]
        after[chunks.cumsum(0) - 1] = 0.0
        for t in range(_CHUNK - 1, -1, -1):
            columns[t].add_(after.mul_(decays))
    laid.view(count, _CHUNK).copy_(columns.t())
    return torch.index_select(laid, 0, place, out=terms)
