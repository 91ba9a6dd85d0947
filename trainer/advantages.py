"""From an algorithm's choice of advantage to one number for each action token of a packed batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from moonmill.algorithm_config import GaeConfig, GroupMeanConfig, GroupZscoreConfig, RunningMeanConfig
from moonmill.errors import RunError
from moonmill.trainer.algorithms.combinations import GroupAdvantage, tag
from moonmill.trainer.algorithms.gae import adaptive_lambda, skip_observation_gae
from moonmill.trainer.algorithms.group_mean import group_mean
from moonmill.trainer.algorithms.group_zscore import group_zscore
from moonmill.trainer.algorithms.rloo import rloo
from moonmill.trainer.algorithms.running_mean import RunningMean, key_of
from moonmill.trainer.packing import MicroBatch
from moonmill.types import Rollout

OutcomeConfig = GroupAdvantage | RunningMeanConfig

_TINY = 1e-8


def gae_advantages(config: GaeConfig, batch: MicroBatch, values: Tensor, ends: Tensor) -> Tensor:
    """Advantages `[action tokens]` for the policy, not yet normalised.

    Args:
        config: γ, λ and what to do with truncated episodes.
        batch: the micro-batch.
        values: `[valued tokens]`, the value before each.
        ends: `[rollouts]`, the value after each rollout's last token.
    """
    if config.lam == "adaptive":
        lam = adaptive_lambda(batch.valued_lengths, config.alpha)
    else:
        lam = torch.full((len(batch.valued_lengths),), float(config.lam))
    return _gae(config, batch, values, ends, lam)[batch.acting]


def critic_targets(config: GaeConfig, batch: MicroBatch, values: Tensor, ends: Tensor) -> Tensor:
    """The λ-returns `[valued tokens]` the critic is to learn. Arguments as of `gae_advantages`."""
    lam = torch.full((len(batch.valued_lengths),), config.critic_lam)
    return _gae(config, batch, values, ends, lam) + values


class OutcomeAdvantages:
    """Advantages that need no critic: every action token of a rollout has the rollout's.

    Args:
        config: of a group, or of a task's last rewards, which are remembered here.
    """

    def __init__(self, config: OutcomeConfig) -> None:
        self._config = config
        self._running = RunningMean(config.last) if isinstance(config, RunningMeanConfig) else None

    def __call__(self, batches: Sequence[MicroBatch], rollouts: Sequence[Rollout]) -> list[Tensor]:
        """Advantages `[action tokens]` of each micro-batch, not yet normalised.

        Raises:
            RunError: groups are compared, and a rollout belongs to none.
        """
        rewards = torch.tensor([r.reward or 0.0 for r in rollouts], dtype=torch.float64)
        by_rollout = self._by_task(rollouts, rewards) if self._running else self._by_group(rollouts, rewards)
        return [
            by_rollout[list(b.rollouts)].repeat_interleave(torch.tensor(b.action_lengths)).to(b.behaviour)
            for b in batches
        ]

    def state_dict(self) -> dict[str, list[float]]:
        """What is remembered of tasks."""
        return self._running.state_dict() if self._running else {}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        if self._running:
            self._running.load_state_dict(state)

    def _by_group(self, rollouts: Sequence[Rollout], rewards: Tensor) -> Tensor:
        numbers: dict[str, int] = {}
        for rollout in rollouts:
            if rollout.group is None:
                raise RunError(f"rollout {rollout.id} belongs to no group, which {tag(self._config)} needs")
            numbers.setdefault(rollout.group, len(numbers))
        groups = torch.tensor([numbers[r.group] for r in rollouts if r.group is not None])
        match self._config:
            case GroupZscoreConfig(epsilon=epsilon):
                return group_zscore(rewards, groups, epsilon=epsilon)
            case GroupMeanConfig():
                return group_mean(rewards, groups)
            case _:
                return rloo(rewards, groups)

    def _by_task(self, rollouts: Sequence[Rollout], rewards: Tensor) -> Tensor:
        assert self._running is not None
        # By their numbers, so that the order in which a batch is handed over does not decide what is remembered.
        order = sorted(range(len(rollouts)), key=lambda i: (rollouts[i].index, rollouts[i].id))
        found = self._running.advantages([key_of(rollouts[i].task) for i in order], rewards[order].tolist())
        advantages = torch.zeros_like(rewards)
        advantages[order] = torch.tensor(found, dtype=torch.float64)
        return advantages


def normalized(advantages: Sequence[Tensor]) -> list[Tensor]:
    """The same, with zero mean and unit variance over all action tokens of the batch."""
    everything = torch.cat(list(advantages)).double()
    mean, std = everything.mean(), everything.std(correction=0)
    return [((a.double() - mean) / (std + _TINY)).to(a.dtype) for a in advantages]


def _gae(config: GaeConfig, batch: MicroBatch, values: Tensor, ends: Tensor, lam: Tensor) -> Tensor:
    """Advantages `[valued tokens]`. Observations that are valued have no reward of their own."""
    return skip_observation_gae(
        values,
        torch.zeros_like(values).index_copy_(0, batch.acting, batch.rewards.to(values)),
        batch.valued_lengths,
        gamma=config.gamma,
        lam=lam.to(values.device),
        bootstrap=ends * batch.truncated if config.bootstrap_truncated else None,
    )
