"""From an algorithm's choice of advantage to one number for each action token of a packed batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from moonmill.algorithm_config import GaeConfig, GroupZscoreConfig
from moonmill.errors import RunError
from moonmill.trainer.algorithms.gae import adaptive_lambda, skip_observation_gae
from moonmill.trainer.algorithms.group_zscore import group_zscore
from moonmill.trainer.packing import MicroBatch
from moonmill.types import Rollout

_TINY = 1e-8


def gae_advantages(config: GaeConfig, batch: MicroBatch, values: Tensor, ends: Tensor) -> Tensor:
    """Advantages `[action tokens]` for the policy, not yet normalised.

    Args:
        config: γ, λ and what to do with truncated episodes.
        batch: the micro-batch.
        values: `[action tokens]`, the value before each.
        ends: `[rollouts]`, the value after each rollout's last token.
    """
    if config.lam == "adaptive":
        lam = adaptive_lambda(batch.action_lengths, config.alpha)
    else:
        lam = torch.full((len(batch.action_lengths),), float(config.lam))
    return _gae(config, batch, values, ends, lam)


def critic_targets(config: GaeConfig, batch: MicroBatch, values: Tensor, ends: Tensor) -> Tensor:
    """The λ-returns `[action tokens]` the critic is to learn. Arguments as of `gae_advantages`."""
    lam = torch.full((len(batch.action_lengths),), config.critic_lam)
    return _gae(config, batch, values, ends, lam) + values


def group_advantages(
    config: GroupZscoreConfig, batches: Sequence[MicroBatch], rollouts: Sequence[Rollout]
) -> list[Tensor]:
    """Advantages `[action tokens]` of each micro-batch: every action token of a rollout has the rollout's.

    Raises:
        RunError: a rollout belongs to no group.
    """
    numbers: dict[str, int] = {}
    for rollout in rollouts:
        if rollout.group is None:
            raise RunError(f"rollout {rollout.id} belongs to no group, which group_zscore needs")
        numbers.setdefault(rollout.group, len(numbers))
    groups = torch.tensor([numbers[r.group] for r in rollouts if r.group is not None])
    rewards = torch.tensor([r.reward or 0.0 for r in rollouts], dtype=torch.float64)
    by_rollout = group_zscore(rewards, groups, epsilon=config.epsilon)
    return [
        by_rollout[list(batch.rollouts)].repeat_interleave(torch.tensor(batch.action_lengths)).to(batch.behaviour)
        for batch in batches
    ]


def normalized(advantages: Sequence[Tensor]) -> list[Tensor]:
    """The same, with zero mean and unit variance over all action tokens of the batch."""
    everything = torch.cat(list(advantages)).double()
    mean, std = everything.mean(), everything.std(correction=0)
    return [((a.double() - mean) / (std + _TINY)).to(a.dtype) for a in advantages]


def _gae(config: GaeConfig, batch: MicroBatch, values: Tensor, ends: Tensor, lam: Tensor) -> Tensor:
    return skip_observation_gae(
        values,
        batch.rewards,
        batch.action_lengths,
        gamma=config.gamma,
        lam=lam.to(values.device),
        bootstrap=ends * batch.truncated if config.bootstrap_truncated else None,
    )
